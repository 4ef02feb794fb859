"""The operators that a SavedModel may use without trust.

A SavedModel is a program: among TensorFlow's operators are some that read and write files, open sockets or run Python.
So every operator that loading the model or a request can run has to be on the list of those that compute in memory.
Two kinds of operators read files all the same, and the process's sandbox limits them to the version's own: those that
fill a table from a file, and those that restore the weights, where the graph brings these along.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tfs_lite.adapters.tensorflow.saved_model import MetaGraph
from tfs_lite.core.status import Reason, ServingError, StatusCode

RESTORING = frozenset({"Restore", "RestoreSlice", "RestoreV2", "ShardedFilename"})
MAX_SHOWN = 5


@cache
def allowed_operators() -> frozenset[str]:
    """The names in ``operators.txt``."""
    text = files(__package__).joinpath("operators.txt").read_text("utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(name for line in lines for name in line.split())


def check_operators(graph: MetaGraph) -> None:
    """Raises PERMISSION_DENIED, naming them, if operators that are not on the list may run."""
    allowed = allowed_operators()
    running, restoring = graph.operators()
    refused = (running | (restoring - RESTORING)) - allowed
    if refused:
        some = sorted(refused)
        more = f" and {len(some) - MAX_SHOWN} more" if len(some) > MAX_SHOWN else ""
        raise untrusted(
            f"the SavedModel uses {', '.join(some[:MAX_SHOWN])}{more}, which can do more than compute in memory"
        )


def untrusted(what: str) -> ServingError:
    """The error for a SavedModel that is loaded only with trust."""
    return ServingError(
        StatusCode.PERMISSION_DENIED,
        f"{what}; such a model is loaded only from below --trusted_model_base_paths",
        Reason.NEEDS_TRUST,
    )
