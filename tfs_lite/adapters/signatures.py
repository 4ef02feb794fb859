"""Several signatures for one model, as its config declares them.

A model has signatures of its own; most have one. A :class:`SignatureMapping` maps another signature to one of them: it
exchanges names, requests only the outputs that are needed, and adds class labels to scores. Without a mapping in the
config names are the model's own, and classify and regress use the only output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.labels import read_labels
from tfs_lite.adapters.opening import OpenedModel, OpenedModelAround, OpenRequest
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import format_path, nearest
from tfs_lite.config.signatures import CLASSES, OUTPUTS_OF_METHOD, SCORES, ModelSignature, short_method
from tfs_lite.core.model import Shapes
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    Signature,
    Tensor,
    TensorSpec,
    find_signature,
    format_shape,
)
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import default_array, parse_default


@dataclass(frozen=True, slots=True)
class SignatureMapping:
    """A signature, and how it maps to the model's own.

    ``inputs`` and ``outputs`` map the signature's names to the model's; other names are the same on both sides. With
    ``labels`` the output ``classes`` consists of them, for the scores that it maps to. ``own`` is the key of the
    model's signature.
    """

    signature: Signature
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    labels: Array | None = None
    own: str = DEFAULT_SIGNATURE

    def feed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs under the model's names."""
        return {self.inputs.get(name, name): value for name, value in inputs.items()}

    def needed(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The outputs to request from the model."""
        return tuple(dict.fromkeys(self.outputs.get(name, name) for name in wanted))

    def answer(self, results: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
        """The wanted outputs that there are, or all of the results if none is named, under the signature's names."""
        if not wanted:
            return dict(results)
        own = {name: self.outputs.get(name, name) for name in wanted}
        return {name: self._output(name, results[of_model]) for name, of_model in own.items() if of_model in results}

    def _output(self, name: str, value: Tensor) -> Tensor:
        return value if self.labels is None or name != CLASSES else _labelled(value, self.labels)


class SignedModel(OpenedModelAround):
    """An :class:`OpenedModel` with the signatures of its config. It owns the model.

    Names are exchanged in ``run``; or, if the model has them, in ``preprocess`` and ``postprocess``, and then ``run``
    is the model's own for every signature.
    """

    def __init__(self, model: OpenedModel, servable_id: ServableId, mappings: Mapping[str, SignatureMapping]) -> None:
        super().__init__(model)
        self._id = servable_id
        self._mappings = mappings
        self._signatures = {key: mapping.signature for key, mapping in mappings.items()}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs as every model does; also INTERNAL if the number of classes in the scores is not that of the labels."""
        mapping = self._mapping(signature)
        if self._inner.has_item_steps:
            return self._inner.run(mapping.own, inputs, outputs)
        wanted = outputs or mapping.signature.output_names
        return self._answer(mapping, self._inner.run(mapping.own, mapping.feed(inputs), mapping.needed(wanted)), wanted)

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """Yields parts as every model does; each answer has all wanted outputs."""
        mapping = self._mapping(signature)
        wanted = outputs or mapping.signature.output_names
        for results in self._inner.parts(mapping.own, mapping.feed(inputs), mapping.needed(wanted)):
            yield self._answer(mapping, results, wanted)

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        mapping = self._mapping(signature)
        if self._inner.has_item_steps:
            return self._inner.stage(mapping.own, shapes)
        names = {mapping.inputs.get(name, name): name for name in shapes}
        memory = self._inner.stage(mapping.own, {own: shapes[name] for own, name in names.items()})
        return None if memory is None else {names[own]: array for own, array in memory.items()}

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        mapping = self._mapping(signature)
        return self._inner.preprocess(mapping.own, mapping.feed(inputs), deadline)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """Runs ``postprocess`` as every model does; also INTERNAL as ``run``."""
        mapping = self._mapping(signature)
        results = self._inner.postprocess(mapping.own, outputs, deadline)
        return self._answer(mapping, results, mapping.signature.output_names)

    def _mapping(self, signature: str) -> SignatureMapping:
        find_signature(self._signatures, signature)
        return self._mappings[signature or DEFAULT_SIGNATURE]

    def _answer(
        self, mapping: SignatureMapping, results: Mapping[str, Tensor], wanted: Collection[str]
    ) -> dict[str, Tensor]:
        try:
            return mapping.answer(results, wanted)
        except ServingError as error:
            raise ServingError(error.code, f"{label_of(self._id)}: {error.status.message}") from None


def sign(model: OpenedModel, request: OpenRequest) -> OpenedModel:
    """The model with the signatures of its config; the model itself if the config has none.

    INVALID_ARGUMENT, naming the field of the config, if a signature does not fit the model, its labels are missing or
    do not fit the scores, or an optional input can neither be left out nor has a default. A failure leaves the model
    open.
    """
    settings = request.settings
    if not settings.signatures:
        _check_optional(model.signatures.get(DEFAULT_SIGNATURE), {}, settings)
        return model
    return SignedModel(model, request.id, mappings_of(model.signatures, settings, request.files.directory))


def check_declared(signature: Signature, settings: ModelSettings) -> None:
    """Raises INVALID_ARGUMENT if the config contradicts the model's own signature; it may repeat what that declares."""
    for kind, specs, tensors in (
        ("input", signature.inputs, settings.input),
        ("output", signature.outputs, settings.output),
    ):
        known = {spec.name: spec for spec in specs}
        for tensor in tensors:
            spec = known.get(tensor.name)
            if spec is None:
                names = ", ".join(f'"{name}"' for name in known)
                raise invalid_argument(f'{kind} "{tensor.name}" of the config: the model has {names}')
            if tensor.data_type not in (DataType.INVALID, spec.dtype):
                raise invalid_argument(
                    f'{kind} "{tensor.name}" of the config is {tensor.data_type.text}, '
                    f"the model's is {spec.dtype.text}{format_shape(spec.shape)}"
                )


def mappings_of(own: Mapping[str, Signature], settings: ModelSettings, directory: str) -> dict[str, SignatureMapping]:
    """The signatures by key: the model's ``own``, and those of the config, each for the model's one of the same key, or
    else for its ``serving_default``. Reads files of labels in the version's ``directory``; errors as those of
    :func:`sign`."""
    mappings = {key: SignatureMapping(signature, own=key) for key, signature in own.items()}
    for key, declared in settings.signatures.items():
        base = key if key in own else DEFAULT_SIGNATURE
        mappings[key] = _mapping(own, base, declared, format_path(("signatures", key)), directory)
    main = mappings.get(DEFAULT_SIGNATURE)
    if main is not None:
        _check_optional(main.signature, {model: client for client, model in main.inputs.items()}, settings)
    return mappings


def _check_optional(signature: Signature | None, names: Mapping[str, str], settings: ModelSettings) -> None:
    """Raises INVALID_ARGUMENT if a request cannot leave out an input that the config calls optional: the model needs
    it, and there is no default. ``names``: the clients' names of inputs that have another one."""
    if signature is None:
        return
    for index, tensor in enumerate(settings.input):
        name = names.get(tensor.name, tensor.name)
        if tensor.optional and name in signature.input_names and name not in signature.dispensable:
            raise invalid_argument(
                f'{format_path(("input", index, "optional"))}: the model cannot do without the input "{tensor.name}"; '
                f"give it a default: {format_path(('signatures', DEFAULT_SIGNATURE, 'defaults', name))}"
            )


def labels_of(declared: ModelSignature, field: str, directory: str) -> Array | None:
    """The labels that the signature at ``field`` of the config names; None if it names none."""
    if not declared.label_filename:
        return None
    try:
        return read_labels(directory, declared.label_filename)
    except ServingError as error:
        raise ServingError(error.code, f"{field}.label_filename: {error.status.message}") from None


def _mapping(
    signatures: Mapping[str, Signature], base: str, declared: ModelSignature, field: str, directory: str
) -> SignatureMapping:
    own = find_signature(signatures, base)
    inputs, outputs = _inputs(own, declared, field), _outputs(own, declared, field)
    names = {model: client for client, model in inputs.items()}
    taken = tuple(replace(spec, name=names[spec.name]) for spec in own.inputs)
    given = {client: replace(_spec(own, model), name=client) for client, model in outputs.items()}
    labels = labels_of(declared, field, directory)
    if labels is not None:
        _check_labels(labels, outputs, given, f"{field}.label_filename")
        outputs[CLASSES] = outputs[SCORES]
        given[CLASSES] = TensorSpec(CLASSES, DataType.STRING, given[SCORES].shape)
    signature = Signature(
        taken,
        tuple(given.values()),
        declared.method_name,
        _defaults(taken, declared, field),
        frozenset(names[name] for name in own.optional),
        own.conditions and own.conditions.renamed(names),
        own.contract,
    )
    return SignatureMapping(signature, inputs, outputs, labels, base)


def _inputs(own: Signature, declared: ModelSignature, field: str) -> Mapping[str, str]:
    """The client's name of every input -> the model's."""
    known = own.input_names
    for client, model in declared.inputs.items():
        if model not in known:
            raise invalid_argument(f'{field}.inputs.{client}: the model has no input "{model}"{nearest(model, known)}')
    if not declared.inputs:
        return {name: name for name in known}
    for model in known:
        if model not in declared.inputs.values():
            raise invalid_argument(f'{field}.inputs: nothing feeds the input "{model}" of the model')
    return declared.inputs


def _outputs(own: Signature, declared: ModelSignature, field: str) -> dict[str, str]:
    """The client's name of every output -> the model's, in the order of the model's."""
    known = own.output_names
    for client, model in declared.outputs.items():
        if known and model not in known:
            raise invalid_argument(
                f'{field}.outputs.{client}: the model has no output "{model}"{nearest(model, known)}'
            )
    if not declared.outputs:
        return _usual_outputs(known, declared.method_name, field)
    order = {name: position for position, name in enumerate(known)}
    return dict(sorted(declared.outputs.items(), key=lambda pair: (order.get(pair[1], 0), pair[0])))


def _usual_outputs(known: Collection[str], method_name: str, field: str) -> dict[str, str]:
    """The outputs of a method without ``outputs`` in the config: see :class:`ModelSignature`."""
    usual = OUTPUTS_OF_METHOD.get(method_name)
    if usual is None:
        return {name: name for name in known}
    found = {name: name for name in known if name in usual}
    if found:
        return found
    if len(known) == 1:
        (only,) = known
        return {usual[-1]: only}
    has = f"it has {', '.join(known)}" if known else "it does not declare its outputs"
    raise invalid_argument(
        f"{field}.outputs: {short_method(method_name)} needs {' or '.join(usual)}; say which outputs of the model they "
        f"are ({has})"
    )


def _spec(own: Signature, name: str) -> TensorSpec:
    """The model's declaration of the output; a model may leave outputs undeclared."""
    return next((spec for spec in own.outputs if spec.name == name), TensorSpec(name))


def _check_labels(labels: Array, outputs: Mapping[str, str], given: Mapping[str, TensorSpec], field: str) -> None:
    if CLASSES in outputs:
        raise invalid_argument(f'{field}: the model has an output "{CLASSES}" already; keep one of both')
    if SCORES not in outputs:
        raise invalid_argument(f"{field}: there are no {SCORES} to label")
    shape = given[SCORES].shape
    if shape is None:
        return
    if len(shape) != 2:
        raise invalid_argument(f"{field}: {SCORES} have shape {format_shape(shape)}, labels need [batch,classes]")
    if isinstance(shape[1], int) and shape[1] != len(labels):
        raise invalid_argument(f"{field}: the file has {len(labels)} labels, the {SCORES} have {shape[1]} classes")


def _defaults(inputs: Iterable[TensorSpec], declared: ModelSignature, field: str) -> dict[str, Tensor]:
    specs = {spec.name: spec for spec in inputs}
    found: dict[str, Tensor] = {}
    for client, text in declared.defaults.items():
        if client not in specs:
            raise invalid_argument(f"{field}.defaults.{client}: there is no such input{nearest(client, specs)}")
        try:
            found[client] = default_array(parse_default(text), specs[client])
        except ServingError as error:
            raise invalid_argument(f"{field}.defaults.{client}: {error.status.message}") from None
    return found


def _labelled(scores: Tensor, labels: Array) -> Array:
    """The labels for every row of scores."""
    array = cast(Array, scores)
    if array.ndim != 2 or array.shape[1] != len(labels):
        raise ServingError(
            StatusCode.INTERNAL,
            f"the model returned {SCORES} of shape {format_shape(array.shape)}, but there are {len(labels)} labels",
        )
    return np.tile(labels, (array.shape[0], 1))
