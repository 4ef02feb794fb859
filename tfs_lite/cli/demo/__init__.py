"""``tfs-lite demo``: a better version of a real model goes live under load, and a broken one does not.

It trains two classifiers of handwritten digits, serves the first with a ``tfs-lite serve`` of its own on loopback,
sends pictures without pause, publishes the second version, then a damaged third. Exit code 0 means that every promise
was kept; otherwise the summary lists those that were not.

``steps`` is the demo itself, with ``server`` and ``traffic``; ``model`` is what it trains, ``outcome`` its promises,
``view`` what it shows.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfs_lite.cli.arguments import Parser, positive_int, positive_seconds
from tfs_lite.cli.output import DONE, FAILED, print_json

if TYPE_CHECKING:
    from tfs_lite.cli.demo.outcome import DemoOutcome


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    from tfs_lite.cli.demo.steps import DemoSteps
    from tfs_lite.cli.demo.view import DemoView

    with tempfile.TemporaryDirectory(prefix="tfs-lite-demo-") as directory, DemoView(quiet=args.json) as view:
        steps = DemoSteps(view, Path(directory), args.clients, args.requests, args.seconds)
        outcome = steps.run()
    if args.json:
        print_json(outcome.as_json())
    else:
        _print_summary(outcome)
    return FAILED if outcome.problems() else DONE


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("demo", "Trains, serves and replaces a real model under load. Needs the extra tfs-lite[demo].")
    parser.add_argument("--seconds", type=positive_seconds, default=60.0, help="time limit of a step (%(default)s)")
    parser.add_argument("--clients", type=positive_int, default=4, help="threads that send pictures (%(default)s)")
    parser.add_argument(
        "--requests", type=positive_int, default=500, help="answers that each client gets in a step (%(default)s)"
    )
    return parser.parse(argv)


def _print_summary(outcome: DemoOutcome) -> None:
    from tfs_lite.cli.demo.outcome import BETTER, FIRST
    from tfs_lite.cli.demo.view import demo_table
    from tfs_lite.cli.output import console

    console().print(demo_table(outcome.versions, outcome.tally))
    tally, problems = outcome.tally, outcome.problems()
    if problems:
        print("not as promised: " + "; ".join(problems))
        return
    before, after = tally.version(FIRST).accuracy, tally.version(BETTER).accuracy
    print(
        f"{tally.requests:,} requests, none failed; accuracy rose from {before:.1%} to {after:.1%} when version"
        f" {BETTER} went live; the broken version never served ({outcome.seconds:.0f} s)"
    )
