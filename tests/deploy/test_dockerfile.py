"""The image: what its file says, and, in ``make test-all``, what comes of its steps.

The tests need no Docker: they carry out the steps of the first stage in a directory of their own, and start what those
have made as the last stage says.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from deploy_files import CONSTRAINTS, ROOT, Instruction, Stage, build_context, dockerfile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import ServerProcess
from tfs_lite.cli.flag_parser import parse_flags

ARGUMENTS, (BUILD, IMAGE) = dockerfile()


def pinned() -> dict[str, str]:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def requirements(extra: str) -> list[Requirement]:
    """Of this project, with one extra (or none)."""
    found = [Requirement(text) for text in importlib.metadata.requires("tfs-lite") or ()]
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]


def test_the_linter_of_dockerfiles_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_both_stages_have_one_base_of_a_fixed_version() -> None:
    assert [stage.one("FROM").text for stage in (BUILD, IMAGE)] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", ARGUMENTS["PYTHON_IMAGE"])


def test_the_server_is_process_1_and_not_root() -> None:
    assert IMAGE.one("ENTRYPOINT").words == ["tfs-lite", "serve"]
    assert IMAGE.one("USER").text == "10001:10001"
    assert IMAGE.one("STOPSIGNAL").text == "SIGTERM"
    for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        assert IMAGE.one(name).words, f"{name} would run in a shell"
    names = [each.name for each in IMAGE.instructions]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))


def test_its_ports_and_its_variables_are_those_of_the_server() -> None:
    environment = IMAGE.environment()
    settings = parse_flags(IMAGE.one("CMD").words or [], environment)
    assert settings.given.keys() == {"host", "model_repository"}
    assert IMAGE.one("EXPOSE").text.split() == [str(settings["port"]), str(settings["rest_api_port"])]
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    sources = {source for each in BUILD.all("COPY") for source in each.text.split()[:-1]}
    context = [str(path) for path in build_context()]
    assert all(any(name == each or name.startswith(f"{each}/") for each in sources) for name in context)
    assert all(any(name == each or name.startswith(f"{each}/") for name in context) for each in sources)
    assert {"LICENSE", "README.md", "pyproject.toml", "deploy/constraints.txt"} < set(context)
    assert not any("__pycache__" in name or name.startswith("tests") for name in context)
    assert [each.text.split()[0] for each in IMAGE.all("COPY")] == ["--from=build"]


@pytest.mark.parametrize("extra", ["", "demo", "generate", "remote"])
def test_every_dependency_has_a_version_within_its_bounds(extra: str) -> None:
    versions = pinned()
    for each in requirements(extra):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each


def test_torch_is_the_build_for_the_cpu_that_is_tested() -> None:
    tested = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [pinned()["torch"]] == [f"{version}+cpu" for version in tested]


class Directory:
    """Carries out the steps of the first stage: ``/src`` and ``/opt`` are below ``root``."""

    def __init__(self, root: Path, **arguments: str) -> None:
        self.root = root
        self._environment = {"PATH": os.environ["PATH"], "PIP_RETRIES": "0", **self._of_pip()}
        self._arguments = arguments
        (root / "context").mkdir()
        for path in build_context():
            (root / "context" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, root / "context" / path)

    @staticmethod
    def _of_pip() -> dict[str, str]:
        """How this machine's pip finds packages."""
        return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME"))}

    def mapped(self, text: str) -> str:
        return re.sub(r"/(src|opt)\b(?=[/\"' ]|$)", rf"{self.root}/\1", text)

    def carry_out(self, stage: Stage) -> None:
        for each in stage.instructions:
            getattr(self, f"_{each.name.lower()}")(each)

    def _from(self, each: Instruction) -> None:
        self.work = self.root

    def _arg(self, each: Instruction) -> None:
        name, _, default = each.text.partition("=")
        self._environment[name] = self._arguments.get(name, default.strip('"'))

    def _env(self, each: Instruction) -> None:
        self._environment |= dict(self.mapped(word).split("=", 1) for word in shlex.split(each.text))

    def _workdir(self, each: Instruction) -> None:
        self.work = Path(self.mapped(each.text))
        self.work.mkdir(parents=True)

    def _copy(self, each: Instruction) -> None:
        *sources, target = each.text.split()
        for source in sources:
            path = self.root / "context" / source
            place = self.work / target if path.is_dir() else self.work / target / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, place, dirs_exist_ok=True)
            else:
                shutil.copy(path, place)

    def _run(self, each: Instruction) -> None:
        words = each.words or ["/bin/sh", "-c", each.text]
        words = [sys.executable if word == "python" else self.mapped(word) for word in words]
        done = subprocess.run(
            words, cwd=self.work, env=self._environment, capture_output=True, text=True, timeout=1500, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.load
@pytest.mark.timeout(1800)
def test_the_steps_make_a_server_that_answers_and_stops(tmp_path: Path, archives: TaggedArchives) -> None:
    """With the extra ``generate``. ``TORCH_INDEX`` in the environment stands for that of the file."""
    index = os.environ.get("TORCH_INDEX")
    directory = Directory(tmp_path, EXTRAS="generate", **({"TORCH_INDEX": index} if index else {}))
    directory.carry_out(BUILD)
    assert installed(tmp_path).items() <= pinned().items()
    archives.write_version(1, tmp_path / "models" / "ranker")
    entry, *words = IMAGE.one("ENTRYPOINT").words or []
    assert words == ["serve"]
    flags = [word.replace("/models", f"{tmp_path}/models") for word in IMAGE.one("CMD").words or []]
    environment = {"PYTHONPATH": "", **{key: value for key, value in IMAGE.environment().items() if key != "PATH"}}
    environment["TFS_LITE_HOST"] = "127.0.0.1"
    command = [*as_process_1(), str(tmp_path / "opt" / "tfs-lite" / "bin" / entry)]
    with ServerProcess(*flags, command=command, directory=tmp_path, env=environment) as server:
        server.wait_status("/v2/models/ranker/ready", 200)
        os.kill(innermost(server.pid), signal.SIGTERM)
        assert server.wait() == 0


def as_process_1() -> list[str]:
    """What makes a command the first process of a namespace, as in a container; nothing where that is not allowed."""
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    allowed = shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else []


def innermost(pid: int) -> int:
    """The process, or its child if it is ``unshare``, which waits for one."""
    if Path(f"/proc/{pid}/comm").read_text().strip() != "unshare":
        return pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def installed(root: Path) -> dict[str, str]:
    """The packages of the new environment, apart from ours and pip's own."""
    command = [str(root / "opt/tfs-lite/bin/python"), "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = dict(line.split("==") for line in listed.splitlines())
    ours = ("tfs-lite", "pip", "setuptools")
    return {canonicalize_name(name): version for name, version in found.items() if canonicalize_name(name) not in ours}
