"""Follows every link of a built site that stays inside of it, also those of the theme, and those in HTML.

python docs/site/links.py FOLDER    # exits with 1 when a file or an anchor is not there
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r'\s(?:href|src)="(?!\w+:)([^"#?]*)(?:\?[^"#]*)?(?:#([^"]*))?"')


@cache
def anchors(page: Path) -> set[str]:
    return set(re.findall(r'\sid="([^"]+)"', page.read_text(encoding="utf-8")))


def broken(site: Path) -> Iterator[str]:
    """The links of all pages that lead nowhere."""
    for page in sorted(site.rglob("*.html")):
        for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / unquote(path)).resolve() if path else page
            if not target.is_file() or (anchor and target.suffix == ".html" and unquote(anchor) not in anchors(target)):
                yield f"{page.relative_to(site)}: {path}#{anchor}" if anchor else f"{page.relative_to(site)}: {path}"


if __name__ == "__main__":
    found = list(broken(Path(sys.argv[1]).resolve()))
    print("\n".join(f"leads nowhere: {link}" for link in found), end="\n" if found else "")
    sys.exit(1 if found else 0)
