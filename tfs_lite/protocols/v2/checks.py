"""Checks whether a V2 request fits the model, in Triton's order and with Triton's messages.

    names twice -> wanted outputs -> which inputs -> batch of every input -> batch limit -> each input: datatype, sizes
    given, shape, bytes

Equal sizes and bounds of sizes, for which Triton has no messages, are checked later, as for requests of every API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    Dim,
    ShapeContract,
    Signature,
    TensorSpec,
    find_signature,
    format_shape,
    too_many_rows,
)
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.generation_tensors import INPUT_IDS, TEXT_INPUT
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.v2.request import InferRequest, SentTensor
from tfs_lite.protocols.v2.tensors import decode, dtype_of, name_of

MAX_SHOWN = 32
"""Names in a message."""
Read = Callable[[SentTensor], Array]


def run_of(
    request: InferRequest,
    signatures: Mapping[str, Signature],
    name: str,
    max_batch_size: int | None,
    read: Read | None = None,
) -> Run:
    """The run of ``request`` on model ``name``. Without a ``max_batch_size`` (0 or None) the first dimension is like
    any other. ``read`` gets inputs from shared memory. INVALID_ARGUMENT; FAILED_PRECONDITION for a model without the
    default signature; what ``read`` raises."""
    signature = find_signature(signatures, DEFAULT_SIGNATURE)
    check_distinct(request)
    _check_outputs(request, signature, name)
    specs = _specs_of(request, signature, name)
    if max_batch_size:
        _check_batch(request.inputs, name, max_batch_size)
    inputs: dict[str, Array] = {}
    has_shapes = signature.contract is not ShapeContract.NONE
    for tensor, spec in zip(request.inputs, specs, strict=True):
        inputs[tensor.name] = _checked(tensor, spec if has_shapes else replace(spec, shape=None), name, read)
    return Run(DEFAULT_SIGNATURE, inputs, tuple(output.name for output in request.outputs))


def check_distinct(request: InferRequest) -> None:
    """Raises INVALID_ARGUMENT if an input or an output is named twice."""
    if (name := _twice(tensor.name for tensor in request.inputs)) is not None:
        raise invalid_argument(f"input '{name:.256}' already exists in request for model '{request.model:.500}'")
    if (name := _twice(output.name for output in request.outputs)) is not None:
        raise invalid_argument(f"Duplicate output name '{name:.256}' is not allowed in a request")


def check_one_text(inputs: Mapping[str, Array], name: str) -> None:
    """Raises INVALID_ARGUMENT if a language model gets several texts, whose streams could not be told apart."""
    texts, tokens = inputs.get(TEXT_INPUT), inputs.get(INPUT_IDS)
    count = texts.size if texts is not None else tokens.shape[0] if tokens is not None and tokens.ndim > 1 else 1
    if count > 1:
        raise invalid_argument(
            f"the request has {count} texts for model '{name}', which takes one at a time when it streams its output"
        )


def _twice(names: Iterable[str]) -> str | None:
    """The first name that comes again."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_outputs(request: InferRequest, signature: Signature, name: str) -> None:
    known = signature.output_names
    for output in request.outputs:
        if output.name not in known:
            raise invalid_argument(f"unexpected inference output '{output.name:.256}' for model '{name}'")


def _specs_of(request: InferRequest, signature: Signature, name: str) -> list[TensorSpec]:
    """The spec of each input of the request, in its order."""
    specs = {spec.name: spec for spec in signature.inputs}
    _check_number(request.inputs, signature, name)
    found: list[TensorSpec] = []
    for tensor in request.inputs:
        spec = specs.get(tensor.name)
        if spec is None:
            raise invalid_argument(f"unexpected inference input '{tensor.name:.256}' for model '{name}'")
        found.append(spec)
    missing = _missing(request.inputs, signature)
    if missing:
        raise invalid_argument(f"missing required input(s) {_shown(missing)} for model '{name}'")
    return found


def _check_number(inputs: Sequence[SentTensor], signature: Signature, name: str) -> None:
    most, got = len(signature.inputs), len(inputs)
    least = most - len(signature.dispensable)
    if least <= got <= most:
        return
    expected = (
        f"expected {most} inputs but got"
        if least == most
        else (f"expected number of inputs between {least} and {most} but got")
    )
    missing = _missing(inputs, signature)
    but = f", but missing required input(s) {_shown(missing)}. Please provide all required input(s)" if missing else ""
    sent = _shown([tensor.name for tensor in inputs])
    raise invalid_argument(f"{expected} {got} inputs for model '{name}'. Got input(s) {sent}{but}.")


def _missing(inputs: Sequence[SentTensor], signature: Signature) -> list[str]:
    sent = {tensor.name for tensor in inputs}
    return [name for name in signature.input_names if name not in sent and name not in signature.dispensable]


def _check_batch(inputs: Sequence[SentTensor], name: str, max_batch_size: int) -> None:
    first: int | None = None
    for tensor in inputs:
        if not tensor.shape:
            raise invalid_argument(
                f"input '{tensor.name}' has no shape but model requires batch dimension for '{name}'"
            )
        if first is None:
            first = tensor.shape[0]
        elif tensor.shape[0] != first:
            raise invalid_argument(f"input '{tensor.name}' batch size does not match other inputs for '{name}'")
    if first is not None and first > max_batch_size:
        raise too_many_rows(max_batch_size, name)


def _checked(tensor: SentTensor, spec: TensorSpec, name: str, read: Read | None) -> Array:
    dtype = dtype_of(tensor.datatype, tensor.name, name)
    if spec.dtype not in (DataType.INVALID, dtype):
        raise invalid_argument(
            f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
            f"but model '{name}' expects '{name_of(spec.dtype)}'"
        )
    if any(size < 0 for size in tensor.shape):
        raise invalid_argument(
            f"All input dimensions should be specified for input '{tensor.name}' for model '{name}', "
            f"got shape {format_shape(tensor.shape)}"
        )
    if spec.shape is not None and not _fits(spec.shape, tensor.shape):
        raise invalid_argument(
            f"unexpected shape for input '{tensor.name}' for model '{name}'. "
            f"Expected {format_shape(spec.shape)}, got {format_shape(tensor.shape)}"
        )
    if tensor.memory is not None and read is not None:
        return read(tensor)
    return decode(tensor, name)


def _fits(declared: tuple[Dim, ...], shape: tuple[int, ...]) -> bool:
    """Whether rank and fixed sizes fit."""
    return len(declared) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True)
    )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return "[" + ",".join(f"'{name:.128}'" for name in names[:MAX_SHOWN]) + "]" + more
