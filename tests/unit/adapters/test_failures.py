import pytest
import torch

from tfs_lite.adapters.failures import load_failure, run_failure, sentence, story
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode

ID = ServableId("m", 3)
SCRIPT_ERROR = (
    "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (serialized):\n"
    '  File "/srv/models/m.py", line 4, in forward\nRuntimeError: sizes do not match (3 vs 4)\n'
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("mat1 and mat2 do not fit\nException raised from x"), "mat1 and mat2 do not fit"),
        (RuntimeError(SCRIPT_ERROR), "sizes do not match (3 vs 4)"),
        (OSError("cannot open /srv/models/m/1/model.pt2: gone"), "cannot open model.pt2: gone"),
        (ValueError(r"C:\models\m\weights.bin is bad"), "weights.bin is bad"),
        (RuntimeError("shape [2/3] or a/b"), "shape [2/3] or a/b"),
        (ValueError(), "ValueError"),
        (ValueError("\n\n"), "ValueError"),
    ],
)
def test_sentence_is_one_line_without_paths(error, expected):
    assert sentence(error) == expected


def test_sentence_is_bounded():
    assert len(sentence(RuntimeError("x" * 10_000))) <= 300


@pytest.mark.parametrize(
    ("error", "declared", "code"),
    [
        (RuntimeError("no"), True, StatusCode.INTERNAL),
        (RuntimeError("no"), False, StatusCode.INVALID_ARGUMENT),
        (TypeError("no"), False, StatusCode.INVALID_ARGUMENT),
        (KeyError("no"), False, StatusCode.INTERNAL),
        (torch.OutOfMemoryError("CUDA out of memory"), False, StatusCode.RESOURCE_EXHAUSTED),
        (MemoryError(), True, StatusCode.RESOURCE_EXHAUSTED),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True, StatusCode.RESOURCE_EXHAUSTED),
        (ServingError(StatusCode.OUT_OF_RANGE, "no"), True, StatusCode.OUT_OF_RANGE),
    ],
)
def test_code_of_a_failed_run_says_who_is_to_blame(error, declared, code):
    failure = run_failure(ID, error, declared)
    assert failure.code is code
    if not isinstance(error, ServingError):
        assert str(failure).startswith("model m version 3 failed: ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("no"), StatusCode.FAILED_PRECONDITION, "model m version 3 cannot be loaded: RuntimeError: no"),
        (
            RecursionError("deep"),
            StatusCode.FAILED_PRECONDITION,
            "model m version 3 cannot be loaded: RecursionError: deep",
        ),
        (SystemExit(3), StatusCode.FAILED_PRECONDITION, "model m version 3 cannot be loaded: SystemExit: 3"),
        (KeyError("w"), StatusCode.FAILED_PRECONDITION, "model m version 3 cannot be loaded: KeyError: 'w'"),
        (MemoryError(), StatusCode.RESOURCE_EXHAUSTED, "model m version 3 cannot be loaded: MemoryError"),
        (ServingError(StatusCode.DATA_LOSS, "torn"), StatusCode.DATA_LOSS, "model m version 3: torn"),
    ],
)
def test_failed_load_names_the_version(error, code, message):
    failure = load_failure(ID, error)
    assert (failure.code, str(failure)) == (code, message)


class Unspeakable(RuntimeError):
    def __str__(self):
        raise ValueError("not even this")


def test_error_that_cannot_be_shown_is_named_by_its_type():
    assert sentence(Unspeakable()) == "Unspeakable"
    assert str(load_failure(ID, Unspeakable())) == "model m version 3 cannot be loaded: Unspeakable"
    assert str(run_failure(ID, Unspeakable(), True)) == "model m version 3 failed: Unspeakable"


def test_story_of_an_error_has_its_stack_and_both_ends_but_is_bounded():
    try:
        raise ValueError("begin" + "x" * 5_000_000 + "end")
    except ValueError as error:
        told = story(error)
    assert told.startswith("Traceback")
    assert __file__ in told
    assert "ValueError: begin" in told
    assert told.rstrip().endswith("end")
    assert len(told) < 10_000


def test_story_of_an_error_that_cannot_be_shown_has_its_stack():
    assert "Unspeakable" in story(Unspeakable())


def test_short_story_is_whole():
    assert story(ValueError("no")) == "ValueError: no"
