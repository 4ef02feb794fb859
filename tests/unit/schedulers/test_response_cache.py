"""Keys, bytes and the order of leaving of the response cache."""

from __future__ import annotations

import random
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.response_cache import ARRAY_BYTES, ENTRY_BYTES, CacheCounts, ResponseCache, request_key

M1, M2 = ServableId("m", 1), ServableId("m", 2)
ONE = ENTRY_BYTES + ARRAY_BYTES + 2 + 1000
"""Bytes of an answer of ``answer``."""


def answer(fill: int = 0, size: int = 1000) -> dict[str, Any]:
    return {"y": np.full(size, fill, np.uint8)}


def key(
    inputs: dict[str, Any], outputs: tuple[str, ...] = (), signature: str = "s", id: ServableId = M1, **rest
) -> bytes:
    return request_key(id, PredictCall(signature, inputs, outputs, None, lambda result: None, **rest))


X = np.arange(6, dtype=np.float32)


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    "other",
    [
        key({"x": X}, id=M2),
        key({"x": X}, id=ServableId("n", 1)),
        key({"x": X}, signature="t"),
        key({"x": X}, ("y",)),
        key({"z": X}),
        key({"x": X + 1}),
        key({"x": X.reshape(2, 3)}),
        key({"x": X.reshape(1, 6)}),
        key({"x": X.view(np.int32)}),
        key({"x": X.view(np.uint8)}),
        key({"x": X, "z": X}),
        key({}),
    ],
    ids=[
        *("version", "model", "signature", "outputs", "name", "values", "shape", "rank", "dtype", "width"),
        *("more", "none"),
    ],
)
def test_requests_that_differ_in_what_the_answer_depends_on_have_different_keys(other):
    assert other != key({"x": X})


def test_requests_that_mean_the_same_have_the_same_key():
    assert key({"x": X, "z": X + 1}, ("a", "b")) == key({"z": X + 1, "x": X}, ("b", "a"))
    assert key({"x": X}, priority=3, timeout=1.0) == key({"x": X})
    every_second = np.arange(12, dtype=np.float32)[::2]
    assert key({"x": every_second}) == key({"x": every_second.copy()}) != key({"x": X})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (texts(b"a", b"bc"), texts(b"ab", b"c")),
        (texts(b"", b"a"), texts(b"a", b"")),
        (texts(b"ab"), texts(b"a", b"b")),
        (np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, np.float16)),
        (np.zeros(2, ml_dtypes.float8_e5m2), np.zeros(2, ml_dtypes.float8_e4m3fn)),
        (np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)),
        (np.float32(1), np.full(1, 1, np.float32)),
    ],
    ids=["cut", "order", "joined", "half", "eighth", "empty", "scalar"],
)
def test_values_that_look_alike_have_different_keys(one, other):
    assert key({"x": one}) == key({"x": one.copy()})
    assert key({"x": one}) != key({"x": other})


def test_an_answer_comes_back_read_only_and_on_its_own():
    cache = ResponseCache(10 * ONE)
    batch = np.arange(2000, dtype=np.uint8)
    cache.insert(M1, b"k", {"y": batch[:1000]})
    batch[:] = 0
    found = cache.lookup(b"k")
    assert found is not None
    assert found["y"].tolist() == [number % 256 for number in range(1000)]
    assert found["y"].base is None
    with pytest.raises(ValueError, match="read-only"):
        found["y"][0] = 1


def test_what_was_used_least_recently_goes_first():
    cache = ResponseCache(2 * ONE)
    cache.insert(M1, b"a", answer(1))
    cache.insert(M1, b"b", answer(2))
    assert cache.lookup(b"a") is not None
    cache.insert(M1, b"c", answer(3))
    assert cache.lookup(b"b") is None
    assert cache.lookup(b"a")["y"][0] == 1
    assert cache.lookup(b"c")["y"][0] == 3
    assert (cache.use.bytes, cache.use.entries, cache.use.evictions) == (2 * ONE, 2, 1)


def test_a_large_answer_makes_room_for_itself_unless_it_is_larger_than_the_cache():
    cache = ResponseCache(3 * ONE)
    for name in (b"a", b"b", b"c"):
        cache.insert(M1, name, answer())
    assert not cache.insert(M1, b"large", answer(size=3 * ONE))
    assert cache.use.entries == 3
    assert cache.insert(M1, b"large", answer(size=1000 + ONE))
    assert [name for name in (b"a", b"b", b"c") if cache.lookup(name) is not None] == [b"c"]
    assert cache.use.bytes == 3 * ONE


def test_an_answer_that_is_inserted_again_replaces_the_old_one_and_is_flushed_with_its_version():
    cache = ResponseCache(10 * ONE)
    cache.insert(M1, b"k", answer(1))
    cache.insert(M1, b"k", answer(2))
    assert cache.lookup(b"k")["y"][0] == 2
    assert (cache.use.bytes, cache.use.entries, cache.use.evictions) == (ONE, 1, 0)
    cache.insert(M2, b"b", answer())
    cache.flush(M1)
    assert cache.lookup(b"k") is None
    assert cache.lookup(b"b") is not None
    assert (cache.use.bytes, cache.use.evictions) == (ONE, 0)


def test_texts_count_with_their_bytes():
    cache = ResponseCache(5000)
    assert not cache.insert(M1, b"k", {"y": texts(b"x" * 5000)})
    assert cache.insert(M1, b"k", {"y": texts(b"x" * 4000)})
    assert cache.use.bytes > 4000


def test_counts_are_those_of_open_versions():
    cache = ResponseCache(ONE)
    cache.count(M1, hits=1)
    cache.open(M1)
    assert cache.counts() == {M1: CacheCounts()}
    cache.count(M1, hits=1, seconds=0.5)
    cache.count(M1, misses=1, seconds=0.25)
    cache.count(M1, seconds=0.25, too_large=1)
    assert cache.counts() == {M1: CacheCounts(1, 1, 0.5, 0.5, 1)}
    cache.insert(M1, b"a", answer())
    cache.forget(M1)
    assert cache.counts() == {}
    assert cache.lookup(b"a") is None


@pytest.mark.parametrize("seed", range(10))
def test_the_bytes_are_those_of_what_is_kept_whatever_happens(seed):
    rng = random.Random(seed)
    cache = ResponseCache(5 * ONE)
    recent: dict[bytes, tuple[ServableId, int, int]] = {}  # in the order of use; size and contents
    for step in range(400):
        name = bytes([rng.randrange(12)])
        action = rng.random()
        if action < 0.5:
            servable_id, size = rng.choice([M1, M2]), rng.choice([10, 1000, 3000, 6 * ONE])
            kept = cache.insert(servable_id, name, answer(step % 256, size))
            assert kept == (size < 5 * ONE)
            if kept:
                recent.pop(name, None)
                recent[name] = (servable_id, size, step % 256)
                while sum(ONE - 1000 + size for _, size, _ in recent.values()) > 5 * ONE:
                    del recent[next(iter(recent))]
        elif action < 0.95:
            found = cache.lookup(name)
            assert (found is not None) == (name in recent)
            if found is not None:
                recent[name] = recent.pop(name)
                assert (found["y"].size, found["y"][0]) == recent[name][1:]
        else:
            cache.flush(M1)
            recent = {name: entry for name, entry in recent.items() if entry[0] != M1}
        assert cache.use.bytes == sum(ONE - 1000 + size for _, size, _ in recent.values())
        assert cache.use.entries == len(recent)


def test_many_threads_never_exceed_the_bytes():
    cache = ResponseCache(4 * ONE)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                fill = rng.randrange(8)
                found = cache.lookup(bytes([fill]))
                assert found is None or (found["y"] == fill).all()
                cache.insert(rng.choice([M1, M2]), bytes([fill]), answer(fill))
                assert cache.use.bytes <= 4 * ONE
                if rng.random() < 0.05:
                    cache.flush(M2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    cache.flush(M1)
    cache.flush(M2)
    assert (cache.use.bytes, cache.use.entries) == (0, 0)
