"""What the guard remembers over a restart: ``guard.json`` in the state directory.

    {"format": 1, "clean": false, "models": {"m": {"rejected": [...], "accepted": {"8": FILES}, "trials": [...]}}}

It is replaced as a whole: written under another name, synced, renamed. ``clean`` is true only after a server has
stopped as it should, so that the next one knows of a server that ended during a trial: the trial counts these ends, and
after :data:`UNCLEAN_ENDS` of them its version is rejected. Nothing else would stop a version that ends the server.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfs_lite.core.publish import sync_directory, sync_file
from tfs_lite.operations.guard.trial import MAX_REMEMBERED, By, ModelState, Rejection, Running

FILE = "guard.json"
FORMAT = 1
UNCLEAN_ENDS = 2
"""So many ends of a server during a version's trial reject the version."""
MAX_BYTES = 64 << 20
logger = logging.getLogger(__name__)
_Trial = tuple[str, int, str]
"""Model, new version and its files."""


class StateFile:
    """``read`` -> ``write``* -> ``close``. One thread at a time writes."""

    def __init__(self, directory: str, time: Callable[[], float], counts_ends: bool = True) -> None:
        """``time``: now, in seconds since 1970. ``counts_ends``: whether a version is rejected after servers have ended
        during its trial."""
        self._path = Path(directory, FILE)
        self._time = time
        self._counts_ends = counts_ends
        self._lock = threading.Lock()  # guards the fields below, and the file
        self._unclean: dict[_Trial, int] = {}  # the unclean ends during trials
        self._written = b""
        self._problem = ""  # of the last write, in words
        self._closed = False

    def read(self) -> dict[str, ModelState]:
        """What earlier servers have left. A file that cannot be read is moved aside, which is logged."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES)
            document = _object(json.loads(data))
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']!r}, expected {FORMAT}")
            clean = bool(document["clean"])
            models = {str(name): _object(found) for name, found in _object(document["models"]).items()}
            return {name: self._restored(name, found, clean) for name, found in models.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._unclean.clear()
            self._move_aside(error)
            return {}

    def _restored(self, name: str, found: Mapping[str, Any], clean: bool) -> ModelState:
        rejected = [_rejection(_object(each)) for each in _list(found["rejected"])]
        accepted = {int(version): str(files) for version, files in _object(found["accepted"]).items()}
        trials = {}
        for each in map(_object, _list(found["trials"])):
            trial = Running(int(each["new"]), int(each["old"]), str(each["files"]))
            unclean = int(each["unclean"]) + (not clean)
            if unclean < UNCLEAN_ENDS or not self._counts_ends:
                trials[trial.new] = trial
                self._unclean[name, trial.new, trial.files] = unclean
                continue
            why = f"taken back at the start of the server: {unclean} servers before it ended uncleanly during its trial"
            rejected.append(Rejection(trial.new, trial.files, why, self._time()))
            logger.warning("model %s version %d is %s", name, trial.new, why)
        rejected = sorted(rejected, key=lambda each: each.version, reverse=True)[:MAX_REMEMBERED]
        accepted = dict(list(accepted.items())[:MAX_REMEMBERED])
        return ModelState(trials, None, {each.version: each for each in rejected}, accepted, frozenset(accepted))

    def _move_aside(self, error: Exception) -> None:
        aside = self._path.with_name(f"{FILE}.unreadable")
        with suppress(OSError):
            os.replace(self._path, aside)
        what = error.strerror if isinstance(error, OSError) else error
        logger.error("%s of the state directory cannot be read (%s); it is now %s", FILE, what, aside.name)

    def write(self, saved: Mapping[str, ModelState]) -> str:
        """Replaces what is remembered. Returns why it could not, which is logged at the first failure of a kind, and
        what was remembered before stays; empty: it is written."""
        with self._lock:
            return "" if self._closed else self._write(saved, clean=False)

    def close(self, saved: Mapping[str, ModelState]) -> None:
        """The server stops as it should; later calls of ``write`` write nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._write(saved, clean=True)

    def _write(self, saved: Mapping[str, ModelState], *, clean: bool) -> str:
        """Called with the lock held. Without anything to remember, no file is made."""
        trials = {(name, trial.new, trial.files) for name, model in saved.items() for trial in model.trials}
        self._unclean = {trial: self._unclean.get(trial, 0) for trial in trials}
        models = {name: self._as_json(name, model) for name, model in sorted(saved.items())}
        data = (json.dumps({"format": FORMAT, "clean": clean, "models": models}, indent=1) + "\n").encode()
        if data == self._written or (not models and not self._path.exists()):
            return ""
        try:
            _replace(self._path, data)
            self._written, self._problem = data, ""
        except OSError as error:
            problem = f"{FILE} of the state directory cannot be written: {error.strerror or type(error).__name__}"
            if problem != self._problem:
                logger.error("%s", problem)
            self._problem = problem
        return self._problem

    def _as_json(self, name: str, model: ModelState) -> dict[str, Any]:
        return {
            "rejected": [
                {
                    "version": each.version,
                    "files": each.files,
                    "why": each.why,
                    "at": each.at,
                    "by": each.by.value,
                    "rolled_back": each.rolled_back,
                }
                for each in model.rejected.values()
            ],
            "accepted": {str(version): files for version, files in model.accepted.items()},
            "trials": [
                {
                    "new": trial.new,
                    "files": trial.files,
                    "old": trial.old,
                    "unclean": self._unclean[name, trial.new, trial.files],
                }
                for trial in model.trials
            ],
        }


def with_files(saved: Mapping[str, ModelState], files_of: Callable[[str], str]) -> dict[str, ModelState]:
    """The same, where files are told by something else."""
    return {
        name: replace(
            model,
            armed={version: replace(trial, files=files_of(trial.files)) for version, trial in model.armed.items()},
            rejected={version: replace(each, files=files_of(each.files)) for version, each in model.rejected.items()},
            accepted={version: files_of(files) for version, files in model.accepted.items()},
        )
        for name, model in saved.items()
    }


def _replace(path: Path, data: bytes) -> None:
    """The file has the old or the new bytes, whatever ends the process. Readable by the server's user alone."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        sync_file(file)
    os.replace(new, path)
    sync_directory(str(path.parent))


def _rejection(found: Mapping[str, Any]) -> Rejection:
    return Rejection(
        int(found["version"]),
        str(found["files"]),
        str(found["why"]),
        float(found["at"]),
        By(found["by"]),
        bool(found["rolled_back"]),
    )


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value
