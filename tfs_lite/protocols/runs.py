"""From a request to what is run: every check that needs no model, in the order in which clients know them.

    message or body  ->  Run (signature found, names checked, inputs decoded)
                     ->  call_inputs (outputs, defaults, dtypes and shapes)  ->  the model

Live requests and replayed ones go through here, so that a warm-up finds what a client would find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    Signature,
    check_input_names,
    check_inputs,
    check_output_filter,
    find_signature,
)
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.defaults import fill_defaults
from tfs_lite.protocols.dtypes import from_numpy
from tfs_lite.protocols.inference import check_predict_method
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensor_proto import MAX_FILL_BYTES, Array, decode

MAX_FILTER = 10_000
"""Names in an output_filter."""


@dataclass(slots=True)
class Run:
    """One run of the model: the key of a signature that it has, the inputs that were sent, and the outputs that are
    wanted (none: all of them). ``fits``: the signature that all of it is known to fit already."""

    signature: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...] = ()
    fits: Signature | None = None


def run_of_predict(
    signatures: Mapping[str, Signature],
    request: Message,
    check_method_names: bool = False,
    max_bytes: int = MAX_FILL_BYTES,
) -> Run:
    """The run that a PredictRequest asks for. ``max_bytes`` bounds what a tensor may be filled up to when fewer values
    than elements were sent. FAILED_PRECONDITION without the signature; INVALID_ARGUMENT."""
    key = request.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = find_signature(signatures, key)
    if check_method_names:
        check_predict_method(signature)
    check_input_names(signature, request.inputs)
    if len(request.output_filter) > MAX_FILTER:
        raise invalid_argument(f"output_filter has more than {MAX_FILTER} names")
    inputs = {name: decode(tensor, name, max_bytes) for name, tensor in request.inputs.items()}
    return Run(key, inputs, tuple(request.output_filter))


def call_inputs(signature: Signature, run: Run, max_bytes: int = MAX_FILL_BYTES) -> Mapping[str, Array]:
    """What the model gets: the inputs of ``run`` and the defaults of those that it lacks, repeated to at most
    ``max_bytes``. INVALID_ARGUMENT if outputs, dtypes or shapes do not fit the signature."""
    check_output_filter(signature, run.outputs)
    arrays = fill_defaults(signature, run.inputs, max_bytes)
    check_inputs(signature, {name: (from_numpy(array.dtype), array.shape) for name, array in arrays.items()})
    return arrays
