"""The pages that are made from the code: ``docs/flags.md`` from the table of flags, ``docs/python-api.md`` from
docstrings.

    python tests/golden/pages.py    # writes both anew

Nobody edits them: ``test_pages`` compares them with the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import golden_flags
import python_page
from golden_code import find

DOCS = Path(__file__).parents[2] / "docs"
MADE = "_Made by `python tests/golden/pages.py` from {}. Do not edit this page; edit that._"

PAGE_OF_GROUP = {
    "What is served": "serving.md",
    "Where it listens": "connections.md",
    "Versions": "serving.md#which-versions",
    "Loading and memory": "operating.md",
    "Running models": "batching.md",
    "Limits of requests and connections": "bounds.md",
    "Who may do what": "access.md",
    "The process and its log": "operating.md",
    "Replicas in a Ray cluster": "cluster.md",
    "TensorFlow only": "from-tf-serving.md#every-flag",
}
"""The page that says more, by the title of the group without what stands in brackets."""

FLAGS_HEAD = """\
# Flags of `tfs-lite serve`

{made}

`tfs-lite serve --help` prints the same in the same order: the groups that are used most come first, and so do the flags
in each group. Above them it has the ten that most servers need: {first}.
Flags are written `--name=value` or `--name value`, with underscores or hyphens; a boolean flag may stand
alone. `TFS_LITE_<FLAG>` in the environment sets a default, which the command line overrides. If a flag is given twice,
the later one counts; lists append. `tensorflow_model_server`'s flags have their names, types and defaults
([differences](from-tf-serving.md#every-flag)). In Python the settings have the same names:
[`ServerOptions`](python-api.md#serveroptions).

N is a whole number, X a number, A,B a list with commas. Sizes are numbers of bytes, without a unit: 104857600, not
100MB. Port 0 means that the server does not listen there; it never chooses a free port itself."""


def flags_page() -> str:
    """``docs/flags.md``."""
    return (
        "\n".join([FLAGS_HEAD.format(made=MADE.format("`tfs_lite/cli/flags.py`"), first=_first()), *_groups()]) + "\n"
    )


def _first() -> str:
    return ", ".join(f"`--{name}`" for name in find("FIRST_FLAGS", golden_flags.CLI))


def _groups() -> Iterator[str]:
    flags = find("FLAGS", golden_flags.CLI)
    for group in dict.fromkeys(flag.group for flag in flags):
        title, _, remark = group.partition(" (")
        yield from ("", f"## {title}", "", f"{_sentence(remark)}More: [{_title(title)}]({PAGE_OF_GROUP[title]}).", "")
        yield from ("| flag | default | |", "|---|---|---|")
        yield from (_row(flag) for flag in flags if flag.group == group)


def _sentence(remark: str) -> str:
    return f"{remark[0].upper()}{remark[1:].removesuffix(')')}. " if remark else ""


def _title(group: str) -> str:
    """The heading of the page about the group."""
    name = PAGE_OF_GROUP[group].partition("#")[0]
    return (DOCS / name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _row(flag: Any) -> str:
    spelled = find("spelled", golden_flags.CLI)(flag).replace("|", "\\|")
    help_text = flag.help.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")
    return f"| `{spelled}` | {_default(flag)} | {help_text} |"


def _default(flag: Any) -> str:
    if not flag.in_environment:
        return ""
    value = golden_flags._default(flag.name, flag.default)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value} ({value // 2**20} MiB)" if value < 2**30 else f"{value} ({value // 2**30} GiB)"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


PAGES: dict[str, Callable[[], str]] = {
    "flags.md": flags_page,
    "python-api.md": lambda: python_page.page(MADE.format("the docstrings of `tfs_lite`")),
}


def write() -> None:
    """Writes every page anew."""
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    write()
