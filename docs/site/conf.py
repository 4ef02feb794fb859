"""The docs site: the Markdown pages of the repository as they are. ``make docs`` builds it into ``site/<version>/``.

The sidebar is ``docs/README.md``: each of its headings is a group, and each link in the first column below it a page.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
GROUPS = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
PAGES = re.compile(r"\[([^]]+)\]\(([^)]+)\.md\)(?=.*\|.*\|$)", re.MULTILINE)

project = "tfs_lite"
copyright = "the tfs_lite authors"
release = re.findall(r'__version__ = "(.+)"', (ROOT / "tfs_lite/__init__.py").read_text())[0]

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "examples/README.md", "examples/*/README.md", "benchmarks/HISTORY.md"]
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 6
highlight_language = "none"
smartquotes = False  # of --flag it makes a dash
nitpicky = True

html_theme = "furo"
html_title = f"tfs_lite {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_copy_source = False
html_sidebars = {
    "**": [
        "sidebar/scroll-start.html",
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}

PLACE = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
STYLE = "<style>:root { color-scheme: light dark; font: 1rem/2 system-ui; padding: 2em }</style>"


def add_sidebar(app: Sphinx, page: str, text: list[str]) -> None:
    """Puts the groups of the sidebar at the end of the first page, where Sphinx wants them."""
    if page == root_doc:
        text[0] += "\n\n```{toctree}\n:hidden:\n\nAll pages <README>\n```\n"
        for title, rows in GROUPS.findall((ROOT / "docs/README.md").read_text()):
            pages = "\n".join(f"{label} <{path}>" for label, path in PAGES.findall(rows))
            text[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def add_ways_in(app: Sphinx, error: Exception | None) -> None:
    """Writes the first page of this version's folder, which leads on, and that of all versions, which lists them."""
    folder = Path(app.outdir)
    to_first = f'<meta http-equiv="refresh" content="0; url={root_doc}.html"><a href="{root_doc}.html">tfs_lite</a>'
    (folder / "index.html").write_text(f"{PLACE}<title>tfs_lite</title>{to_first}\n")
    versions = [path.parents[1].name for path in folder.parent.glob(f"*/{root_doc}.html")]
    versions.sort(key=lambda version: [int(part) for part in re.findall(r"\d+", version)], reverse=True)
    links = "".join(f'<li><a href="{version}/{root_doc}.html">{version}</a>' for version in versions)
    (folder.parent / "index.html").write_text(
        f"{PLACE}<title>tfs_lite</title>{STYLE}<h1>tfs_lite</h1><ul>{links}</ul>\n"
    )


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_sidebar)
    app.connect("build-finished", add_ways_in)
