"""OTLP over HTTP: a body of protobuf or JSON by POST.

Source: OpenTelemetry's specification of OTLP 1.9.
"""

from __future__ import annotations

import gzip
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

from tfs_lite.operations.traces.environment import JSON, OtlpSettings
from tfs_lite.operations.traces.otlp import ALL, Attempt, read_answer

RETRIED = (429, 502, 503, 504)
MAX_ANSWER = 1 << 20
_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class HttpWay:
    """OTLP over HTTP, in protobuf or JSON."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        media_type = "application/json" if settings.protocol == JSON else "application/x-protobuf"
        self._headers = {**settings.headers, "content-type": media_type, "user-agent": "tfs_lite"}
        if settings.compression in _COMPRESS:
            self._headers["content-encoding"] = settings.compression
        self._compress = _COMPRESS.get(settings.compression, bytes)
        self._opener: urllib.request.OpenerDirector | None = None

    def attempt(self, body: bytes, seconds: float) -> Attempt:
        request = urllib.request.Request(self._settings.url, self._compress(body), self._headers)
        try:
            with self._open(request, seconds) as answer:
                return read_answer(answer.read(MAX_ANSWER), self._settings.protocol)
        except urllib.error.HTTPError as error:
            with error:
                after = error.headers.get("retry-after", "")
            wait = float(after) if after.isdigit() else 0.0
            return Attempt(ALL, f"HTTP {error.code}", error.code in RETRIED, wait)
        except HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """An attempt that waits for its answer ends with its timeout."""

    def _open(self, request: urllib.request.Request, seconds: float) -> Any:
        if self._opener is None:
            secure = urllib.request.HTTPSHandler(context=tls_context(self._settings))
            self._opener = urllib.request.build_opener(secure, _NoRedirects)
        return self._opener.open(request, timeout=seconds)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would go on as a GET without the spans, whose answer would count as theirs."""

    def redirect_request(self, *_: Any) -> None:
        return None


def tls_context(settings: OtlpSettings) -> ssl.SSLContext:
    """OSError names the files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.authority or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (settings.authority, settings.certificate, settings.key)))
        raise OSError(f"certificates for the collector of traces ({files}): {error}") from None
    return context
