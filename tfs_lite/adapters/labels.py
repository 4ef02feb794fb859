"""Class labels of a model: a text file in its version, or next to it, with one label per line.

A config must not give access to other files of the machine: the file has to lie in the version's directory or in the
base path, after links have been followed.
"""

from __future__ import annotations

import os

import numpy as np

from tfs_lite.core.manifest import open_plain
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array

MAX_BYTES = 1024 * 1024
MAX_LABELS = 100_000


def read_labels(directory: str, name: str) -> Array:
    """The labels in file ``name`` of the version at ``directory``, else of its base path: object[labels] of ``bytes``.

    The end of the last line is optional; empty lines are empty labels. INVALID_ARGUMENT if there is no such file, or it
    lies elsewhere, is too large, empty, or no UTF-8 text; FAILED_PRECONDITION if it cannot be read.
    """
    text = _text(_find(directory, name), name)
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
    if not 0 < len(lines) <= MAX_LABELS:
        raise invalid_argument(f"{name} has {len(lines)} labels, expected 1 to {MAX_LABELS}")
    labels = np.empty(len(lines), object)
    labels[:] = [line.encode() for line in lines]
    return labels


def _find(directory: str, name: str) -> str:
    folders = (directory, os.path.dirname(os.path.abspath(directory)))
    roots = [os.path.realpath(folder) for folder in folders]
    for folder in folders:
        path = os.path.realpath(os.path.join(folder, name))
        if not os.path.isfile(path):
            continue
        if not any(os.path.commonpath((root, path)) == root for root in roots):
            raise invalid_argument(f"{name} is a link that leads out of the model's directory")
        return path
    raise invalid_argument(f"there is no file {name} in the version or beside it")


def _text(path: str, name: str) -> str:
    try:
        with open_plain(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise failed_precondition(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise invalid_argument(f"{name} is larger than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid_argument(f"{name} is no UTF-8 text") from None
