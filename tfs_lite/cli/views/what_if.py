"""The question and the answer of ``explain --config``, ``explain --if-published`` and ``check --against``: what a
running server would do with a config, or with files that are not published yet.

The config is read here, so that a mistake is reported with its line and column; reasons that only the server knows get
the line of their model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tfs_lite.cli.output import DONE, FAILED, print_json

if TYPE_CHECKING:
    from tfs_lite.config.model_server import ModelServerConfig
    from tfs_lite.config.settings import Document

Ask: TypeAlias = "Callable[[Any], Any]"
"""Sends a question to a running server: from its JSON to that of the answer."""
PATH = "/v1/config:explain"
"""The path of the question over HTTP."""
ANSWER_TIMEOUT = 120.0
"""Seconds: the server looks at its disk, and into archives."""


def of_config_file(file: str, ask: Ask) -> Any:
    """The server's answer about a config file. Raises ServingError for a mistake in the file, with its place."""
    from tfs_lite.config.model_server import ModelServerConfig
    from tfs_lite.config.settings import build
    from tfs_lite.config.text import read_document, read_text
    from tfs_lite.protocols import messages

    document = read_document(read_text(Path(file), file, takes_pipe=True), file, messages.ModelServerConfig)
    config = build(ModelServerConfig, document, Path.cwd())
    return _with_lines(of_config(config, ask), config, document)


def of_config(config: ModelServerConfig, ask: Ask) -> Any:
    """The server's answer about a config."""
    return ask(config.model_dump(mode="json"))


def of_published(model: str, version: int | None, directory: str, ask: Ask) -> Any:
    """The server's answer about files that would be a version; None: the next one. The files are on its machine."""
    asked = {"model": model, "version": version, "directory": str(Path(directory).absolute())}
    return ask({"publish": asked})


def _with_lines(answer: Any, config: ModelServerConfig, document: Document) -> Any:
    places = {model.name: index for index, model in enumerate(config.models)}
    for refusal in answer["refused"]:
        if refusal["model"] in places:
            place = ("model_config_list", "config", places[refusal["model"]])
            refusal["text"] = f"{document.where(place)}{refusal['text']}"
    return answer


def show(answer: Any, as_json: bool = False) -> int:
    """Prints the answer; the exit code is 0 if the config would be accepted and every wanted version would load."""
    if as_json:
        print_json(answer)
    else:
        print("\n".join(lines(answer)))
    return DONE if answer["ok"] else FAILED


def lines(answer: Any) -> Iterator[str]:
    """The answer for people: a block for each model to which something would happen."""
    if answer["refused"]:
        yield from (f"refused: {refusal['text']}" for refusal in answer["refused"])
        yield "nothing would change"
        return
    idle = 0
    for model in answer["models"]:
        if _is_idle(model):
            idle += 1
        else:
            yield from _model(model)
    if idle:
        yield f"{idle} model{'s stay as they are' if idle > 1 else ' stays as it is'}"
    elif not answer["models"]:
        yield "no model would be served"


def _is_idle(model: Any) -> bool:
    calm = all(version["fate"] in ("stay", "finish", "leave") for version in model["versions"])
    return model["change"] == "unchanged" and calm and not model["problem"] and not model["remarks"]


def _model(model: Any) -> Iterator[str]:
    fields = f": {', '.join(model['fields'])}" if model["fields"] else ""
    yield f"{model['name']} ({model['change']}{fields})"
    yield from (f"  {_version(version)}" for version in model["versions"])
    for move in model["labels"]:
        before, after = (
            "none" if version is None else f"version {version}" for version in (move["before"], move["after"])
        )
        yield f"  label {move['label']}: {before} -> {after}"
    if model["problem"]:
        yield f"  problem: {model['problem']}"
    if model["gap"]:
        yield f"  gap: {model['gap']}"
    yield from (f"  note: {remark}" for remark in model["remarks"])


_FATES = {
    "load": "is loaded",
    "fail": "would fail to load",
    "refuse": "would not be loaded",
    "wait": "is wanted and not complete",
    "stay": "stays",
    "keep": "goes on answering, though it is wanted no more",
    "unload": "is unloaded",
    "finish": "goes on loading",
    "call off": "is given up",
    "leave": "is on its way out already",
    "failed": "has failed, and is not tried again before its files change",
}


def _version(version: Any) -> str:
    parts = [f"version {version['version']} {_FATES[version['fate']]}"]
    if version["after"]:
        parts.append(f"after {', '.join(_name(each) for each in version['after'])}")
    if version["needs"]:
        needs = ", ".join(f"{_size(quantity)} of {resource}" for resource, quantity in version["needs"].items())
        fits = {True: ", which fits now", False: ", which does not fit now", None: ""}[version["fits_now"]]
        parts.append(f"it reserves {needs}{fits}")
    inside = [f"{version[kind]} {kind}" for kind in ("requests", "sequences") if version[kind]]
    if inside:
        parts.append(f"{' and '.join(inside)} inside")
    return "; ".join(parts) + (f": {version['why']}" if version["why"] else "")


def _name(version: Any) -> str:
    return f"{version['model']}@{version['version']}"


def _size(quantity: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if quantity >= size:
            return f"{quantity / size:.1f} {unit}"
    return f"{quantity} bytes"
