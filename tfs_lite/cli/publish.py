"""``tfs-lite publish SRC --base BASE``: copies a model into a base path as a version, whole or not at all. The
base path is a directory or the URL of one in a bucket.

A large one takes a while: a bar on standard error shows how far copying, hashing and uploading are.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from tfs_lite.cli.arguments import Parser, version_number
from tfs_lite.cli.output import DONE, print_json
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.loader import bytes_text
from tfs_lite.core.publish import FOLLOW_LINKS, OnProgress, Published, publish
from tfs_lite.storage.url import StorageUrl, is_url

LARGE = 64 << 20
"""Bytes from which a terminal gets a bar unasked; fewer are copied before one could be read."""
LINE_SECONDS = 1.0
"""The seconds between two lines where standard error is no terminal."""


def run(argv: Sequence[str]) -> int:
    parser = Parser("publish", "Copies SRC (a directory or one model file) to BASE/<version>, whole or not at all.")
    parser.add_argument("source", metavar="SRC", help="a directory with the files of a version, or one model file")
    base = "the model's base path, made when it is missing, or its URL: s3://, gs:// or az://BUCKET/PREFIX"
    parser.add_argument("--base", required=True, help=base)
    parser.add_argument("--version", type=version_number, metavar="N", help="default: the highest one there plus 1")
    parser.add_argument(
        FOLLOW_LINKS,
        FOLLOW_LINKS.replace("_", "-"),
        action="store_true",
        help="copy what links in SRC point to, wherever that is: a snapshot in the hub's cache is made of such links",
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show on standard error how far it is; default: on a terminal, for large directories; never with --json",
    )
    args = parser.parse(argv)
    with _progress(args) as on_progress:
        published = _publish(args, on_progress)
    if args.json:
        print_json({"version": published.version, "path": published.path})
    else:
        path = published.path.encode(errors="backslashreplace").decode()  # it may hold bytes that are no text
        print(f"published version {published.version}: {path}")
    return DONE


def _publish(args: argparse.Namespace, on_progress: OnProgress) -> Published:
    if not is_url(args.base):
        return publish(args.source, args.base, args.version, on_progress, follow_links=args.follow_links)
    from tfs_lite.storage.objects import open_storage
    from tfs_lite.storage.publish import publish_to_url, refuse_hub

    url = StorageUrl.parse(args.base)
    refuse_hub(url)
    return publish_to_url(
        args.source, url, open_storage(url), args.version, on_progress, follow_links=args.follow_links
    )


@contextlib.contextmanager
def _progress(args: argparse.Namespace) -> Iterator[OnProgress]:
    """The function that tells of the progress, for the time of the block."""
    if args.json or args.progress is False:
        yield ignore
    elif sys.stderr.isatty():
        with _bars(0 if args.progress else LARGE) as on_progress:
            yield on_progress
    else:
        yield _Lines(sys.stderr) if args.progress else ignore


@contextlib.contextmanager
def _bars(least: int) -> Iterator[OnProgress]:
    """A bar for each phase of at least so many bytes, which goes when all is done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def on_progress(phase: str, done: int, expected: int) -> None:
            if expected < least:
                return
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=expected)
            bars.update(tasks[phase], completed=done)

        yield on_progress


class _Lines:
    """Plain lines: one at the end of each phase, and about one a second in between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = time.monotonic() + LINE_SECONDS

    def __call__(self, phase: str, done: int, expected: int) -> None:
        if done < expected and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        print(f"{phase}: {bytes_text(done, expected)}", file=self._stream, flush=True)
