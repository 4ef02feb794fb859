from __future__ import annotations

import asyncio
import threading

from tfs_lite.server.http.heap_trimmer import LARGE_BYTES, HeapTrimmer
from tfs_lite.server.runtime.event_loop import BackgroundRunner


def run(sizes: list[int]) -> int:
    """How often the heap was trimmed after bodies of these sizes, which came at once."""
    trims: list[str] = []

    async def main() -> None:
        runner = BackgroundRunner("test", 1, 4)
        trimmer = HeapTrimmer(runner, lambda: trims.append(threading.current_thread().name), delay=0.0)
        for size in sizes:
            trimmer.note(size)
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.run(lambda: None)
        trimmer.close()
        runner.close()

    asyncio.run(main())
    assert all(name.startswith("tfs-test") for name in trims)
    return len(trims)


def test_the_heap_is_trimmed_once_after_large_bodies_on_a_thread_of_its_own() -> None:
    assert run([LARGE_BYTES, 10 * LARGE_BYTES, LARGE_BYTES]) == 1


def test_small_bodies_leave_the_heap_alone() -> None:
    assert run([1, LARGE_BYTES - 1]) == 0


async def test_nothing_happens_after_the_end() -> None:
    runner, trims = BackgroundRunner("test", 1, 4), list[str]()
    trimmer = HeapTrimmer(runner, lambda: trims.append("trimmed"), delay=0.0)
    trimmer.note(LARGE_BYTES)
    trimmer.close()
    for _ in range(3):
        await asyncio.sleep(0)
    await runner.run(lambda: None)  # behind whatever has been begun
    assert trims == []
    runner.close()
