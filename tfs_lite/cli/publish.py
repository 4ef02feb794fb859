"""``tfs-lite publish SRC --base BASE``: copies a model into a base path as a version, whole or not at all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tfs_lite.cli.arguments import Parser
from tfs_lite.cli.errors import DONE
from tfs_lite.cli.output import print_json
from tfs_lite.core.manifest import parse_version
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


def version_number(text: str) -> int:
    """An argparse type: a version as it may stand in a directory's name."""
    version = parse_version(text)
    if version is None:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63-1, got {text!r}")
    return version
