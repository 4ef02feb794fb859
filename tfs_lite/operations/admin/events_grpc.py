"""``tfs_lite.AdminService/Events``: what there is and then what comes, one event a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import orjson

from tfs_lite.operations.admin.events import FIELDS, EventFeed, Reader, WantedEvents, wanted_events
from tfs_lite.operations.admin.grpc_service import read_question
from tfs_lite.protocols.messages import AdminResponse
from tfs_lite.transport.table import CallContext, Method, Scope, server_stream

PATH = "/tfs_lite.AdminService/Events"
ASKED = tuple(name for name in FIELDS if name != "wait")


class EventsMethod:
    """The method for events, on the event loop. ``may_manage`` tells which callers may see the paths of files."""

    def __init__(self, feed: EventFeed, may_manage: Callable[[CallContext], bool]) -> None:
        self._feed = feed
        self._may_manage = may_manage

    def methods(self) -> list[Method]:
        return [server_stream(PATH, self.events, scope=Scope.READ, models=_filtered)]

    async def events(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        """The stream ends when the server drains."""
        wanted = _read(data)
        self._feed.admit()
        async for page in self._feed.stream(wanted, Reader(context.grant.allows, self._may_manage(context))):
            for found in page.events:
                encoded: bytes = AdminResponse(json=orjson.dumps(found)).SerializeToString()
                yield encoded


def _filtered(data: bytes) -> tuple[str, ...]:
    """No model to be checked beforehand: a caller gets the events of those that it may see."""
    return ()


def _read(data: bytes) -> WantedEvents:
    return wanted_events(read_question(data, ASKED))
