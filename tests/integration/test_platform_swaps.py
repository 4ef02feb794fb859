"""On every platform, versions and damaged versions arrive while clients call without pause; and many loads of one."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.support.platforms.tagged import TAGGED
from tests.support.servers.probe import Probe, Traffic
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.publish import publish

CLIENTS = 4
SWAPS = 5
CYCLES = 20
SLACK = 10 << 20
MEGABYTES = 40
SETTLED = {"language": CYCLES // 2}
"""The loads after which memory may not grow any more; 2 of other kinds. The weights of a language model are read in a
thread of each load. Of what such a thread has freed glibc keeps up to 64 MB, and the next ones take their heaps in any
order, so that it takes some loads until all these heaps have had a version in them."""
LOAD_SECONDS = 120.0
QUICK = ("onnxruntime_onnx",)
"""In every run; the others are marked ``load``. See also ``test_swaps_under_load``, with exported programs."""
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.load) for name in TAGGED]


def flags(name: str, base: Path) -> tuple[str, ...]:
    trusted = (f"--trusted_model_base_paths={base}",) if TAGGED[name].needs_trust else ()
    return ("--model_name=tagged", f"--model_base_path={base}", "--max_num_load_retries=0", *trusted)


def cut_largest_file(directory: Path) -> None:
    largest = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL)
def test_swaps_under_load_lose_nothing_and_bad_files_disturb_nobody(tmp_path: Path, name: str) -> None:
    platform = TAGGED[name]
    if platform.lacks():
        pytest.skip(f"needs {platform.lacks()}")
    (tmp_path / "scratch").mkdir()
    base, drafts, write = tmp_path / "tagged", tmp_path / "drafts", platform.writer(tmp_path / "scratch", 0)

    def arrive(version: int, whole: bool = True) -> None:
        draft = write(version, drafts)
        if not whole:
            cut_largest_file(draft)
        publish(str(draft), str(base), version)

    arrive(1)
    with ServerProcess(*flags(name, base), "--enable_batching") as server, Probe(server) as probe:
        probe.wait_available("tagged", 1, LOAD_SECONDS)
        last = 1
        with Traffic(server.target, "tagged", CLIENTS, inputs=platform.inputs, is_true=platform.is_true) as traffic:
            for version in range(2, 2 * SWAPS + 2):
                arrive(version, whole=version % 2 == 0)
                if version % 2:
                    probe.wait_failed("tagged", version, LOAD_SECONDS)
                    continue
                probe.wait_available("tagged", version, LOAD_SECONDS)
                probe.wait_states("tagged", {last: "END"}, LOAD_SECONDS)
                last = version
        process = psutil.Process(server.pid)
        wait_until(lambda: len(model_processes(process)) <= 1, "the processes of old versions are gone")
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert len(traffic.answers) > SWAPS / 2, "the clients saw too few of the versions to prove anything"


@pytest.mark.load
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TAGGED)
def test_memory_after_twenty_loads_is_that_after_the_first_ones(tmp_path: Path, name: str) -> None:
    platform = TAGGED[name]
    if platform.lacks():
        pytest.skip(f"needs {platform.lacks()}")
    (tmp_path / "scratch").mkdir()
    base, write = tmp_path / "tagged", platform.writer(tmp_path / "scratch", MEGABYTES)
    publish(str(write(1, tmp_path / "drafts")), str(base), 1)
    away, there = base / ".away", base / "1"
    polls_seldom = "--file_system_poll_wait_seconds=60"
    with ServerProcess(*flags(name, base), polls_seldom) as server, Probe(server) as probe:
        process, sizes = psutil.Process(server.pid), list[int]()
        for _ in range(CYCLES):
            probe.wait_available("tagged", 1, LOAD_SECONDS)
            inputs = platform.inputs(0)
            assert platform.is_true(inputs, probe.client.predict("tagged", inputs))
            there.rename(away)
            probe.wait_states("tagged", {1: "END"}, LOAD_SECONDS)
            sizes.append(process.memory_info().rss + sum(child.memory_info().rss for child in model_processes(process)))
            away.rename(there)
    said = f"{name}: MiB after each unload: {[size >> 20 for size in sizes]}"
    assert sizes[-1] <= max(sizes[1 : SETTLED.get(name, 2)]) + SLACK, said
    print(said)


def model_processes(server: psutil.Process) -> list[psutil.Process]:
    """All but the helper from which they are forked."""
    return [child for child in server.children(recursive=True) if child.name() == "tfs-lite-model"]
