"""The reader that turns the bytes of one HTTP/1.1 connection into its requests, without I/O.

    receive -> [a head that is known] ------------> current, the request that is being answered -> next
            -> the parser -> requests that wait --/

A head that the parser has read before is not parsed again (:mod:`known_heads`). Of pipelined requests some are parsed
and wait, and the bytes behind them are kept unparsed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import httptools

from tfs_lite.server.http.head_checks import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    BadHead,
    check_head,
    origin_form,
    without_upgrade,
)
from tfs_lite.server.http.known_heads import HEAD_END, KnownHeads
from tfs_lite.server.http.message import Header, Headers, HttpHead, IncomingBody, Request
from tfs_lite.transport.peer import UNKNOWN

PARSED_AT_ONCE = 4 * 1024
"""Bytes given to the parser at once, which bounds the parsed requests that wait."""
GRPC_CLIENT = "it speaks gRPC, for which there is another port"
MAX_UNPARSED_BYTES = 64 * 1024
"""Pipelined bytes kept unparsed. Beyond it reading pauses, and a disconnect is not noticed until it resumes."""


class RequestReader:
    """``current`` is the request that is being answered, ``waiting`` are those behind it, and the body of ``incoming``,
    which may be any of them, is not complete. ``broken``: the last bytes are malformed (``fault``), and nothing is read
    any more; ``fault_is_late``: it belongs to a request that is answered. ``in_message``: a part of a request was read.
    ``since``: when the connection became idle or busy, a head began, or more came of a body that no handler wants, in
    seconds of ``time.monotonic``. Bodies call ``on_wanted`` and ``on_taken`` (:class:`IncomingBody`)."""

    __slots__ = (
        *("_after_drain", "_fields", "_heads", "_missing", "_on_taken", "_on_wanted", "_overhead", "_parser", "_url"),
        *("broken", "current", "fault", "fault_is_late", "in_message", "incoming", "peer", "since", "unparsed"),
        "waiting",
    )

    def __init__(
        self, heads: KnownHeads, after_drain: bool, on_wanted: Callable[[], None], on_taken: Callable[[], None]
    ) -> None:
        """``after_drain``: the server was drained when the connection was made."""
        self._heads = heads
        self._after_drain = after_drain
        self._on_wanted = on_wanted
        self._on_taken = on_taken
        self._parser = self._new_parser()
        self._url = b""
        self._fields: list[Header] = []
        self._missing = 0  # bytes of the body, where the parser does not count them
        self._overhead = 0  # bytes received since a head ended or a body went on
        self.peer = UNKNOWN
        self.current: Request | None = None
        self.waiting: deque[Request] = deque()
        self.incoming: Request | None = None
        self.unparsed = b""
        self.broken = False
        self.fault = ""
        self.fault_is_late = False
        self.in_message = False
        self.since = time.monotonic()

    def receive(self, data: bytes) -> bool:
        """Takes the bytes that have come. Sets ``current`` where no request is being answered. Returns False once
        ``broken``; then it is not called again."""
        if self.unparsed or self.waiting:
            self.unparsed += data
        elif self._missing:
            self._read_body(data)
        elif self.current is not None or self.in_message:
            self._feed_all(data)
        else:
            end = data.find(HEAD_END) + len(HEAD_END)
            text = data[:end]
            head = self._heads.get(text)
            if head is not None and head.length == len(data) - end:
                body = IncomingBody(whole=data[end:])
                self.current = Request(head, body, time.monotonic(), self._after_drain, self.peer)
            elif head is not None:
                self._missing = head.length or 0
                self.current = self.incoming = self._request(head)
                if len(data) > end:
                    self._read_body(data[end:])
            elif self._heads.may_hold(text):
                self._learn(text, data[end:])
            else:
                self._feed_all(data)
        return not self.broken

    def next(self) -> Request | None:
        """The current request is answered: the rest of its body is skipped. Returns the next one, now the current."""
        if self.incoming is not None and self.incoming is self.current:
            self.incoming.body.take()
        self.current = self.waiting.popleft() if self.waiting else None
        return self.current

    def clear(self) -> None:
        """No request is answered after the current one."""
        self.waiting.clear()
        self.unparsed = b""

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # pipelined bytes behind "Connection: close"
        return parser

    def _request(self, head: HttpHead) -> Request:
        body = IncomingBody(self._on_wanted, self._on_taken)
        return Request(head, body, time.monotonic(), self._after_drain, self.peer)

    def _learn(self, text: bytes, rest: bytes) -> None:
        """A head that is new is parsed by itself, and remembered if its bytes give one request and nothing more; these
        bytes at such a place will do so again."""
        self._feed(text)
        if self.current is not None and self._is_alone(self.current):
            self._heads.learn(text, self.current.head)
        self._go_on(rest)

    def _go_on(self, data: bytes) -> None:
        if data and not self.broken:
            self.receive(data)

    def _is_alone(self, request: Request) -> bool:
        """Whether the parser has read nothing but the head of this request since the one before was answered."""
        if self.waiting or request.body.held:
            return False
        return self.in_message == (self.incoming is request) == (request.head.length != 0)

    def _read_body(self, data: bytes) -> None:
        """Reads the body of a request whose head was known, so that the parser knows nothing of it."""
        body = data[: self._missing]
        self._missing -= len(body)
        if body:
            self.on_body(body)
        if not self._missing:
            self.on_message_complete()
            if len(data) > len(body):
                self._go_on(data[len(body) :])

    def _feed_all(self, data: bytes) -> None:
        if len(data) <= PARSED_AT_ONCE:
            self._feed(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), PARSED_AT_ONCE):
            if self.broken:
                return
            if self.waiting or self.unparsed:
                self.unparsed += data[start:]
                return
            self._feed(view[start : start + PARSED_AT_ONCE])

    def _feed(self, data: bytes | memoryview) -> None:
        self._overhead += len(data)
        behind_upgrade = None
        try:
            self._parser.feed_data(data)
            if self._overhead > MAX_HEAD_BYTES:
                raise BadHead(f"more than {MAX_HEAD_BYTES} bytes")
        except httptools.HttpParserUpgrade as upgrade:
            behind_upgrade = bytes(data[upgrade.args[0] :])
        except (httptools.HttpParserError, BadHead) as error:
            self._break(error)
        if behind_upgrade is not None:
            self._decline_upgrade(behind_upgrade)
        elif self.current is None:
            self.next()

    def _decline_upgrade(self, rest: bytes) -> None:
        """The parser reads no body after ``Upgrade``, so the head is parsed again without that header."""
        try:
            parser = self._parser
            head = without_upgrade(parser.get_method(), self._url, parser.get_http_version(), self._fields)
        except BadHead as error:
            self._break(error)
            if self.current is None:
                self.next()
            return
        self._parser = self._new_parser()
        self._feed(head)
        self._go_on(rest)

    def _break(self, why: Exception) -> None:
        """Requests before the malformed one are still answered."""
        fault = str(why.__context__ or why)
        self.broken, self.fault = True, GRPC_CLIENT if fault.startswith("Pause on PRI") else fault
        request = self.incoming
        if request is None or request is self.current:
            return
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.fault_is_late = True

    # From the parser.

    def on_message_begin(self) -> None:
        self.in_message = True
        if self.current is None:
            self.since = time.monotonic()
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.incoming is not None:
            return  # a trailer: ignored
        if len(self._fields) == MAX_HEADERS:
            raise BadHead(f"more than {MAX_HEADERS} headers")
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._overhead = 0
        parser, fields = self._parser, self._fields
        if parser.should_upgrade():
            return
        headers, version = Headers(fields), parser.get_http_version()
        check_head(version, fields, headers.fields)
        method, target = parser.get_method().decode("ascii"), origin_form(self._url).decode("latin-1")
        head = HttpHead(method, target, headers, version == "1.1" and parser.should_keep_alive(), version == "1.0")
        self.incoming = self._request(head)
        self.waiting.append(self.incoming)

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        request = self.incoming
        if request is not None and (request is self.current or request in self.waiting):
            request.body.feed(data)
        elif self.current is None:
            self.since = time.monotonic()

    def on_message_complete(self) -> None:
        self.in_message = False
        request, self.incoming = self.incoming, None
        if request is None:
            return  # an upgrade
        self._overhead = 0
        request.body.end()
