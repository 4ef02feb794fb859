import importlib
import subprocess
import sys
import threading

import pytest

from tests.support.errors import refusal
from tests.support.threads import LINUX, niceness
from tfs_lite.adapters.opening import OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.python.imports import SWITCH_SECONDS
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.core.yielding import NICENESS

REQUEST = OpenRequest(ServableId("m", 1), VersionFiles("/nowhere", frozenset()), "cpu", False)


def needs_a_library(request):
    import library_that_nobody_has  # noqa: F401  # type: ignore[import-not-found]


def test_missing_library_of_an_extra_is_named_with_the_command_that_installs_it():
    platform = Platform("odd", "odd.bin", lambda files: True, needs_a_library, extra="odd")
    message = refusal(platform.start, REQUEST, code=StatusCode.UNIMPLEMENTED)
    assert "library_that_nobody_has" in message
    assert message.endswith("pip install 'tfs-lite[odd]'")


def test_missing_library_of_a_platform_without_an_extra_is_an_error_of_its_own():
    with pytest.raises(ModuleNotFoundError):
        Platform("odd", "odd.bin", lambda files: True, needs_a_library).start(REQUEST)


def test_platform_that_is_only_known_says_why():
    platform = Platform("odd", "odd.bin", lambda files: True, None, missing="not yet")
    assert "platform odd: not yet" in refusal(platform.start, REQUEST, code=StatusCode.UNIMPLEMENTED)


class Half:
    signatures, closed = {}, False

    def run(self, signature, inputs, outputs): ...

    def resident_bytes(self): ...

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("opened", "told"),
    [
        (None, "open returned NoneType, expected a model; it has no signatures, run, resident_bytes, close"),
        (object.__new__(type("Bare", (Half,), {"close": property(lambda self: self.missing)})), "it has no close"),
        (Half(), "open returned Half without a signature, expected one at least"),
    ],
)
def test_what_is_no_model_or_answers_nothing_is_refused(opened, told):
    platform = Platform("odd", "odd.bin", lambda files: True, lambda request: opened)
    message = refusal(platform.start, REQUEST, code=StatusCode.FAILED_PRECONDITION)
    assert message.startswith("platform odd: ")
    assert message.endswith(told)


@LINUX
@pytest.mark.parametrize("leaves", [False, True])
def test_version_is_opened_by_a_thread_of_low_priority_that_ends_unless_it_may_leave_threads(leaves):
    usual, threads, found = niceness(), set(threading.enumerate()), list[tuple[int, str]]()

    def opened(request):
        found.append((niceness(), threading.current_thread().name))
        raise OSError("the disk is gone")

    platform = Platform("odd", "odd.bin", lambda files: True, opened, leaves_threads=lambda request: leaves)
    with pytest.raises(OSError, match="the disk is gone"):
        platform.start(REQUEST)
    here = threading.current_thread().name
    assert found == [(usual, here) if leaves else (max(usual, NICENESS), "tfs-open")]
    assert niceness() == usual
    assert set(threading.enumerate()) == threads


def test_what_is_opened_in_the_background_imports_in_turns(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "network_turn.py").write_text("import sys\ninterval = sys.getswitchinterval()\n")
    found = list[float]()

    def opened(request):
        found.append(importlib.import_module("network_turn").interval)

    platform = Platform("odd", "odd.bin", lambda files: True, opened, leaves_threads=lambda request: False)
    assert "open returned NoneType" in refusal(platform.start, REQUEST, code=StatusCode.FAILED_PRECONDITION)
    assert found == [pytest.approx(SWITCH_SECONDS)]


@pytest.mark.parametrize(("device", "on_gpu"), [("cpu", False), ("cuda:0", True)])
def test_request_says_whether_it_is_for_a_gpu(device, on_gpu):
    assert OpenRequest(ServableId("m", 1), REQUEST.files, device, False).on_gpu is on_gpu


def test_contract_and_base_class_need_no_torch():
    code = "import sys, tfs_lite.adapters.loaded_model, tfs_lite.adapters.detect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
