"""The library behind language models: it is imported once, by whichever load comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfs_lite.adapters.language.family import load_library
from tfs_lite.core.status import Reason, ServingError, StatusCode

SCRIPT = """
import sys, threading
from tfs_lite.adapters.language.family import load_library

found = []

def load():
    found.append(load_library().CONFIG_MAPPING["llama"].__name__)

first = threading.Thread(target=load)
first.start()
while first.is_alive() and "transformers" not in sys.modules:
    first.join(0.0001)
amid = "transformers.utils.logging" not in sys.modules
second = threading.Thread(target=load)
second.start()
first.join()
second.join()
print(amid, found)
"""


def test_load_that_comes_while_another_one_imports_the_library_gets_the_whole_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True ['LlamaConfig', 'LlamaConfig']\n", done.stderr


def test_without_the_library_the_error_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ServingError, match=r"pip install 'tfs-lite\[generate\]'") as missing:
        load_library()
    assert (missing.value.code, missing.value.status.reason) == (StatusCode.UNIMPLEMENTED, Reason.NEEDS_EXTRA)
