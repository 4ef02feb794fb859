"""What Python's garbage collector need not look at: what exists when serving begins, and what loads have imported.

A collection holds the interpreter lock, and with it every request, for as long as it takes to look at each object of
its generations. torch's modules are some hundred thousand objects, and those of transformers three times as many.
"""

from __future__ import annotations

import gc
import sys

YOUNG = 10_000
"""Objects allocated, less those freed, between two collections of the youngest generation."""
MANY_MODULES = 200
"""Modules of Python."""


def freeze_gc() -> None:
    """Exempts everything that exists now from garbage collection. Call it once, before serving.

    A full collection, such as the one after an unload, would visit all of it, and delay every request of the process by
    more than a tenth of a second. Besides, the youngest generation is collected less often from now on: Python's
    default costs a tenth of a small request, and requests leave hardly any cycles.
    """
    gc.collect()
    exempt()
    gc.set_threshold(YOUNG, 10, 10)


def exempt_imports() -> None:
    """Called after each import of a load. Once loads have imported many modules, as the first one of a language model
    does, what these brought is exempted from garbage collection, as :func:`freeze_gc` does it at the start: each later
    collection would visit it. So is what else exists; of that, what a version leaves behind in circles stays until
    :func:`~tfs_lite.adapters.memory.release_exempt_memory`."""
    if len(sys.modules) - _Exemptions.modules >= MANY_MODULES:
        exempt()


def exempt() -> None:
    """Exempts everything that exists now."""
    gc.freeze()
    _Exemptions.count += 1
    _Exemptions.modules = len(sys.modules)


def exemptions() -> int:
    """How often what existed was exempted from collection since the start. What is made later is not exempt."""
    return _Exemptions.count


class _Exemptions:
    count = 0
    modules = 0  # that there were at the last one
