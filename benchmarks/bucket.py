"""A bucket in the shape of S3's API over a directory, in a process of its own: as fast as ``sendfile``, or at a rate.

    with Bucket(folder, mib_per_second=100) as bucket:
        bucket.environment, bucket.url         # of what reads it
        bucket.asked("list", since)            # the requests since a moment of time.time()

``folder/models/digits/1/model.pt2`` is ``s3://models/digits/1/model.pt2``. It lists, tells and gives objects, and does
not look at signatures. Run as a script it is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

PIECE = 1 << 20
STOP_SECONDS = 10.0


class Bucket:
    """Its requests are noted by what they were: ``list`` with the number of ``keys``, ``get`` with the ``key``, and
    ``begun`` in the moment that an object begins to be sent. ``at`` is when, and ``ended`` when the answer had."""

    def __init__(self, folder: Path, mib_per_second: float = 0.0, cpus: str = "") -> None:
        self._log = folder / ".requests"
        self._log.write_text("")
        pinned = ["taskset", "-c", cpus] if cpus else []
        self._command = [*pinned, sys.executable, __file__, str(folder), str(mib_per_second)]

    def __enter__(self) -> Bucket:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=STOP_SECONDS)

    def asked(self, what: str, since: float = 0.0) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [request for request in found if request["what"] == what and request["at"] >= since]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    rate: float

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._object(sends=False)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "list-type" in query:
            self._list(path.strip("/"), {name: values[0] for name, values in parse_qs(query).items()})
        else:
            self._object(sends=True)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        begun, prefix, text = time.time(), query.get("prefix", ""), list[str]()
        root = self.folder / bucket
        paths = sorted(_files(root, root / prefix.rpartition("/")[0]))
        keys = [key for key in paths if key.startswith(prefix)]
        if delimiter := query.get("delimiter"):
            folders = {key[: key.index(delimiter, len(prefix)) + 1] for key in keys if delimiter in key[len(prefix) :]}
            keys = [key for key in keys if delimiter not in key[len(prefix) :]]
            text += [f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)]
        for key in keys:
            status = (root / key).stat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            text.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                f"<ETag>{escape(_tag(status))}</ETag><Size>{status.st_size}</Size></Contents>"
            )
        body = (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{''.join(text)}</ListBucketResult>"
        )
        self._head(200, len(body.encode()), {"Content-Type": "application/xml"})
        self.wfile.write(body.encode())
        self._note("list", begun, keys=len(keys), prefix=prefix)

    def _object(self, sends: bool) -> None:
        begun, key = time.time(), unquote(self.path.partition("?")[0]).strip("/")
        try:
            with (self.folder / key).open("rb") as file:
                status = os.fstat(file.fileno())
                if (wanted := self.headers.get("If-Match")) and wanted.strip('"') != _tag(status).strip('"'):
                    self._head(412, 0, {})
                    return
                start, end = _range(self.headers.get("Range", ""), status.st_size)
                self._head(200 if end - start == status.st_size else 206, end - start, self._facts(status, start, end))
                if sends:
                    self._note("begun", begun, key=key)
                    self._send(file, start, end)
                    self._note("get", begun, key=key)
        except (FileNotFoundError, IsADirectoryError):
            self._head(404, 0, {})

    def _facts(self, status: os.stat_result, start: int, end: int) -> dict[str, str]:
        found = {
            "ETag": _tag(status),
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        whole = end - start == status.st_size
        return found if whole else {**found, "Content-Range": f"bytes {start}-{end - 1}/{status.st_size}"}

    def _send(self, file: Any, start: int, end: int) -> None:
        begun, sent = time.perf_counter(), 0
        while start + sent < end:
            sent += self.connection.sendfile(file, start + sent, min(PIECE, end - start - sent))
            if self.rate:
                time.sleep(max(0.0, begun + sent / self.rate - time.perf_counter()))

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _note(self, what: str, begun: float, **fields: object) -> None:
        line = json.dumps({"what": what, "at": begun, "ended": time.time(), **fields})
        with (self.folder / ".requests").open("a") as log:
            log.write(f"{line}\n")


def _files(root: Path, below: Path) -> Iterator[str]:
    for folder, _, names in os.walk(below):
        for name in names:
            yield str(Path(folder, name).relative_to(root))


def _tag(status: os.stat_result) -> str:
    return f'"{status.st_size:x}-{status.st_mtime_ns:x}"'


def _range(asked: str, size: int) -> tuple[int, int]:
    """Start and end, from ``bytes=A-B``, ``bytes=A-`` or ``bytes=-N``."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first and not last:
        return 0, size
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def main() -> None:
    _Handler.folder, _Handler.rate = Path(sys.argv[1]), float(sys.argv[2]) * 2**20
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
