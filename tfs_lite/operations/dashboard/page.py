"""The files of the page: read once, packed once, and sent with headers that let a browser run nothing else.

No text from the server ever becomes markup or a script: the policy allows the files of this server only, and no text as
a script in any way (``trusted-types 'none'``).
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from tfs_lite.core.status import not_found
from tfs_lite.server.http.compression import GZIP, answer_encoding
from tfs_lite.server.http.message import Request, Response

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media types by the end of a file's name. Other files are not part of the page."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SAFE_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
PAGE_HEADERS: Mapping[str, str] = {**SAFE_HEADERS, "content-security-policy": POLICY, "cache-control": "no-cache"}
"""A browser asks again each time, and is told 304 when it has the file."""
DATA_HEADERS: Mapping[str, str] = {**SAFE_HEADERS, "cache-control": "no-store"}
"""The headers of answers that tell something about the server."""


_COMMENT = re.compile(rb"^\t*// .*\n", re.MULTILINE)
"""A line of a script that is for readers of the source. It is not sent."""


@dataclass(frozen=True, slots=True)
class File:
    """One file. ``etag`` is of its content."""

    media_type: str
    plain: bytes
    packed: bytes
    etag: str

    def answer(self, request: Request) -> Response:
        headers = {**PAGE_HEADERS, "etag": self.etag, "vary": "accept-encoding"}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match").split(",")]
        if self.etag in known or known == ["*"]:
            return Response(b"", 304, headers=headers)
        encoding = answer_encoding(request.headers.get("accept-encoding"), GZIP)
        if encoding is None:
            return Response(self.plain, 200, self.media_type, headers)
        return Response(self.packed, 200, self.media_type, {**headers, "content-encoding": encoding})


class Page:
    """The page, on the event loop."""

    def __init__(self) -> None:
        self.files = read_files()

    def index(self, request: Request) -> Response:
        return self.files[INDEX].answer(request)

    def asset(self, request: Request, name: str) -> Response:
        """NOT_FOUND if the page has no such file."""
        file = self.files.get(name)
        if file is None or name == INDEX:
            raise not_found(f"no such page: {request.head.path}")
        return file.answer(request)


def read_files() -> dict[str, File]:
    """The files by name."""
    found = {}
    for path in resources.files(__package__).joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get(path.name.rpartition(".")[2])
        if media_type is not None:
            plain = path.read_bytes()
            if path.name.endswith(".js"):
                plain = _COMMENT.sub(b"", plain)
            etag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
            found[path.name] = File(media_type, plain, gzip.compress(plain, 9, mtime=0), etag)
    return found
