"""Versions of every kind of model are pushed to one server while clients call: nothing is lost, and nothing grows."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.platforms.tagged import TAGGED, Write
from tests.support.servers.probe import Probe, Traffic
from tests.support.servers.process import ServerProcess, default_command

KINDS = tuple(name for name, kind in TAGGED.items() if name != "pytorch_aoti" and not kind.lacks())
"""What can be made here. A compiled program, which takes long to make, is swapped as any exported one is."""
SELDOM = {"tensorflow_savedmodel": 20}
"""These are pushed only in each so manieth turn: a process of its own imports TensorFlow for each version."""
PUSHES, CALLERS, MODELS = 500, 12, 20
LOAD_THREADS = 1
"""The default of ``--num_load_threads``."""
LOAD_SECONDS = 120.0
MEMORY_SLACK = 16 << 20
"""What the late versions may have more than the early ones, in bytes: allocators and caches still settle."""
BUSY = {"LOAD_BEGUN"}
OVER = {"AVAILABLE", "LOAD_ATTEMPT_FAILED", "ENDED"}
"""Kinds of events after which a version is, and is not, being loaded."""


class Pushed:
    """A repository, with versions beside it that one rename each publishes. They are all written beforehand: a version
    whose files are new waits until it is surely complete. ``models``: the kind and the last version of each by name."""

    def __init__(self, folder: Path, models: Mapping[str, tuple[str, int]]) -> None:
        self.served, self._aside = folder / "served", folder / "aside"
        self.kinds = {name: kind for name, (kind, _) in models.items()}
        writers: dict[str, Write] = {}
        for name, (kind, last) in models.items():
            if kind not in writers:
                (scratch := folder / "scratch" / kind).mkdir(parents=True)
                writers[kind] = TAGGED[kind].writer(scratch, 0)
            for version in range(1, last + 1):
                writers[kind](version, self._aside / name)
            (self.served / name).mkdir(parents=True)
            self.push(name, 1)

    def push(self, name: str, version: int) -> None:
        (self._aside / name / str(version)).rename(self.served / name / str(version))

    def remove(self, name: str, version: int) -> None:
        shutil.rmtree(self.served / name / str(version))


@contextlib.contextmanager
def serving(pushed: Pushed) -> Iterator[tuple[ServerProcess, Probe]]:
    """A server with default flags that has loaded the first version of each model. It is no fork of another process,
    whose memory would be counted with its own."""
    trusted = [name for name, kind in pushed.kinds.items() if TAGGED[kind].needs_trust]
    flags = [f"--trusted_model_base_paths={','.join(str(pushed.served / name) for name in trusted)}"] if trusted else []
    with (
        ServerProcess(f"--model_repository={pushed.served}", *flags, command=default_command()) as server,
        Probe(server) as probe,
    ):
        for name in pushed.kinds:
            probe.wait_available(name, 1, LOAD_SECONDS)
        yield server, probe


@contextlib.contextmanager
def calling(server: ServerProcess, pushed: Pushed, callers: int) -> Iterator[Mapping[str, Traffic]]:
    """So many callers, the models in turn; by model. Nothing of what they got is lost, wrong or from before."""
    found = dict[str, Traffic]()
    with contextlib.ExitStack() as stack:
        for index, (name, kind) in enumerate(pushed.kinds.items()):
            if threads := len(range(index, callers, len(pushed.kinds))):
                tagged = TAGGED[kind]
                traffic = Traffic(server.target, name, threads, inputs=tagged.inputs, is_true=tagged.is_true)
                found[name] = stack.enter_context(traffic)
        yield found
    for name, traffic in found.items():
        said = f"{name}: {traffic.total} answers of {len(traffic.answers)} versions"
        assert (traffic.failures, traffic.wrong, traffic.backwards) == ([], [], 0), said
        print(said)


def processes(server: ServerProcess) -> list[psutil.Process]:
    root = psutil.Process(server.pid)
    return [root, *root.children(recursive=True)]


def own_bytes(server: ServerProcess) -> int:
    """The memory of all its processes that is no file's; what several of them share is divided among them. What a
    process counts of a library depends on who else on the machine has it."""
    found = 0
    for process in processes(server):
        with contextlib.suppress(OSError):
            rows = (line.split() for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines())
            found += sum(int(row[1]) << 10 for row in rows if row[0] in ("Pss_Anon:", "Pss_Shmem:"))
    return found


def removed_files(server: ServerProcess, folder: Path) -> set[str]:
    """Those below the folder that one of its processes still has in memory."""
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in processes(server)]
    lines = (line for text in maps for line in text.splitlines() if f" {folder}/" in line and "(deleted)" in line)
    return {line.split(maxsplit=5)[5] for line in lines}


def events(server: ServerProcess, after: int) -> Mapping[str, Any]:
    path = "/v1/events?limit=1000" + (f"&after={after}" if after else "")
    status, body = server.get(path)
    assert status == 200
    found: Mapping[str, Any] = json.loads(body)
    return found


def most_loads_at_once(told: Sequence[Mapping[str, Any]]) -> int:
    """Of the loads that these events tell of."""
    running, most = set[tuple[str, int]](), 0
    for event in sorted(told, key=lambda event: event["seq"]):
        version = (event["model"], event["version"])
        if event["kind"] in BUSY:
            running.add(version)
        elif event["kind"] in OVER:
            running.discard(version)
        most = max(most, len(running))
    return most


def in_turns() -> list[list[tuple[str, int]]]:
    """The kinds and versions of each turn, ``PUSHES`` in all; they follow version 1."""
    turns, left, last = list[list[tuple[str, int]]](), PUSHES, Counter[str]()
    while left:
        kinds = [kind for kind in KINDS if len(turns) % SELDOM.get(kind, 1) == 0][:left]
        last.update(kinds)
        turns.append([(kind, last[kind] + 1) for kind in kinds])
        left -= len(kinds)
    return turns


@pytest.mark.load
@pytest.mark.timeout(900)
def test_five_hundred_versions_of_every_kind_in_turn_lose_nothing(tmp_path: Path) -> None:
    turns = in_turns()
    last = dict(version for turn in turns for version in turn)
    pushed, sizes = Pushed(tmp_path, {name: (name, version) for name, version in last.items()}), list[int]()
    with serving(pushed) as (server, probe), calling(server, pushed, CALLERS) as traffic:
        for turn in turns:
            for name, version in turn:
                pushed.push(name, version)
            for name, version in turn:
                probe.wait_available(name, version, LOAD_SECONDS)
                probe.wait_states(name, {version - 1: "END"}, LOAD_SECONDS)
                pushed.remove(name, version - 1)
            sizes.append(own_bytes(server))
        left = removed_files(server, pushed.served)
    assert left == set(), "versions that have ended are still mapped"
    for name, found in traffic.items():
        assert len(found.answers) > last[name] / 2, f"the callers of {name} saw too few versions to prove anything"
    fifth = len(sizes) // 5
    early, late = statistics.median(sizes[fifth : 2 * fifth]), statistics.median(sizes[-fifth:])
    said = f"{PUSHES} pushes, {early / 2**20:.0f} MiB early, {late / 2**20:.0f} late, {max(sizes) / 2**20:.0f} at most"
    assert late <= early + MEMORY_SLACK, f"{said}; after each turn: {[size >> 20 for size in sizes]}"
    print(said)


@pytest.mark.load
@pytest.mark.timeout(300)
def test_twenty_models_that_change_at_once_are_loaded_one_after_the_other(tmp_path: Path) -> None:
    kinds = [KINDS[number % len(KINDS)] for number in range(MODELS)]
    pushed = Pushed(tmp_path, {f"{kind}_{number:02}": (kind, 2) for number, kind in enumerate(kinds)})
    with serving(pushed) as (server, probe), calling(server, pushed, MODELS) as traffic:
        before = events(server, 0)["next"]
        for name in pushed.kinds:
            pushed.push(name, 2)
        for name in pushed.kinds:
            probe.wait_available(name, 2, LOAD_SECONDS)
            probe.wait_states(name, {1: "END"}, LOAD_SECONDS)
        seen = {name: found.answers[2] for name, found in traffic.items()}
        told = events(server, before)["events"]
    begun = [(event["model"], event["version"]) for event in told if event["kind"] == "LOAD_BEGUN"]
    assert sorted(begun) == sorted((name, 2) for name in pushed.kinds), "each is loaded once"
    assert most_loads_at_once(told) == LOAD_THREADS, [event["text"] for event in told]
    print(f"{MODELS} models, one load at a time, answers of the new versions: {seen}")
