"""Answers of models that may be given again to an equal request: Triton's response cache.

    key of the request (model, version, signature, inputs, outputs)  ->  lookup  ->  hit: the answer
                                                                             `->  miss: run, then insert

One cache for all models of a server, bounded in bytes: least recently used answers are evicted first. An entry is found
by a digest of everything that the answer depends on; inputs are not kept.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import Array

DIGEST_BYTES = 32
ENTRY_BYTES = 512
"""The bytes that an entry costs, about, in addition to its arrays."""
ARRAY_BYTES = 256
TEXT_BYTES = 48
"""The bytes that each element of an array of texts costs in addition to its own."""

_NUMBER = struct.Struct("<q")
Outputs = Mapping[str, Tensor]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counts of one version. ``hit_seconds`` is the time of lookups that found something, ``miss_seconds`` that of
    lookups that did not and of inserting. ``too_large`` counts answers that have no room even in an empty cache."""

    hits: int = 0
    misses: int = 0
    hit_seconds: float = 0.0
    miss_seconds: float = 0.0
    too_large: int = 0


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The use of the whole cache now; ``evictions`` since the start."""

    max_bytes: int
    bytes: int
    entries: int
    evictions: int


@dataclass(frozen=True, slots=True)
class _Entry:
    id: ServableId
    outputs: Outputs
    bytes: int


def request_key(servable_id: ServableId, call: PredictCall, loads: Sequence[int] = ()) -> bytes:
    """A digest of what the answer depends on: the model and its version, the signature, name, dtype, shape and values
    of every input, whatever their order, which outputs are wanted, and the ``loads`` of the version and of the others
    that take part. Priority, timeout and deadline do not count."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _add_texts(digest, (servable_id.name, str(servable_id.version), call.signature))
    _add_texts(digest, map(str, loads))
    _add_texts(digest, sorted(call.outputs))
    for name in sorted(call.inputs):
        array = np.asarray(cast(Array, call.inputs[name]))
        _add_texts(digest, (name, array.dtype.str, array.dtype.name))
        digest.update(struct.pack(f"<{array.ndim + 1}q", array.ndim, *array.shape))
        _add_values(digest, array)
    return digest.digest()


class ResponseCache:
    """A cache of answers, for any thread. ``open`` before the first call of a load of a version, ``forget`` after its
    last."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes`` is for all answers together, with what it costs to keep them."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards the fields below
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the least recently used first
        self._keys: dict[ServableId, set[bytes]] = {}
        self._counts: dict[ServableId, CacheCounts] = {}
        self._open: Counter[ServableId] = (
            Counter()
        )  # a version may be loaded again while it is loaded, to take its place
        self._bytes = 0
        self._evictions = 0

    def open(self, servable_id: ServableId) -> None:
        """Counts the version among those of :meth:`counts` from now on."""
        with self._lock:
            self._counts.setdefault(servable_id, CacheCounts())
            self._open[servable_id] += 1

    def replaced(self, servable_id: ServableId) -> None:
        """Records that another load of the version has taken its place, and counts from zero. Earlier answers are not
        asked for any more: they go."""
        self.flush(servable_id)
        with self._lock:
            if servable_id in self._counts:
                self._counts[servable_id] = CacheCounts()

    def forget(self, servable_id: ServableId) -> None:
        """A load of the version is unloaded: its answers go, and with the last load the counts."""
        self.flush(servable_id)
        with self._lock:
            self._open[servable_id] -= 1
            if self._open[servable_id] <= 0:
                del self._open[servable_id]
                self._counts.pop(servable_id, None)

    def lookup(self, key: bytes) -> Outputs | None:
        """The answer; its arrays are read-only."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.outputs

    def insert(self, servable_id: ServableId, key: bytes, outputs: Outputs) -> bool:
        """Keeps copies of the arrays, and drops older answers to make room; returns False if there can be none."""
        size = _size(outputs)
        if size > self._max_bytes:
            logger.debug(
                "an answer of %s is not kept: it takes %d bytes, the cache %d", servable_id, size, self._max_bytes
            )
            return False
        entry = _Entry(servable_id, {name: _copy(array) for name, array in outputs.items()}, size)
        gone = []
        with self._lock:
            if key in self._entries:
                gone.append(self._pop(key))
            while self._bytes + size > self._max_bytes:
                gone.append(self._pop(next(iter(self._entries))))
                self._evictions += 1
            self._entries[key] = entry
            self._keys.setdefault(servable_id, set()).add(key)
            self._bytes += size
        del gone  # here, because to free arrays may take long
        return True

    def flush(self, servable_id: ServableId) -> None:
        """Drops every answer of the version."""
        with self._lock:
            gone = [self._pop(key) for key in list(self._keys.get(servable_id, ()))]
        del gone

    def count(
        self, servable_id: ServableId, hits: int = 0, misses: int = 0, seconds: float = 0.0, too_large: int = 0
    ) -> None:
        """Adds to the counts of a version, unless it is not open. ``seconds`` are those of a hit where there is one."""
        with self._lock:
            old = self._counts.get(servable_id)
            if old is None:
                return
            self._counts[servable_id] = CacheCounts(
                old.hits + hits,
                old.misses + misses,
                old.hit_seconds + (seconds if hits else 0.0),
                old.miss_seconds + (0.0 if hits else seconds),
                old.too_large + too_large,
            )

    def counts(self) -> Mapping[ServableId, CacheCounts]:
        """The counts of every version that uses the cache."""
        with self._lock:
            return dict(self._counts)

    @property
    def use(self) -> CacheUse:
        with self._lock:
            return CacheUse(self._max_bytes, self._bytes, len(self._entries), self._evictions)

    def _pop(self, key: bytes) -> _Entry:
        """Takes an entry out, with the lock held."""
        entry = self._entries.pop(key)
        self._bytes -= entry.bytes
        keys = self._keys[entry.id]
        keys.discard(key)
        if not keys:
            del self._keys[entry.id]
        return entry


def _add_texts(digest: Any, texts: Iterable[str]) -> None:
    """Adds texts so that no two lists of texts are the same bytes."""
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(_NUMBER.pack(len(data)))
        digest.update(data)
    digest.update(_NUMBER.pack(-1))


def _add_values(digest: Any, array: Array) -> None:
    if array.dtype.kind in "OT":
        for element in array.ravel().tolist():
            data = element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogatepass")
            digest.update(_NUMBER.pack(len(data)))
            digest.update(data)
        return
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")


def _size(outputs: Outputs) -> int:
    return ENTRY_BYTES + sum(ARRAY_BYTES + 2 * len(name) + _array_bytes(array) for name, array in outputs.items())


def _array_bytes(tensor: Tensor) -> int:
    array = np.asarray(cast(Array, tensor))
    if array.dtype.kind not in "OT":
        return array.nbytes
    return array.nbytes + sum(TEXT_BYTES + len(element) for element in array.ravel().tolist())


def _copy(tensor: Tensor) -> Array:
    """A copy: rows of a batch would keep the whole batch, and their owner may write to them."""
    array = np.array(cast(Array, tensor), order="C")
    array.flags.writeable = False
    return array
