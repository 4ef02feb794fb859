"""Reading Predict requests: parsed once, and recognised by their bytes from then on.

    data -> known layout? -> the run, without a look at the message or the signature
         -> else: message -> checks -> run; if it was answered, its layout is remembered

A layout is remembered after a request was checked in full against a signature, and counts for that signature object
only; another version is checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, Array
from tfs_lite.protocols.messages import Message, PredictRequest
from tfs_lite.protocols.runs import Run, run_of_predict
from tfs_lite.protocols.tensorflow.predict_requests import Layouts, PredictLayout
from tfs_lite.protocols.tensorflow.serving import parse, read_model_spec


class PredictReader:
    """The reader of Predict requests, on one event loop. ``check_method_names`` and ``max_bytes`` as
    :func:`run_of_predict` has them."""

    def __init__(self, check_method_names: bool = False, max_bytes: int = MAX_FILL_BYTES) -> None:
        self.layouts = Layouts()
        self.check_method_names = check_method_names
        self.max_bytes = max_bytes

    def read(self, data: bytes) -> ParsedPredict:
        """INVALID_ARGUMENT for bytes that are no PredictRequest; everything else is checked later."""
        layout = self.layouts.find(data)
        if layout is None:
            request = parse(PredictRequest, data)
            return ParsedPredict(self, data, None, request, request.model_spec.name)
        return ParsedPredict(self, data, layout, None, layout.model.name)


class ParsedPredict:
    """One request. Order: ``model``, ``plan`` and, if the model has answered, ``answered``. ``name`` is the model's."""

    __slots__ = ("_data", "_inputs", "_layout", "_reader", "_request", "_signature", "name")

    def __init__(
        self, reader: PredictReader, data: bytes, layout: PredictLayout | None, request: Message | None, name: str
    ) -> None:
        self._reader = reader
        self._data = data
        self._layout = layout
        self._request = request
        self._inputs: Mapping[str, Array] = {}
        self._signature: Signature | None = None
        self.name = name

    def model(self) -> ModelRef:
        """INVALID_ARGUMENT without a name."""
        return self._layout.model if self._layout is not None else read_model_spec(self._message())

    def plan(self, servable: Servable) -> Sequence[Run]:
        """The run that is asked for; raises what :func:`run_of_predict` raises."""
        signatures, layout = servable.signatures, self._layout
        if layout is not None:
            key = layout.model.signature or DEFAULT_SIGNATURE
            signature = signatures.get(key)
            if signature is not None and signature is layout.fits:
                return [Run(key, layout.inputs(self._data), layout.outputs, signature)]
        run = run_of_predict(signatures, self._message(), self._reader.check_method_names, self._reader.max_bytes)
        self._signature, self._inputs = signatures[run.signature], run.inputs
        return [run]

    def answered(self) -> None:
        """Remembers the layout of a good request, so that equal ones need fewer checks."""
        signature = self._signature
        if signature is None or len(self._inputs) != len(signature.inputs):
            return
        layout = self._layout or self._reader.layouts.learn(
            self._data, self._message(), read_model_spec(self._message()), self._inputs
        )
        if layout is not None:
            layout.fits = signature

    def _message(self) -> Message:
        if self._request is None:
            self._request = parse(PredictRequest, self._data)
        return self._request
