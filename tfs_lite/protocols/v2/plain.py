"""Plain requests: numbers for the model's inputs and nothing else, which repeat with other numbers and another id.

    a request that was read in full -> PlainForm, remembered with its bytes -> the next equal bytes: PlainRequest -> Run

Of a plain request everything but the numbers and the id is known in advance, so it is checked once against a signature,
not each time. Requests with texts, booleans, parameters, sequences, shared memory or classes are never plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.protocols.v2.checks import run_of
from tfs_lite.protocols.v2.request import InferRequest, SentTensor, WantedOutput
from tfs_lite.protocols.v2.tensors import name_of

NUMBERS = frozenset(map(name_of, DataType)) - {"INVALID", "BYTES", "BOOL"}
"""The datatypes whose bytes mean something without a look at each."""


class PlainForm:
    """The common part of the requests of one form. Used on one thread."""

    __slots__ = ("_checked", "_fits", "_limit", "_tensors", "binary_outputs", "model", "names", "outputs", "wanted")

    def __init__(self, request: InferRequest) -> None:
        self.model = ModelRef(request.model, request.version)
        self.binary_outputs = request.binary_outputs
        self.wanted: Mapping[str, WantedOutput] = {output.name: output for output in request.outputs}
        self.outputs = tuple(self.wanted)
        self.names = self.outputs
        """The outputs of the answer, in order: those of the request, or of the signature that was checked last."""
        self._tensors = [(tensor.name, tensor.datatype, tensor.shape) for tensor in request.inputs]
        self._checked: Signature | None = None
        self._limit: int | None = None
        self._fits = False

    def fits(self, servable: Servable, inputs: Mapping[str, Array]) -> Signature | None:
        """The default signature, if requests of this form fit it. None means that a request has to be checked like any
        other, for the right error or because the model is of another kind."""
        traits = servable.traits
        signature = servable.signatures.get(DEFAULT_SIGNATURE)
        if signature is None or traits.decoupled or traits.generates:
            return None
        if signature is not self._checked or traits.max_batch_size != self._limit:
            self._fits = self._check(signature, traits.max_batch_size, inputs)
            self._checked, self._limit = signature, traits.max_batch_size
        return signature if self._fits else None

    def request(self, request_id: str, inputs: Mapping[str, Array]) -> InferRequest:
        """The request of this form with that id and these inputs, as it is read in full."""
        tensors = [SentTensor(name, datatype, shape, inputs[name]) for name, datatype, shape in self._tensors]
        outputs = [*self.wanted.values()]
        model, binary = self.model, self.binary_outputs
        return InferRequest(model.name, model.version, request_id, tensors, outputs, binary_outputs=binary)

    def _check(self, signature: Signature, max_batch_size: int, inputs: Mapping[str, Array]) -> bool:
        """Whether the request passes every check, and leaves out no input."""
        try:
            run = run_of(self.request("", inputs), {DEFAULT_SIGNATURE: signature}, self.model.name, max_batch_size)
            call_inputs(signature, run)
        except ServingError:
            return False
        self.names = self.outputs or signature.output_names
        return len(inputs) == len(signature.inputs)


class PlainRequest:
    """A request that was recognised. ``run`` is None until ``plan`` has found that it fits the model; ``names`` are the
    outputs of its answer then."""

    __slots__ = ("form", "id", "inputs", "names", "run")

    def __init__(self, form: PlainForm, request_id: str, inputs: Mapping[str, Array]) -> None:
        self.form = form
        self.id = request_id
        self.inputs = inputs
        self.names: tuple[str, ...] = ()
        self.run: Run | None = None

    @property
    def model(self) -> str:
        return self.form.model.name

    @property
    def binary_outputs(self) -> bool:
        return self.form.binary_outputs

    def in_full(self) -> InferRequest:
        """The same as any other request."""
        return self.form.request(self.id, self.inputs)

    def plan(self, servable: Servable) -> Sequence[Run]:
        """The run on this version. :class:`Unfit` if the request has to be checked like any other."""
        signature = self.form.fits(servable, self.inputs)
        if signature is None:
            raise Unfit
        self.names = self.form.names
        self.run = Run(DEFAULT_SIGNATURE, self.inputs, self.form.outputs, signature)
        return (self.run,)


class Unfit(Exception):
    """Requests of a form do not fit this version, or the version is of a model that is no plain function."""


def plain_form(request: InferRequest) -> PlainForm | None:
    """The form of a request; None if it is not plain."""
    if not request.inputs or request.sequence is not None or request.priority or request.timeout or request.parameters:
        return None
    if request.empty_final or any(output.classification or output.memory for output in request.outputs):
        return None
    for entries in (request.inputs, request.outputs):
        if len({entry.name for entry in entries}) < len(entries):
            return None
    for tensor in request.inputs:
        if tensor.memory is not None or 0 in tensor.shape or tensor.datatype not in NUMBERS:
            return None
    return PlainForm(request)
