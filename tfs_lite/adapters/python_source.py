"""Imports ``model.py`` of a version: under a module name of its own, and out again when the version goes.

Two versions of a model may be in memory at the same time, so the name is used once and never again. The module is a
package: ``from .helper import x`` finds files beside it. Nothing is written into the version's directory.
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

from tfs_lite.adapters.failures import out_of_memory, sentence
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition

ARTEFACT = "model.py"
_NO_NAME = re.compile(r"\W", re.ASCII)
_numbers = itertools.count(1)


class _FreshSource(importlib.machinery.SourceFileLoader):
    """Reads the source every time: without file times Python neither reads nor writes compiled files."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("compiled files are not used")


def import_model(servable_id: ServableId, directory: str) -> ModuleType:
    """Runs ``model.py``. FAILED_PRECONDITION with the line if that fails."""
    path = os.path.join(directory, ARTEFACT)
    label = _NO_NAME.sub("_", servable_id.name)
    name = f"tfs_lite_model_{label}_{servable_id.version}_{next(_numbers)}"
    spec = importlib.util.spec_from_loader(name, _FreshSource(name, path), is_package=True)
    if spec is None or spec.loader is None:
        raise failed_precondition(f"{ARTEFACT} is no Python module")
    spec.submodule_search_locations = [directory]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() in a model must not end the server
        forget(module)
        failure = source_failure(error, directory)
    else:
        return module
    raise failure


def forget(module: ModuleType) -> None:
    """Removes the module, and those that it imported from beside it, from the interpreter."""
    prefix = f"{module.__name__}."
    for name in [name for name in sys.modules if name == module.__name__ or name.startswith(prefix)]:
        del sys.modules[name]


def source_failure(error: BaseException, directory: str) -> ServingError:
    """What went wrong in code of the version, with file and line but without the server's path."""
    if isinstance(error, ServingError):
        return error
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(directory):
        where = f"{os.path.relpath(error.filename, directory)} line {error.lineno}"
        return failed_precondition(f"{where}: {type(error).__name__}: {error.msg}")
    where = ARTEFACT
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(directory):
            where = f"{os.path.relpath(frame.filename, directory)} line {frame.lineno}"
    code = StatusCode.RESOURCE_EXHAUSTED if out_of_memory(error) else StatusCode.FAILED_PRECONDITION
    return ServingError(code, f"{where}: {type(error).__name__}: {sentence(error)}")
