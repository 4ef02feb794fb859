"""``docs/testing.md`` as its reader takes it: each block is a whole test file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("heading", BLOCKS)
def test_block_of_the_page_passes(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("test_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look
    exec(compile(BLOCKS[heading], f"{PAGE}: {heading}", "exec", dont_inherit=True), vars(module))
    tests = [found for name, found in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_page_has_a_source_a_loader_and_a_scheduler() -> None:
    assert list(BLOCKS) == ["A source", "A loader", "A scheduler"]


def test_page_names_every_file_of_the_package() -> None:
    package = Path(__file__).parents[3] / "tfs_lite" / "testing"
    files = [path.stem for path in package.rglob("*.py") if path.name != "__init__.py"]
    assert [name for name in files if f"`lifecycle.{name}." not in PAGE.read_text()] == []
