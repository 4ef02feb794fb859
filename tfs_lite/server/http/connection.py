"""One HTTP connection: uvicorn's, with limits to its patience and to what it keeps, and a short way for small requests.

A connection without the whole head of a request is closed after a while, and one whose client has stopped reading its
answer is cut; ``look`` sees to both. Requests that come before the one ahead of them is answered wait their turn. A few
of them are parsed, what follows is kept as it came, and no more is read.

What is broken ends the connection: after the answers to what came before it, with a 400 unless an answer has begun.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tfs_lite.server.http.head_checks import MAX_HEAD_BYTES, MAX_HEADERS, BadHead, check_head, without_upgrade
from tfs_lite.server.http.lingering_close import LingeringTransport
from tfs_lite.server.http.short_path import BufferedRequest, WholeApp, read_whole

ABORT, PATIENCE = "tfs_lite.abort", "tfs_lite.patience"
"""Extensions of a scope, for answers that take long: a function that cuts the connection at once, and one that is told
how many seconds the client may leave the answer unread."""
PIECE = 4 * 1024
"""Bytes parsed before it is looked at what they were: so many small requests may wait on a connection at once."""
MAX_WAITING_BYTES = 64 * 1024
"""Kept of what comes too early; with more of it no more is read, and so the client's going is not noticed either."""
BROKEN = "Invalid HTTP request received."


class _Flow(FlowControl):
    """Nobody resumes reading while it is ``held``."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """Runs on the event loop. Class attributes are set once, before the first connection."""

    timeout: float
    limit: int
    whole_app: WholeApp | None = None
    transport: Any
    flow: _Flow
    _socket: asyncio.Transport
    _lingering: LingeringTransport
    _receiving = False
    """Whether the client has ended the head of a request and not yet the request."""
    _silent = 0
    """Bytes that came since a head ended or a body went on."""
    _keep_alive = True
    _coming: BufferedRequest | None = None
    """Its head is there, its body is being read."""
    _whole: BufferedRequest | None = None
    """It is being answered."""
    _current: RequestResponseCycle | None = None
    """The same for the long way; ``cycle`` is the latest that was parsed."""
    _rest = b""
    """Came behind a request that waits its turn."""
    _broken = False
    _unread = 0
    """Bytes of answers that the client had not read when somebody looked last."""
    _unread_since = 0.0
    _patience = 0.0
    """How long the client may leave the answer at hand unread, in seconds, if that is longer than usual."""
    _since = 0.0
    """When it began to wait for a request, or to work on one."""

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._whole is not None or (self._current is not None and not self._current.response_complete)

    @property
    def age(self) -> tuple[bool, float]:
        """Who goes first when there are too many: the smallest."""
        return self.busy, self._since

    def _is_sending(self) -> bool:
        """Whether more may come that belongs to no next request."""
        return self._receiving or self._broken

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limit:
            self._make_room()
        self._socket = transport
        self._lingering = LingeringTransport(transport, self._is_sending, self.timeout)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self.flow = _Flow(self.transport)
        self._since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest = b""
        if self._whole is not None:
            self._whole.leave()
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()
        super().connection_lost(exc)
        self._lingering.closed()

    def shutdown(self) -> None:
        if self._whole is not None:
            self._whole.keep_alive = False
        elif self._current is not None and self.busy:
            self._current.keep_alive = False
        else:
            self.transport.close()

    def look(self, now: float) -> None:
        """Called now and then: ends what has taken too long. A client that goes on reading its answer may."""
        unread = self.transport.get_write_buffer_size()
        if not unread or not self._unread or unread < self._unread:
            self._unread_since = now
        self._unread = unread
        if unread:
            if now - self._unread_since >= max(self.timeout, self._patience):
                self.transport.abort()
        elif not self.busy and now - self._since >= self.timeout and not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes that make no request do not prolong the wait for one."""
        if self._broken or self._lingering.lingering:
            self._lingering.throw_away(len(data))
            return
        if self._rest or self.pipeline:
            self._keep(data)
        elif len(data) <= PIECE:
            self._feed(data)
        else:
            self._feed_pieces(data)

    def _feed_pieces(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if self._broken or self._lingering.lingering:
                return
            if self.pipeline:
                self._keep(data[start:])
                return
            self._feed(view[start : start + PIECE])

    def _keep(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) > MAX_WAITING_BYTES:
            self.flow.pause_reading()
            self.flow.held = True

    def _feed(self, data: bytes | memoryview) -> None:
        self._silent += len(data)
        try:
            self.parser.feed_data(data)
            if self._coming is not None:
                self._begin_long()
            if self._silent > MAX_HEAD_BYTES:
                raise BadHead(f"more than {MAX_HEAD_BYTES} bytes")
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(bytes(data[upgrade.args[0] :]))
        except (httptools.HttpParserError, BadHead):
            self._refuse()

    def _decline_upgrade(self, rest: bytes) -> None:
        """The parser takes no body from a client that would like another protocol; asked anew without that, it does."""
        try:
            head = without_upgrade(self.parser.get_method(), self.url, self.headers)
        except BadHead:
            self._refuse()
            return
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(head)
        self.data_received(rest)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._receiving:
            return  # a trailer, which nobody wants
        if len(self.headers) == MAX_HEADERS:
            raise BadHead(f"more than {MAX_HEADERS} headers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._silent = 0
        parser = self.parser
        if parser.should_upgrade():
            return
        fields, version = dict(self.headers), parser.get_http_version()
        check_head(version, self.headers, fields)
        self._receiving = True
        self._keep_alive = version != "1.0" and parser.should_keep_alive()
        app = self.whole_app
        if app is not None and not self.busy and len(fields) == len(self.headers) and not self.flow.write_paused:
            self._coming = read_whole(app, parser.get_method(), self.url, fields)
        if self._coming is None:
            self._begin_long()

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        if self._coming is not None:
            self._coming.body = body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._receiving:
            return  # an upgrade
        self._silent = 0
        self._receiving = False
        if self._coming is not None:
            self._begin_whole(self._coming)
        else:
            super().on_message_complete()

    def _begin_whole(self, request: BufferedRequest) -> None:
        self._coming, self._whole = None, request
        request.keep_alive = self._keep_alive
        self._since = time.monotonic()
        self.loop.create_task(self._answer_whole(request))

    async def _answer_whole(self, request: BufferedRequest) -> None:
        assert self.whole_app is not None
        answer = await self.whole_app.answer_whole(request)
        self._whole = None
        if request.gone:
            return
        self._socket.write(answer.render(self.server_state.default_headers, request.keep_alive))
        if not request.keep_alive:
            self.transport.close()
        elif self.pipeline or self._broken or self._rest:
            self.on_response_complete()
        else:
            self._since = time.monotonic()

    def _begin_long(self) -> None:
        """Hands a request to the application as ASGI has it, now or when those before it are answered."""
        body = self._coming.body if self._coming is not None else b""
        self._coming, waits = None, self.busy
        self.cycle = self._make_cycle()
        if body:
            self.cycle.body += body
            self.cycle.message_event.set()
        if waits:
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self._start(self.cycle)

    def _make_cycle(self) -> RequestResponseCycle:
        path, _, query = self.url.partition(b"?")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": self.parser.get_http_version(),
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": self.headers,
            "state": {},
            "extensions": cast(Any, {ABORT: self.transport.abort, PATIENCE: self._be_patient}),
        }
        return RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=(b"expect", b"100-continue") in ((n, v.lower()) for n, v in self.headers),
            keep_alive=self._keep_alive,
            on_response=self.on_response_complete,
        )

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._current = cycle
        self._since = time.monotonic()
        self._start_asgi_task(cycle, self.app)

    def _be_patient(self, seconds: float) -> None:
        self._patience = seconds

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._patience = 0.0
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start(self.pipeline.pop()[0])
        elif self._broken:
            self._send_error()
            self.transport.close()
        if self._rest:
            self.loop.call_soon(self._feed_rest)
        self.flow.resume_reading()

    def _feed_rest(self) -> None:
        if self.parser is None or self.pipeline:
            return
        rest, self._rest = self._rest, b""
        self.flow.held = False
        self._feed_pieces(rest)
        self.flow.resume_reading()

    def _refuse(self) -> None:
        self.logger.warning(BROKEN)
        self._broken, self._coming = True, None
        if self.busy and self._receiving and self.cycle is self._current:
            self._break_off(self.cycle)
        elif self.busy:
            if self._receiving:
                self.pipeline.popleft()  # the one whose body is broken
        else:
            if not self._receiving:
                self._send_error()
            self.transport.close()

    def _break_off(self, cycle: RequestResponseCycle) -> None:
        """The body is broken while its request is being worked on."""
        cycle.disconnected = True
        cycle.message_event.set()
        if not cycle.response_started:
            self._send_error(head_only=cycle.scope["method"] == "HEAD")
        self.transport.close()

    def _send_error(self, head_only: bool = False) -> None:
        body = orjson.dumps({"error": BROKEN})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + (b"" if head_only else body))

    def _make_room(self) -> None:
        """By whoever waits for a request, or, if nobody does, by the request that has been inside longest."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        oldest = min(others, key=lambda other: other.age)
        oldest.connections.discard(oldest)
        oldest.transport.abort()
