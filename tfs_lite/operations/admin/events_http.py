"""``GET /v1/events``: events as a JSON page, which may wait for them, or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from tfs_lite.operations.admin.events import FIELDS, EventFeed, Reader, WantedEvents, wanted_events
from tfs_lite.operations.admin.schemas import events_schema
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.http.message import Request, Response, StreamResponse
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.router import GET, About, OwnPages, Route, Tree
from tfs_lite.transport.table import Scope

PATH = "/v1/events"
PING = b": nothing has happened\n\n"
WRITE_TIMEOUT = 10.0
"""Seconds after which a reader of the stream that takes nothing is cut."""
_HEADERS = {"cache-control": "no-store"}
_STREAM_HEADERS = {**_HEADERS, "x-accel-buffering": "no"}
_ABOUT = About(
    "events",
    "What happened, and who wanted it: ?model=&kind=&after=&limit=&wait=SECONDS; as a stream for text/event-stream.",
    "Events",
    ("400", "405", "503"),
    media_types=("application/json", "text/event-stream"),
)


class EventsApi(OwnPages[None]):
    """The route for events, on the event loop. ``may_manage`` tells which clients may see the paths of files."""

    def __init__(self, feed: EventFeed, may_manage: Callable[[Request], bool]) -> None:
        self._feed = feed
        self._may_manage = may_manage

    def routes(self) -> Iterator[Route[None]]:
        yield Route(PATH, GET, self.events, packs=True, about=_ABOUT, scope=Scope.READ, checks_models=True)

    def schemas(self) -> Mapping[str, Tree]:
        return {"Events": events_schema()}

    def target(self, names: Mapping[str, str]) -> None:
        return None

    async def events(self, request: Request, target: None) -> Response | StreamResponse:
        wanted = wanted_events(request.fields(FIELDS))
        reader = Reader(request.grant.allows, self._may_manage(request))
        if not _wants_stream(request):
            page = await self._feed.page(wanted, reader)
            return Response(orjson.dumps(page.as_json), 200, JSON.media_type, _HEADERS)
        last_seen = _last_seen(request)
        if last_seen is not None:
            wanted = replace(wanted, after=last_seen)
        self._feed.admit()
        chunks = self._chunks(wanted, reader)
        return StreamResponse(chunks, 200, EVENT_TYPE, _STREAM_HEADERS, write_timeout=WRITE_TIMEOUT)

    async def _chunks(self, wanted: WantedEvents, reader: Reader) -> AsyncIterator[bytes]:
        async for page in self._feed.stream(wanted, reader):
            yield b"".join(map(_sent, page.events)) or PING


def _sent(found: Mapping[str, Any]) -> bytes:
    return b"id: %d\n" % found["seq"] + event(orjson.dumps(found))


def _wants_stream(request: Request) -> bool:
    return b"text/event-stream" in request.headers.fields.get(b"accept", b"").lower()


def _last_seen(request: Request) -> int | None:
    """The last event that a browser which connects again has seen; None on its first connection."""
    sent = request.headers.fields.get(b"last-event-id", b"")
    return int(sent) if sent.isdigit() and len(sent) <= 18 else None
