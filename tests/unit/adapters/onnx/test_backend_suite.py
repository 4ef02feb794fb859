"""ONNX's own backend suite, which is in the package ``onnx``, next to bare onnxruntime: the same answers, bit for bit.

Refused are only files whose inputs or outputs no request can have. Models that onnxruntime does not open or run are
refused here as well.
"""

from __future__ import annotations

import ctypes
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tfs_lite.adapters.onnx.signature import ELEMENT_TYPES, NOT_IN_NUMPY
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.runs import Run, call_inputs

Case = tuple[str, onnx.ModelProto, Sequence[Sequence[Any]]]
"""Name, model, and the values of its inputs, one list for each data set."""
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
NOT_SENDABLE = ("a sequence of tensors", "an optional value", "int4", "int2", "float8e8m0")
"""What messages say of the inputs and outputs that no request has."""
RAW = {f"tensor({dtype.text.replace('_', '')})": dtype for dtype in NOT_IN_NUMPY}
"""Types by onnxruntime's name that it exchanges as integers only."""
NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


def stored(folder: str) -> Iterator[Case]:
    for directory in sorted((DATA / folder).iterdir()):
        model = onnx.load(directory / "model.onnx")
        sets = sorted(directory.glob("test_data_set_*"))
        yield directory.name, model, [list(values(model, one)) for one in sets]


def values(model: onnx.ModelProto, folder: Path) -> Iterator[Any]:
    for index, value in enumerate(model.graph.input):
        path = folder / f"input_{index}.pb"
        if not path.exists():
            return
        kind = onnx.SequenceProto if value.type.HasField("sequence_type") else onnx.TensorProto
        message = kind()
        message.ParseFromString(path.read_bytes())
        yield numpy_helper.to_list(message) if kind is onnx.SequenceProto else message


def generated() -> Iterator[Case]:
    """Those of the operators, which the package makes anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for case in found:
        yield case.name, case.model, [inputs for inputs, _ in case.data_sets]


def light() -> Iterator[Case]:
    """Whole networks, whose weights are constants that the graph makes, for one picture each."""
    for path in sorted((DATA / "light").glob("*.onnx")):
        model = onnx.load(path)
        shapes = [value.type.tensor_type.shape for value in model.graph.input]
        sizes = [[dim.dim_value for dim in shape.dim] for shape in shapes]
        yield path.stem, model, [[np.ones(size, np.float32) for size in sizes]]


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession | None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return None


def plain(value: Any) -> Any:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def bare_answer(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> list[Any] | None:
    """What onnxruntime answers; None if the run fails."""
    raw = {np.dtype(to_numpy(dtype)): dtype for dtype in NOT_IN_NUMPY}
    outputs = session.get_outputs()
    try:
        if not any(array.dtype in raw for array in feeds.values()) and not any(out.type in RAW for out in outputs):
            return list(session.run(None, feeds))
        given = {name: as_value(array, raw) for name, array in feeds.items()}
        found = session.run_with_ort_values([output.name for output in outputs], given)
    except Exception:
        return None
    return [
        value.numpy() if output.type not in RAW else as_array(value, to_numpy(RAW[output.type]))
        for output, value in zip(outputs, found, strict=True)
    ]


def as_value(array: Any, raw: dict[Any, Any]) -> Any:
    if array.dtype not in raw:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    integers = np.array(array).view(np.uint16 if array.dtype == ml_dtypes.bfloat16 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(integers, NUMBERS[raw[array.dtype]])


def as_array(value: Any, dtype: Any) -> Any:
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if value.tensor_size_in_bytes() else b""
    return np.frombuffer(content, dtype).reshape(value.shape())


def encoded(array: Any) -> Any:
    """Texts as bytes, as requests and answers have them."""
    array = np.asarray(array)
    if array.dtype.kind not in "OU":
        return array
    texts = np.empty(array.shape, object)
    for index, text in np.ndenumerate(array):
        texts[index] = text.encode() if isinstance(text, str) else text
    return texts


def equal(left: Any, right: Any) -> bool:
    left, right = encoded(left), encoded(right)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    return left.tolist() == right.tolist() if left.dtype == object else left.tobytes() == right.tobytes()


def opened(directory: Path, model: onnx.ModelProto, loader_for: Any, trusted: bool) -> Any:
    """The loader, or why it refuses."""
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    loader = loader_for(directory, trusted=str(directory.parent) if trusted else "")
    try:
        loader.load(ServableId("m", 1))
    except ServingError as error:
        return error
    return loader


def verdict(session: Any, model: onnx.ModelProto, servable: Any, inputs: Sequence[Any]) -> str:
    taken = {value.name for value in session.get_inputs()}
    given = zip((value.name for value in model.graph.input), inputs, strict=False)
    feeds = {name: plain(value) for name, value in given if name in taken}
    expected = bare_answer(session, feeds)
    sent = {name: encoded(array) for name, array in feeds.items()}
    try:
        checked = call_inputs(servable.signatures[DEFAULT_SIGNATURE], Run(DEFAULT_SIGNATURE, sent))
        answer = servable.run("", checked, ())
    except ServingError:
        return "neither runs it" if expected is None else "only onnxruntime runs it"
    if expected is None:
        return "only the server runs it"
    names = [output.name for output in session.get_outputs()]
    return "equal" if all(map(equal, expected, (answer[name] for name in names))) else "differs"


def compare(cases: Iterable[Case], directory: Path, loader_for: Any, trusted: bool = False) -> Counter[str]:
    """How many cases came out in which way. Those that are refused for what no request can have are "not sendable"."""
    counts, surprises = Counter[str](), list[tuple[str, str]]()
    directory.mkdir(exist_ok=True)
    for name, model, sets in cases:
        session, loader = session_of(model), opened(directory, model, loader_for, trusted)
        if isinstance(loader, ServingError):
            found = ["neither opens it"]
            if session is not None:
                told = loader.code is StatusCode.FAILED_PRECONDITION and any(
                    kind in str(loader) for kind in NOT_SENDABLE
                )
                found = ["not sendable" if told else str(loader)]
        elif session is None:
            found = ["only the server opens it"]
        else:
            found = [verdict(session, model, loader.servable, inputs) for inputs in sets]
        if not isinstance(loader, ServingError):
            loader.unload()
        counts.update(found)
        fine = {"equal", "not sendable", "neither opens it", "neither runs it"}
        surprises += [(name, one) for one in found if one not in fine]
    assert surprises == []
    return counts


@pytest.mark.parametrize("folder", ["simple", "pytorch-converted", "pytorch-operator"])
def test_stored_models_answer_as_bare_onnxruntime_does(
    tmp_path: Path, loader_for: Callable[..., Any], folder: str
) -> None:
    counts = compare(stored(folder), tmp_path / "1", loader_for)
    assert counts["equal"] >= 10
    assert counts.total() - counts["equal"] <= 25, counts  # old operators, sequences, locales that are not installed


@pytest.mark.load
def test_every_operator_answers_as_bare_onnxruntime_does(tmp_path: Path, loader_for: Callable[..., Any]) -> None:
    counts = compare(generated(), tmp_path / "1", loader_for)
    assert counts["equal"] > 1000, counts  # 1,159 of onnx 1.17, and more of each later release


@pytest.mark.load
def test_whole_networks_answer_as_bare_onnxruntime_does(tmp_path: Path, loader_for: Callable[..., Any]) -> None:
    """Trusted: their weights are constants that fill more than 256 MiB while they are loaded."""
    counts = compare(light(), tmp_path / "1", loader_for, trusted=True)
    assert counts["equal"] == 9, counts
