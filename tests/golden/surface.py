"""What users can see of the product, as lists of lines: one file for each, compared by ``test_public_surface``.

    python tests/golden/surface.py             # writes all lists anew, and the pages that are made from the code
    python tests/golden/surface.py flags wire  # some of them

A list that changes is a change for users: commit the new list with the change that meant it, and no other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SHOWN = 8
"""Lines that have come, and lines that have gone, that are told in full."""
WIDTH = 300


def _flags() -> Iterable[str]:
    import golden_flags

    return golden_flags.listing()


def _messages() -> Iterable[str]:
    import golden_messages

    return golden_messages.listing()


def _config_fields() -> Iterable[str]:
    import golden_config

    return golden_config.listing()


def _python_names() -> Iterable[str]:
    import golden_python

    return golden_python.listing()


@cache
def _served() -> dict[str, list[str]]:
    """The lists that need a server: one for all. Metrics come last, when everything was counted."""
    import golden_metrics
    import golden_routes
    import golden_server
    import golden_wire

    with golden_metrics.Notes().taken() as notes, golden_server.started() as world:
        wire = [*golden_wire.definitions(), *golden_wire.answers(world)]
        routes = list(golden_routes.listing(world))
        return {"wire": wire, "routes": routes, "metrics": list(golden_metrics.listing(world, notes))}


LISTINGS: dict[str, Callable[[], Iterable[str]]] = {
    "config_fields": _config_fields,
    "flags": _flags,
    "messages": _messages,
    "metrics": lambda: _served()["metrics"],
    "python_names": _python_names,
    "routes": lambda: _served()["routes"],
    "wire": lambda: _served()["wire"],
}


def made(name: str) -> list[str]:
    """The list as the code has it now: sorted, each line once."""
    return sorted(set(LISTINGS[name]()))


def kept(name: str) -> list[str]:
    """The list as it was written down."""
    path = HERE / f"{name}.txt"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def difference(name: str, before: list[str], after: list[str]) -> str:
    """Which lines have come and which have gone, the first of them in full; empty if none have."""
    gone, come = sorted({*before} - {*after}), sorted({*after} - {*before})
    if not gone and not come:
        return ""
    lines = [f"tests/golden/{name}.txt: {len(gone)} lines are gone (-), {len(come)} have come (+)"]
    for sign, found in (("-", gone), ("+", come)):
        lines += [f"{sign} {line:.{WIDTH}}" for line in found[:SHOWN]]
        lines += [f"{sign} and {len(found) - SHOWN} more"] * (len(found) > SHOWN)
    return "\n".join([*lines, f"If users are meant to see that: python tests/golden/surface.py {name}"])


if __name__ == "__main__":
    for wanted in sys.argv[1:] or LISTINGS:
        (HERE / f"{wanted}.txt").write_text("".join(f"{line}\n" for line in made(wanted)), encoding="utf-8")
    if not sys.argv[1:]:
        import pages

        pages.write()
