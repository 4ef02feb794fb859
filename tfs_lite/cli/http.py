"""The questions of the commands to a server over HTTP."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any, NoReturn

from tfs_lite.cli.output import CliError
from tfs_lite.protocols.bearer import bearer

ANSWER_TIMEOUT = 10.0
LARGEST_ANSWER = 64 * 2**20
MOST_SAID = 200
"""Bytes of an answer of another server that are shown."""
_LOOK_SECONDS = 0.1
"""Seconds between two looks at whether a server is there."""
_REFUSED = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
}
"""Statuses whose sentence is for the user as it is."""


_HTTP2_FRAME = "\x00\x00"
"""The begin of the first frame with which a server of HTTP/2 answers; that of TF Serving sends it to any client."""
_OF_GRPC_PORT = b"this port speaks grpc"
"""The words with which this server's gRPC port answers HTTP/1, in small letters."""


class IsGrpcPort(CliError):
    """The port speaks gRPC; no request has reached anything."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is a gRPC port, and this goes over HTTP: give --server the HTTP port of the server (its flag "
            "--rest_api_port, 8501 by default)",
            "UNAVAILABLE",
        )


class AskedServer:
    """A server at an address, asked with a token if there is one. Everything that fails raises CliError."""

    def __init__(self, address: str, token: str = "", timeout: float = ANSWER_TIMEOUT, wait: float = 0.0) -> None:
        """``timeout`` is in seconds, of each answer; ``wait``, too, until a server that is being started answers at
        all."""
        self.address = address
        self._token = token
        self._timeout = timeout
        self._wait = wait

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def json(self, path: str, body: Any = None) -> Any:
        """The answer; to a POST if there is a body."""
        try:
            return json.loads(self.read(path, LARGEST_ANSWER, None if body is None else json.dumps(body).encode()))
        except ValueError as error:
            self._fail(path, error)

    def read(self, path: str, most: int, body: bytes | None = None, *, or_nothing: bool = False) -> bytes:
        """The answer, at most a byte more than ``most``. With ``or_nothing`` a missing page is empty."""
        try:
            with self.open(path, body) as answer:
                return bytes(answer.read(most + 1))
        except urllib.error.HTTPError as error:
            with error:
                if or_nothing and error.code == 404:
                    return b""
                self._refuse(path, error)
        except http.client.BadStatusLine as error:
            if str(error).startswith(_HTTP2_FRAME):
                raise IsGrpcPort(self.address) from None
            self._fail(path, error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._fail(path, error)

    def open(self, path: str, body: bytes | None = None) -> Any:
        """The answer as a file. Raises what urllib does."""
        self._wait_until_there()
        request = urllib.request.Request(self.url(path), body)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_unredirected_header("Authorization", bearer(self._token))
        return urllib.request.urlopen(request, timeout=self._timeout)

    def _wait_until_there(self) -> None:
        """Waits, once, until something answers or the time is over; what is wrong then the request finds out."""
        ends, self._wait = time.monotonic() + self._wait, 0.0
        while (left := ends - time.monotonic()) > _LOOK_SECONDS:
            try:
                urllib.request.urlopen(self.url("/"), timeout=left).close()
                return
            except urllib.error.HTTPError as answer:
                answer.close()
                return
            except http.client.BadStatusLine as answer:
                if not isinstance(answer, ConnectionError):
                    return
                time.sleep(_LOOK_SECONDS)
            except (OSError, ValueError, http.client.HTTPException):
                time.sleep(_LOOK_SECONDS)

    def _refuse(self, path: str, error: urllib.error.HTTPError) -> NoReturn:
        body = error.read(LARGEST_ANSWER)
        if error.code == 400 and body.lower().startswith(_OF_GRPC_PORT):
            raise IsGrpcPort(self.address) from None
        if error.code in _REFUSED:
            try:
                raise CliError(str(json.loads(body)["error"]), _REFUSED[error.code]) from None
            except (ValueError, KeyError, TypeError):
                pass
        said = body[:MOST_SAID].decode("utf-8", "replace").strip()
        raise CliError(
            f"{self.url(path)} answered {error.code}{f' ({said})' if said.isprintable() and said else ''}; "
            "is it the HTTP port of a tfs_lite server?",
            "UNAVAILABLE",
        ) from None

    def _fail(self, path: str, error: Exception) -> NoReturn:
        cause = getattr(error, "reason", error)
        raise CliError(
            f"no server answers at {self.url(path)} ({cause}); start one with tfs-lite serve, or give its address "
            "with --server",
            "UNAVAILABLE",
        ) from None
