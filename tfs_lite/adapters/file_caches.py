"""Files that were read into a model are not read again: the system may use the memory of its file cache for others."""

from __future__ import annotations

import os


def drop_file_caches(directory: str) -> None:
    """Tells the system that nobody needs the cached contents of the files below ``directory``. Only advice: files that
    are gone, not readable or no regular files are passed over."""
    if not hasattr(os, "posix_fadvise"):
        return
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                _drop(path)


def _drop(path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return
    finally:
        os.close(file)
