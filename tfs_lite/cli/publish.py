"""``tfs-lite publish SRC --base BASE``: copies a model into a base path as a version, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from tfs_lite.cli.arguments import Parser, version_number
from tfs_lite.cli.output import DONE, print_json
from tfs_lite.core.publish import publish


def run(argv: Sequence[str]) -> int:
    parser = Parser("publish", "Copies SRC (a directory or one model file) to BASE/<version>, whole or not at all.")
    parser.add_argument("source", metavar="SRC", help="a directory with the files of a version, or one model file")
    parser.add_argument("--base", required=True, help="the model's base path; made when it is missing")
    parser.add_argument("--version", type=version_number, metavar="N", help="default: the highest one there plus 1")
    args = parser.parse(argv)
    published = publish(args.source, args.base, args.version)
    if args.json:
        print_json({"version": published.version, "path": published.path})
    else:
        print(f"published version {published.version}: {published.path}")
    return DONE
