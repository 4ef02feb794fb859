# tfs_lite on the CPU: `docker build -t tfs-lite .`; docs/deploy.md says how to run it.
#
#   EXTRAS         extras of pyproject.toml, comma-separated: `--build-arg EXTRAS=generate` for language models
#   PYTHON_IMAGE   the base of both stages; with its digest (python:...@sha256:...) it cannot change
#   TORCH_INDEX    where pip finds the CPU build of torch, which deploy/constraints.txt names
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=""
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The constraints bind build tools, too.
ENV PIP_CONSTRAINT=/src/deploy/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN ["python", "-m", "venv", "/opt/tfs-lite"]
COPY deploy/constraints.txt deploy/
# The dependencies are a layer of their own, which stays while only the package changes.
COPY pyproject.toml README.md LICENSE ./
COPY tfs_lite/__init__.py tfs_lite/
RUN /opt/tfs-lite/bin/python -m pip install --extra-index-url "${TORCH_INDEX}" ".${EXTRAS:+[${EXTRAS}]}"
COPY tfs_lite tfs_lite
RUN ["/opt/tfs-lite/bin/python", "-m", "pip", "install", "--no-deps", "--force-reinstall", "."]

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 tfs-lite \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tfs-lite \
    && install --directory --mode 0755 /models
COPY --from=build /opt/tfs-lite /opt/tfs-lite
# Nothing is written but to /tmp: the root file system may be read-only.
ENV PATH=/opt/tfs-lite/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TFS_LITE_HOST=0.0.0.0
USER 10001:10001
# gRPC, HTTP
EXPOSE 8500 8501
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/readyz', timeout=2)"]
# Process 1 is the server, so SIGTERM reaches it: it drains and exits with 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tfs-lite", "serve"]
CMD ["--model_repository=/models"]
