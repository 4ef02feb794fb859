"""Nothing that a server or a command says shows a key, a token, a signature or an account, whatever a storage answers.

The storages here echo what they were asked with: keys and signatures come back in the bodies, codes and headers of
their errors.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tfs_lite
from tests.support.remote.moto import Bucket, Moto
from tests.support.remote.proxy import FaultProxy
from tests.support.servers.models import write_python_version
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.status import ServingError

ACCOUNT_ID = "987654321098"
CANARIES = {
    "AWS_ACCESS_KEY_ID": "AKIACANARYCANARYAAAA",
    "AWS_SECRET_ACCESS_KEY": "canarySecretAccessKeyCanarySecretAccess",
    "AWS_SESSION_TOKEN": "canarySessionTokenCanarySessionToken",
    "AZURE_STORAGE_ACCOUNT_NAME": "canaryaccount",
    "AZURE_STORAGE_SAS_KEY": "sv=2024-11-04&sp=rl&sig=canarySasSignatureCanarySas",
    "HF_TOKEN": "hf_canaryTokenCanaryToken",
}
SECRETS = (
    *(value for name, value in CANARIES.items() if name != "AZURE_STORAGE_SAS_KEY"),
    "canarySasSignatureCanarySas",
    ACCOUNT_ID,
)
CODE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""
SAYS_WHY = ("STORAGE_REFUSES", "STORAGE_UNREACHABLE", "FETCH_FAILED", "FROM_CACHE")


class Echo:
    """A storage whose every answer is an error that has all of the request in it. ``status``: its status. ``asked``:
    what came in, one text a request."""

    def __init__(self) -> None:
        self.status, self.asked = 403, list[str]()
        echo = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                head = f"{self.command} {self.path}\n{self.headers}"
                echo.asked.append(head)
                code = self.headers.get("x-amz-security-token") or CANARIES["AWS_ACCESS_KEY_ID"]
                who = f"arn:aws:sts::{ACCOUNT_ID}:assumed-role/canary"
                body = (
                    f"<Error><Code>{code}</Code><Message>{who} may not {head}</Message>"
                    f"<AWSAccessKeyId>{CANARIES['AWS_ACCESS_KEY_ID']}</AWSAccessKeyId></Error>"
                ).encode()
                self.send_response(echo.status, CANARIES["HF_TOKEN"])
                self.send_header("x-error-message", who)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def signatures(self) -> set[str]:
        """The signatures of the requests that came."""
        return set(re.findall(r"(?:Signature=|sig=)([\w%+/=-]{16,})", "\n".join(self.asked)))


@pytest.fixture
def echo() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.close()


class Outputs:
    """Everything that was said, by where. ``more``: secrets that a storage has seen."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def add(self, where: str, text: str) -> None:
        self.texts.setdefault(where, []).append(text)

    def add_all_of(self, server: ServerProcess, *models: str) -> None:
        paths = ["/v1/models", "/v1/models:explain", "/v1/events?limit=1000", "/metrics"]
        paths += ["/monitoring/prometheus/metrics", "/readyz", "/v2/repository/index", "/v1/requests"]
        for model in models:
            paths += [f"/v1/models/{model}", f"/v1/models/{model}:explain", f"/v1/models/{model}/versions/2:explain"]
            paths += [f"/v1/models/{model}/metadata", f"/v2/models/{model}"]
        for path in paths:
            body = b"{}" if path.startswith("/v2/repository") else None
            self.add(path, server.get(path, body=body)[1].decode())
        for model in models:
            self.add("predict", server.get(f"/v1/models/{model}:predict", body=b'{"instances": [[1]]}')[1].decode())

    def leaks(self, secrets: set[str]) -> list[str]:
        return [
            f"{where} shows {secret}: ...{text[max(at - 80, 0) : at + 40]}..."
            for where, texts in self.texts.items()
            for text in texts
            for secret in sorted(secrets)
            if (at := text.find(secret)) >= 0
        ]


def config(**base_paths: str) -> str:
    rows = "\n".join(f'config {{ name: "{name}" base_path: "{url}" }}' for name, url in base_paths.items())
    return f"model_config_list {{ {rows} }}"


def causes(server: ServerProcess, model: str) -> set[str]:
    answer = json.loads(server.get(f"/v1/models/{model}:explain")[1])
    return {link["cause"] for link in answer["because"]}


def says(server: ServerProcess, model: str, cause: str) -> bool:
    return any(cause in each for each in causes(server, model))


def upload(bucket: Bucket, root: Path, version: int) -> None:
    bucket.set_tree(f"m/{version}", write_python_version(root / "source", version, CODE))


def test_no_key_token_signature_or_account_is_in_anything_that_is_said(moto: Moto, echo: Echo, tmp_path: Path) -> None:
    bucket, outputs, cache = moto.make_bucket(), Outputs(), tmp_path / "cache"
    upload(bucket, tmp_path, 1)
    file = tmp_path / "models.config"
    file.write_text(config(m=f"{bucket.url}/m", azure="az://container/m", hub="hf://org/name"))
    with FaultProxy(moto.port) as proxy:
        there = {
            **moto.environment(proxy.port),
            **CANARIES,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{echo.port}",
            "AZURE_ALLOW_HTTP": "true",
            "HF_ENDPOINT": f"http://127.0.0.1:{echo.port}",
        }
        flags = (
            f"--model_config_file={file}",
            f"--trusted_model_base_paths={bucket.url}/*",
            f"--model_cache_dir={cache}",
            f"--state_directory={tmp_path / 'state'}",
            *("--remote_poll_wait_seconds=1", "--remote_quiet_seconds=0", "--log_level=debug", "--access_log=all"),
        )
        with ServerProcess(*flags, env=there) as server:
            wait_until(lambda: b"AVAILABLE" in server.get("/v1/models/m")[1], "version 1 serves")
            outputs.add_all_of(server, "m", "azure", "hub")
            for status, cause in ((403, "STORAGE_REFUSES"), (503, "STORAGE_UNREACHABLE"), (400, "STORAGE_REFUSES")):
                echo.status, proxy.upstream = status, echo.port
                wait_until(lambda: says(server, "m", cause), f"{cause} for {status}")  # noqa: B023
                wait_until(lambda: causes(server, "azure") and causes(server, "hub"), "the others say why")
                outputs.add_all_of(server, "m", "azure", "hub")
                _ask_badly(server, outputs)
                if status == 403:  # publish would try 503 again
                    _run_commands(there, outputs, tmp_path, bucket, file)
            proxy.upstream = moto.port
            proxy.fail("status", operation="get", path="/2/", status=403, code=CANARIES["AWS_ACCESS_KEY_ID"])
            upload(bucket, tmp_path, 2)
            wait_until(lambda: "FETCH_FAILED" in causes(server, "m"), "version 2 cannot be fetched")
            outputs.add_all_of(server, "m")
        outputs.add("log", server.log())
        echo.status, proxy.upstream = 403, echo.port
        with ServerProcess(*flags, env=there) as server:
            wait_until(lambda: "FROM_CACHE" in causes(server, "m"), "it starts without the storage")
            assert b"AVAILABLE" in server.get("/v1/models/m")[1]
            outputs.add_all_of(server, "m", "azure", "hub")
        outputs.add("log", server.log())
    for path in (*(tmp_path / "state").rglob("*"), *cache.rglob("*")):
        if path.is_file():
            outputs.add(f"file {path.name}", path.read_bytes().decode(errors="replace"))
    said = "".join(text for texts in outputs.texts.values() for text in texts)
    assert all(cause in said for cause in SAYS_WHY), "the outputs are those of faults"
    assert all(secret in "\n".join(echo.asked) for secret in _sent()), "the storages have seen what is to be hidden"
    leaks = outputs.leaks({*SECRETS, *echo.signatures()})
    assert leaks == [], "\n".join(leaks)


def _sent() -> list[str]:
    return [CANARIES[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "HF_TOKEN")]


def _ask_badly(server: ServerProcess, outputs: Outputs) -> None:
    """Reloads with secrets in URLs, and a call for a version that is not there."""
    key, secret = CANARIES["AWS_ACCESS_KEY_ID"], CANARIES["AWS_SECRET_ACCESS_KEY"]
    bad = (f"s3://{key}:{secret}@bucket/m", f"s3://bucket/m?X-Amz-Signature={secret}", f"http://{key}:{secret}@h/m")
    with tfs_lite.Client(server.target) as client:
        for url in bad:
            with pytest.raises(ServingError) as error:
                client.reload(parse_model_server_config(config(m=url), "test"))
            outputs.add("reload", str(error.value))
        with pytest.raises(ServingError) as error:
            client.predict("m", {"x": [[1.0]]}, version=7)
        outputs.add("predict", str(error.value))


def _run_commands(env: dict[str, str], outputs: Outputs, root: Path, bucket: Bucket, file: Path) -> None:
    """``publish`` and ``check`` against the storage that refuses."""
    command = str(Path(sys.executable).with_name("tfs-lite"))
    for arguments in (
        ("publish", str(root / "source" / "1"), "--base", f"{bucket.url}/m"),
        ("publish", str(root / "source" / "1"), "--base", "az://container/m"),
        ("check", str(file)),
    ):
        done = subprocess.run(
            [command, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
        )
        outputs.add(arguments[0], done.stdout + done.stderr)
