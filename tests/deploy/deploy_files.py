"""The deployment files as data: ``Dockerfile``, ``.dockerignore``, and what is in ``deploy``."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBERAY = ROOT / "deploy" / "kuberay"
COMPOSE = ROOT / "deploy" / "compose.yaml"
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile; ``words`` of its JSON form, or None if it has the form for a shell."""

    name: str
    text: str

    @property
    def words(self) -> list[str] | None:
        command = self.text.partition("CMD ")[2] if self.name == "HEALTHCHECK" else self.text
        return list(json.loads(command)) if command.startswith("[") else None


@dataclass(frozen=True)
class Stage:
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        return [each for each in self.instructions if each.name == name]

    def one(self, name: str) -> Instruction:
        (found,) = self.all(name)
        return found

    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for each in self.all("ENV") for word in shlex.split(each.text))


def dockerfile() -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    parsed = [Instruction(name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)]
    starts = [index for index, each in enumerate(parsed) if each.name == "FROM"]
    stages = [Stage(tuple(parsed[start:end])) for start, end in zip(starts, [*starts[1:], len(parsed)], strict=True)]
    return dict(each.text.split("=", 1) for each in parsed[: starts[0]]), stages


def build_context() -> list[Path]:
    """The files that ``.dockerignore`` lets through, relative to the root."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    included = {line.removeprefix("!").split("/")[0] for line in lines if line.startswith("!")}
    tops = [path for path in ROOT.iterdir() if path.name in included or not _is_ignored(Path(path.name), lines)]
    found = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    return sorted(path for path in (path.relative_to(ROOT) for path in found) if not _is_ignored(path, lines))


def _is_ignored(path: Path, lines: list[str]) -> bool:
    """The last pattern counts that matches the path or a directory above it."""
    names = ["/".join(path.parts[:depth]) for depth in range(1, len(path.parts) + 1)]
    ignored = False
    for line in lines:
        pattern = line.removeprefix("!")
        if any(_matches(name, pattern) for name in names):
            ignored = not line.startswith("!")
    return ignored


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return any(_matches("/".join(name.split("/")[depth:]), pattern[3:]) for depth in range(name.count("/") + 1))
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests(directory: Path = KUBERNETES) -> list[dict[str, Any]]:
    """Every object of a directory that goes to a cluster."""
    paths = [path for path in sorted(directory.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [document for path in paths for document in documents(path)]


def manifest(kind: str, name: str = "tfs-lite", directory: Path = KUBERNETES) -> dict[str, Any]:
    (found,) = (each for each in manifests(directory) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def compose_server() -> dict[str, Any]:
    server: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["server"]
    return server


@dataclass(frozen=True)
class Launch:
    """One way in which a file starts the server: the arguments, the probes of that container by name, the seconds that
    it has after SIGTERM, and the directory of models inside."""

    arguments: tuple[str, ...]
    probes: Mapping[str, Mapping[str, Any]]
    grace_seconds: float
    models: str
    ports: Mapping[str, int]


def launches() -> Iterator[tuple[str, Launch]]:
    """By name. A container without a grace period of its own has Kubernetes' or Docker's default."""
    _, (_, image) = dockerfile()
    yield "image", Launch(tuple(image.one("CMD").words or ()), {}, float("inf"), "/models", {})
    server = compose_server()
    seconds = float(server["stop_grace_period"].removesuffix("s"))
    yield "compose", Launch(tuple(server["command"]), {}, seconds, "/models", {})
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    yield "kubernetes", _container(pod["containers"][0], pod["terminationGracePeriodSeconds"], "/models")
    pod = manifest("Deployment", directory=KUBERAY)["spec"]["template"]["spec"]
    yield "kuberay", _container(pod["containers"][0], pod["terminationGracePeriodSeconds"], "/models")
    yield "kserve", _container(manifest("ClusterServingRuntime")["spec"]["containers"][0], 30, "/mnt/models")


def _container(container: dict[str, Any], grace_seconds: float, models: str) -> Launch:
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    ports = {port.get("name", "http"): port["containerPort"] for port in container["ports"]}
    return Launch(tuple(container["args"]), probes, grace_seconds, models, ports)
