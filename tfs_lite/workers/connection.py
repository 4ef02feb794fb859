"""The server's side of one process with an open model, wherever that process is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.arena import DEFAULT_LIMIT, Arena
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.request_channel import ChannelPool, RequestChannel
from tfs_lite.workers.sandbox import Sandbox
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.wire import Description


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The model to open in a process of its own, and how to open it.

    ``label`` names it in messages, e.g. ``model m version 1``. ``function``, as ``module:function``, is called in the
    process with ``arguments`` (JSON) and returns the model. ``memory_limit``, in bytes, bounds the inputs and the
    outputs of one run each; ``close_seconds`` is how long the model may take to close. ``item_channels`` is how many
    requests may be in ``preprocess`` and ``postprocess`` at once. ``preload`` are modules that the fork server imports
    before it forks the process. The process enters ``sandbox`` before it calls the function. ``require_files`` raises
    ServingError if the model's files are others than they were at first; it is asked before and after each opening.
    """

    label: str
    function: str
    arguments: str
    memory_limit: int = DEFAULT_LIMIT
    close_seconds: float = 10.0
    item_channels: int = 2
    preload: tuple[str, ...] = ()
    sandbox: Sandbox | None = None
    require_files: Callable[[], None] = ignore


class Lane:
    """Memory for the tensors of one run at a time, which outlives connections. One thread at a time."""

    def __init__(self, remote: RemoteModel) -> None:
        self.inputs = Staging(Arena.create(remote.memory_limit, f"{remote.label}: the inputs of a run"))
        self.outputs = Arena.create(remote.memory_limit, f"{remote.label}: the outputs of a run")

    def close(self) -> None:
        self.inputs.close()
        self.outputs.close()


class WorkerConnection(ABC):
    """A process with an open model. Threads: any; ``runs`` has a channel for each lane.

    ``verdict`` says why the process was given up, as far as the server knows it already.
    """

    def __init__(
        self, runs: Sequence[RequestChannel], items: Sequence[RequestChannel], description: Description
    ) -> None:
        self.runs = tuple(runs)
        self.description = description
        self.opened = time.monotonic()
        self._items = ChannelPool(items)

    def call_step(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Array]:
        """Runs a step of a request. Raises as :meth:`ChannelPool.call`."""
        return self._items.call(what, signature, tensors, deadline)

    def finish(self) -> None:
        """Closes the channels, each after the request in it. Later ones find them closed, unread."""
        for channel in self.runs:
            channel.finish()
        self._items.finish()

    def shut_down(self) -> None:
        """Threads that wait for an answer find the connection closed."""
        for channel in self.runs:
            channel.shut_down()
        self._items.shut_down()

    def free(self) -> None:
        """Frees the connection of a process that has ended."""
        self.shut_down()
        for channel in self.runs:
            channel.close()
        self._items.close()

    @property
    @abstractmethod
    def pid(self) -> int | None: ...

    @property
    @abstractmethod
    def verdict(self) -> str: ...

    @abstractmethod
    def is_same_process(self, other: WorkerConnection) -> bool:
        """Whether it leads to the very process that ``other`` led to, with all that the model has in memory."""

    @abstractmethod
    def on_end(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once the process has ended or is lost, on a thread of the connection; at once if it has. The
        call must be short and must not raise."""

    @abstractmethod
    def kill_for(self, garbage: ProtocolError) -> None:
        """Gives the process up because it has broken the protocol."""

    @abstractmethod
    def cause(self) -> str:
        """Why the process has ended. Waits for its end, and makes sure of it, for a bounded time."""

    @abstractmethod
    def close(self) -> None:
        """Ends what the server has of the process, in order, and frees the connection."""
