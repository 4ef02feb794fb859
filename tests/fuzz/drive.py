"""Fuzzes one target: python tests/fuzz/drive.py TARGET --seconds N [--corpus DIR] [--keep-going]

With atheris, if it can be imported, most of the time goes into a search that is guided by which lines of ``tfs_lite``
an input reaches. It leaks the results of comparisons, so memory is looked at in the rest of the time: there the inputs
that were found, or without atheris the seeds, are changed at random in a process of its own.

Every input is held against the same bounds: what the target itself checks, processor time, and memory. One that breaks
something is written to tests/fuzz/found/, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import io
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
FOUND = HERE / "found"
GUIDED, PLAIN = "guided", "plain"
GUIDED_SHARE = 0.85
SECONDS_TO_WAIT = 60
"""After which an input counts as hanging, however busy the machine is."""
SECONDS_TO_END = 120
MAX_LENGTH = 4096


def main() -> None:
    arguments = _arguments()
    sys.path.insert(0, str(HERE))
    FOUND.mkdir(exist_ok=True)
    faulthandler.enable()
    if arguments.search == GUIDED:
        _guided(arguments)
    elif arguments.search == PLAIN:
        _plain(arguments)
    else:
        sys.exit(_both(arguments))


def _both(arguments: argparse.Namespace) -> int:
    """The two searches, in processes of their own; the exit code."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        corpus = arguments.corpus or tempfile.mkdtemp(dir=scratch)
        os.environ["TMPDIR"] = tempfile.mkdtemp(dir=scratch)  # the searches end without clearing up
        reports: list[dict[str, Any]] = []
        if importlib.util.find_spec("atheris") is not None:
            ends = time.monotonic() + arguments.seconds * GUIDED_SHARE
            while (left := ends - time.monotonic()) > 1 and (arguments.keep_going or not _found(reports)):
                reports.append(_search(GUIDED, arguments, corpus, left))
        guided = len(reports)
        if not _found(reports) or arguments.keep_going:
            seconds = arguments.seconds * (1 - GUIDED_SHARE) if guided else arguments.seconds
            reports.append(_search(PLAIN, arguments, corpus, seconds))
    return _tell(arguments.target, reports, guided)


def _found(reports: list[dict[str, Any]]) -> bool:
    return any(report["found"] for report in reports)


def _search(search: str, arguments: argparse.Namespace, corpus: str, seconds: float) -> dict[str, Any]:
    """The report of one process. One that ended without a report is a violation."""
    flags = [f"--search={search}", f"--seconds={seconds}", f"--corpus={corpus}", f"--seed={arguments.seed}"]
    if arguments.keep_going:
        flags.append("--keep-going")
    command = [sys.executable, __file__, arguments.target, *flags]
    try:
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + SECONDS_TO_END)
        report: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        report = {"executions": 0, "seconds": seconds, "worst": 0.0, "worst_bytes": 0, "early": 0, "resident": 0}
        report["found"] = {f"the {search} search hung or broke off, see above": ""}
    return report


def _tell(target: str, reports: list[dict[str, Any]], guided: int) -> int:
    found = {what: path for report in reports for what, path in report["found"].items()}
    worst = max(reports, key=lambda report: report["worst"])
    last = reports[-1]
    print(
        f"{target}: {sum(report['executions'] for report in reports)} executions "
        f"({sum(report['executions'] for report in reports[:guided])} of them guided) "
        f"in {sum(report['seconds'] for report in reports):.0f} s, "
        f"worst {worst['worst']:.3f} s ({worst['worst_bytes']} bytes), "
        f"memory {last['early'] / 2**20:.0f} MB at 10 %, {last['resident'] / 2**20:.0f} MB at the end, "
        f"{len(found)} violations",
        flush=True,
    )
    for what, path in found.items():
        print(f"  {what} {path}", flush=True)
    return 1 if found else 0


def _guided(arguments: argparse.Namespace) -> NoReturn:
    import atheris

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["tfs_lite"]):
        target, mutate = _load(arguments)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 3 == 0:
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        return mutate(data, random.Random(seed))[:max_size]

    run = _run(arguments, target, may_grow=True)
    flags = [f"-max_len={MAX_LENGTH}", f"-timeout={SECONDS_TO_WAIT}", "-rss_limit_mb=0", "-verbosity=0"]
    flags.append(f"-artifact_prefix={FOUND}/{arguments.target}-")
    corpora = [arguments.corpus, str(HERE / "corpus" / arguments.target)]
    atheris.Setup([sys.argv[0], *flags, *corpora], run.one, custom_mutator=mutator)
    atheris.Fuzz()
    run.end()


def _plain(arguments: argparse.Namespace) -> NoReturn:
    target, mutate = _load(arguments)
    chance = random.Random(arguments.seed)
    directories = [HERE / "corpus" / arguments.target, Path(arguments.corpus)]
    seeds = [path.read_bytes() for directory in directories for path in sorted(directory.iterdir())]
    run = _run(arguments, target, may_grow=False)
    for seed in seeds:
        run.one(seed)
    while True:
        data = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = mutate(data, chance)[:MAX_LENGTH]
        run.one(data)


def _load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The target and its mutator. With everything imported, what follows is quiet: the targets look at the answers."""
    from mutators import MUTATORS, either, of_bytes
    from targets import TARGETS
    from targets_generation import PREPARE
    from targets_programs import prepare_programs

    prepare = {**PREPARE, "program": prepare_programs}
    if arguments.target in prepare:
        prepare[arguments.target]()
    logging.disable(logging.WARNING)
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("error", RuntimeWarning)
    own = MUTATORS[arguments.target]
    return TARGETS[arguments.target], either(own, own, of_bytes)


def _run(arguments: argparse.Namespace, target: Any, may_grow: bool) -> Any:
    from run import Run

    return Run(arguments.target, target, arguments.seconds, FOUND, arguments.keep_going, may_grow)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=sorted(path.name for path in (HERE / "corpus").iterdir()))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--corpus", help="a directory for inputs that reach something new; used again next time")
    parser.add_argument("--keep-going", action="store_true", help="look for more after the first violation")
    parser.add_argument("--seed", type=int, default=1, help="of the random search")
    parser.add_argument("--search", choices=(GUIDED, PLAIN), help="only one search, in this process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
