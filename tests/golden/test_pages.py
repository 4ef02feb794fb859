"""The pages that are made from the code say what the code says; ``python tests/golden/pages.py`` makes them anew."""

from __future__ import annotations

import dataclasses
from difflib import unified_diff

import pages
import pytest
from golden_code import find
from golden_flags import CLI

import tfs_lite
from tfs_lite.cli.serve import help_text
from tfs_lite.serving.options import ServerOptions

AGAIN = "If that is meant: python tests/golden/pages.py"


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_says_what_the_code_says(name: str) -> None:
    kept, made = (pages.DOCS / name).read_text(encoding="utf-8").splitlines(), pages.PAGES[name]().splitlines()
    if difference := list(unified_diff(kept, made, f"docs/{name}", "the code", n=0, lineterm="")):
        pytest.fail("\n".join([*difference[:40], AGAIN]), pytrace=False)


def test_the_page_of_flags_and_the_help_have_one_order() -> None:
    names = [f"--{flag.name}" for flag in find("FLAGS", CLI)]
    in_help = [line.split("=")[0].split()[0] for line in _grouped_help() if line.startswith("  --")]
    on_page = [line[3:].split("`")[0].split("=")[0] for line in pages.flags_page().splitlines() if line[:5] == "| `--"]
    assert in_help == on_page == names


def test_the_page_of_the_python_api_has_every_public_name_and_every_option() -> None:
    text = pages.PAGES["python-api.md"]()
    missing = [name for name in tfs_lite.__all__ if name[0] != "_" and f"\n## {name}\n" not in text]
    missing += [field.name for field in dataclasses.fields(ServerOptions) if f"\n| `{field.name}` |" not in text]
    assert missing == []


def _grouped_help() -> list[str]:
    """The help without the flags that stand above the groups once more."""
    lines: list[str] = help_text().splitlines()
    return lines[lines.index(f"{find('FLAGS', CLI)[0].group}:") :]
