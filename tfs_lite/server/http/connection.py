"""One HTTP connection: uvicorn's, with timeouts, bounded buffers, and a short path for small requests.

``check_timeouts`` closes a connection without the whole head of a request and aborts one whose client has stopped
reading its answer. Pipelined requests wait until the one before them is answered: some are parsed, the bytes behind
them are kept unparsed, and beyond a bound reading pauses.

A malformed request ends the connection after the answers to those before it, with 400 unless its answer has begun.
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
from tfs_lite.server.http.short_path import BufferedRequest, ShortPathApp, buffered_request

ABORT, WRITE_TIMEOUT = "tfs_lite.abort", "tfs_lite.write_timeout"
"""Extensions of a scope for long answers: a function that aborts the connection, and one that takes the number of
seconds for which the client may leave the answer unread."""
PARSED_AT_ONCE = 4 * 1024
"""Bytes given to the parser at once, which bounds the parsed requests that wait."""
MAX_UNPARSED_BYTES = 64 * 1024
"""Pipelined bytes kept unparsed. Beyond it reading pauses, and a disconnect is not noticed until it resumes."""
MALFORMED = "Invalid HTTP request received."


class _Flow(FlowControl):
    """Reading does not resume while ``held``."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """Runs on the event loop. Class attributes are set once, before the first connection."""

    timeout: float
    limit: int
    short_path_app: ShortPathApp | None = None
    transport: Any
    flow: _Flow
    _socket: asyncio.Transport
    _lingering: LingeringTransport
    _receiving = False
    """Whether the head of a request is complete and its body is not."""
    _overhead = 0
    """Bytes received since a head ended or a body went on."""
    _keep_alive = True
    _arriving: BufferedRequest | None = None
    """The short-path request whose body is being read."""
    _buffered: BufferedRequest | None = None
    """The short-path request that is being answered."""
    _current: RequestResponseCycle | None = None
    """The ASGI request that is being answered; ``cycle`` is the latest that was parsed."""
    _unparsed = b""
    """Bytes behind a request that waits."""
    _malformed = False
    _unsent = 0
    """Bytes of answers that the client had not read at the last check."""
    _unsent_since = 0.0
    _write_timeout = 0.0
    """Seconds for which the client may leave the current answer unread, if longer than usual."""
    _since = 0.0
    """When the connection became idle or busy."""

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._buffered is not None or (self._current is not None and not self._current.response_complete)

    @property
    def eviction_order(self) -> tuple[bool, float]:
        """The connection with the smallest value is evicted first: the longest idle, then the longest busy."""
        return self.busy, self._since

    def _is_sending(self) -> bool:
        """Whether bytes may follow that belong to no next request."""
        return self._receiving or self._malformed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limit:
            self._evict_one()
        self._socket = transport
        self._lingering = LingeringTransport(transport, self._is_sending, self.timeout)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self.flow = _Flow(self.transport)
        self._since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed = b""
        if self._buffered is not None:
            self._buffered.disconnect()
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()
        super().connection_lost(exc)
        self._lingering.closed()

    def shutdown(self) -> None:
        if self._buffered is not None:
            self._buffered.keep_alive = False
        elif self._current is not None and self.busy:
            self._current.keep_alive = False
        else:
            self.transport.close()

    def check_timeouts(self, now: float) -> None:
        """Called periodically. A client that goes on reading its answer has no timeout."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not self._unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if unsent:
            if now - self._unsent_since >= max(self.timeout, self._write_timeout):
                self.transport.abort()
        elif not self.busy and now - self._since >= self.timeout and not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes that complete no request do not extend its timeout."""
        if self._malformed or self._lingering.lingering:
            self._lingering.discard(len(data))
            return
        if self._unparsed or self.pipeline:
            self._keep(data)
        elif len(data) <= PARSED_AT_ONCE:
            self._feed(data)
        else:
            self._feed_chunks(data)

    def _feed_chunks(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), PARSED_AT_ONCE):
            if self._malformed or self._lingering.lingering:
                return
            if self.pipeline:
                self._keep(data[start:])
                return
            self._feed(view[start : start + PARSED_AT_ONCE])

    def _keep(self, data: bytes) -> None:
        self._unparsed += data
        if len(self._unparsed) > MAX_UNPARSED_BYTES:
            self.flow.pause_reading()
            self.flow.held = True

    def _feed(self, data: bytes | memoryview) -> None:
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
            if self._arriving is not None:
                self._begin_asgi()
            if self._overhead > MAX_HEAD_BYTES:
                raise BadHead(f"more than {MAX_HEAD_BYTES} bytes")
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(bytes(data[upgrade.args[0] :]))
        except (httptools.HttpParserError, BadHead):
            self._refuse()

    def _decline_upgrade(self, rest: bytes) -> None:
        """The parser reads no body after ``Upgrade``, so the head is parsed again without that header."""
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
            return  # a trailer: ignored
        if len(self.headers) == MAX_HEADERS:
            raise BadHead(f"more than {MAX_HEADERS} headers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._overhead = 0
        parser = self.parser
        if parser.should_upgrade():
            return
        fields, version = dict(self.headers), parser.get_http_version()
        check_head(version, self.headers, fields)
        self._receiving = True
        self._keep_alive = version != "1.0" and parser.should_keep_alive()
        app = self.short_path_app
        if app is not None and not self.busy and len(fields) == len(self.headers) and not self.flow.write_paused:
            self._arriving = buffered_request(app, parser.get_method(), self.url, fields)
        if self._arriving is None:
            self._begin_asgi()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if self._arriving is not None:
            self._arriving.body = body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._receiving:
            return  # an upgrade
        self._overhead = 0
        self._receiving = False
        if self._arriving is not None:
            self._begin_buffered(self._arriving)
        else:
            super().on_message_complete()

    def _begin_buffered(self, request: BufferedRequest) -> None:
        self._arriving, self._buffered = None, request
        request.keep_alive = self._keep_alive
        self._since = time.monotonic()
        self.loop.create_task(self._answer_buffered(request))

    async def _answer_buffered(self, request: BufferedRequest) -> None:
        assert self.short_path_app is not None
        answer = await self.short_path_app.answer_buffered(request)
        self._buffered = None
        if request.disconnected:
            return
        self._socket.write(answer.render(self.server_state.default_headers, request.keep_alive))
        if not request.keep_alive:
            self.transport.close()
        elif self.pipeline or self._malformed or self._unparsed:
            self.on_response_complete()
        else:
            self._since = time.monotonic()

    def _begin_asgi(self) -> None:
        """Hands a request to the application over ASGI, now or when those before it are answered."""
        body = self._arriving.body if self._arriving is not None else b""
        self._arriving, waits = None, self.busy
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
            "extensions": cast(Any, {ABORT: self.transport.abort, WRITE_TIMEOUT: self._set_write_timeout}),
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

    def _set_write_timeout(self, seconds: float) -> None:
        self._write_timeout = seconds

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._write_timeout = 0.0
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start(self.pipeline.pop()[0])
        elif self._malformed:
            self._send_error()
            self.transport.close()
        if self._unparsed:
            self.loop.call_soon(self._feed_unparsed)
        self.flow.resume_reading()

    def _feed_unparsed(self) -> None:
        if self.parser is None or self.pipeline:
            return
        data, self._unparsed = self._unparsed, b""
        self.flow.held = False
        self._feed_chunks(data)
        self.flow.resume_reading()

    def _refuse(self) -> None:
        self.logger.warning(MALFORMED)
        self._malformed, self._arriving = True, None
        if self.busy and self._receiving and self.cycle is self._current:
            self._break_off(self.cycle)
        elif self.busy:
            if self._receiving:
                self.pipeline.popleft()  # the request whose body is malformed
        else:
            if not self._receiving:
                self._send_error()
            self.transport.close()

    def _break_off(self, cycle: RequestResponseCycle) -> None:
        """The body turns out malformed while its request is being answered."""
        cycle.disconnected = True
        cycle.message_event.set()
        if not cycle.response_started:
            self._send_error(head_only=cycle.scope["method"] == "HEAD")
        self.transport.close()

    def _send_error(self, head_only: bool = False) -> None:
        body = orjson.dumps({"error": MALFORMED})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + (b"" if head_only else body))

    def _evict_one(self) -> None:
        others = [other for other in self.connections if isinstance(other, Connection)]
        oldest = min(others, key=lambda other: other.eviction_order)
        oldest.connections.discard(oldest)
        oldest.transport.abort()
