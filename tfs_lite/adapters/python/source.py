"""Imports ``model.py`` of a version under a module name of its own, and removes it when the version is unloaded.

Two versions of a model may be in memory at the same time, so every name is used once. The module is a package:
``from .helper import x`` finds files beside it. Nothing is written into the version's directory.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import re
import sys
import traceback
from types import ModuleType

from tfs_lite.adapters.failures import out_of_memory, sentence, story, with_detail
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode, invalid_argument

ARTEFACT = "model.py"
_PREFIX = "tfs_lite_model_"
"""The first part of the name under which ``model.py`` of a version is imported."""
_NO_NAME = re.compile(r"\W", re.ASCII)
_numbers = itertools.count(1)
_PERMANENT = (SyntaxError, ModuleNotFoundError, NameError, SystemExit)
"""Errors that another import of the same source would raise again."""


class _FreshSource(importlib.machinery.SourceFileLoader):
    """Reads the source every time: without file times Python neither reads nor writes compiled files."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("compiled files are not used")


def import_model(servable_id: ServableId, directory: str) -> ModuleType:
    """Runs ``model.py``. Errors name the line: INVALID_ARGUMENT where only another source can help, otherwise
    FAILED_PRECONDITION (also for a library that cannot be imported this time) or RESOURCE_EXHAUSTED."""
    path = os.path.join(directory, ARTEFACT)
    label = _NO_NAME.sub("_", servable_id.name)
    name = f"{_PREFIX}{label}_{servable_id.version}_{next(_numbers)}"
    spec = importlib.util.spec_from_loader(name, _FreshSource(name, path), is_package=True)
    if spec is None or spec.loader is None:
        raise invalid_argument(f"{ARTEFACT} is no Python module")
    spec.submodule_search_locations = [directory]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() in a model must not end the server
        forget(module)
        failure = source_failure(error, directory, permanent=_PERMANENT)
    else:
        return module
    raise failure


def forget(module: ModuleType) -> None:
    """Removes the module, and those of its own files that it imported, from the interpreter."""
    prefix = f"{module.__name__}."
    for name in list(sys.modules):  # a copy: other threads may import meanwhile
        if name == module.__name__ or name.startswith(prefix):
            sys.modules.pop(name, None)


def source_failure(
    error: BaseException, directory: str, permanent: tuple[type[BaseException], ...] = ()
) -> ServingError:
    """The error of the version's code, with file and line but without the server's path. ``permanent`` errors are
    INVALID_ARGUMENT, because a retry does not help; a module that is not installed has the reason NEEDS_EXTRA. The
    log gets all frames."""
    if isinstance(error, ServingError):
        return error
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(directory):
        where = f"{os.path.relpath(error.filename, directory)} line {error.lineno}"
        failure = ServingError(_code(error, permanent), f"{where}: {type(error).__name__}: {error.msg}")
        return with_detail(failure, story(error))
    where = ARTEFACT
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(directory):
            where = f"{os.path.relpath(frame.filename, directory)} line {frame.lineno}"
    reason = Reason.NEEDS_EXTRA if _is_not_installed(error, directory) else None
    failure = ServingError(_code(error, permanent), f"{where}: {type(error).__name__}: {sentence(error)}", reason)
    return with_detail(failure, story(error))


def _is_not_installed(error: BaseException, directory: str) -> bool:
    """Whether the code imports a module that is missing and that is none of the version's own."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith(_PREFIX):
        return False
    top = os.path.join(directory, error.name.partition(".")[0])
    return not (os.path.isdir(top) or os.path.isfile(f"{top}.py"))


def _code(error: BaseException, permanent: tuple[type[BaseException], ...]) -> StatusCode:
    if out_of_memory(error):
        return StatusCode.RESOURCE_EXHAUSTED
    return StatusCode.INVALID_ARGUMENT if isinstance(error, permanent) else StatusCode.FAILED_PRECONDITION
