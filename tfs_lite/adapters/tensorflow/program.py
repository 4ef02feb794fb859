"""The program of a SavedModel's process: it reads the file, refuses what needs trust, and only then imports TensorFlow.

    open_version -> saved_model.pb, read without TensorFlow -> are its operators allowed? -> import
                 -> the graph in a session -> variables -> initialisers

The graph is loaded, and not the tree of Python objects with it: as TensorFlow Serving does it, so that every model
that it loads is loaded here. What runs is what was looked at: the bytes are read once, and only the operation that
restores the variables, the one that initialises the graph, and the signatures are run.

The process was forked by one that has imported neither torch nor TensorFlow: it had one thread when it entered its
sandbox, and TensorFlow's threads are in there, too. The server hears of signatures from here; requests come through
shared memory as those of every model in a process.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import orjson

from tfs_lite.adapters.failures import label_of, sentence, story, with_detail
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.results import DEPENDS, dependent_output
from tfs_lite.adapters.tensorflow.platform import LIBRARY, NAME, inspect_graph, not_installed
from tfs_lite.adapters.tensorflow.saved_model import INIT_COLLECTIONS, INIT_OP, open_saved_model
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, common_batch, shapes_fault
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import Array

MAX_CALLABLES = 64
"""Choices of signature and outputs whose graphs TensorFlow keeps prepared."""
_PASSED_ON = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.OUT_OF_RANGE, StatusCode.UNIMPLEMENTED, StatusCode.RESOURCE_EXHAUSTED}
)
"""Codes of TensorFlow that clients get as they are."""
_READING = frozenset(
    {
        *(
            "VarHandleOp",
            "ReadVariableOp",
            "ResourceGather",
            "ResourceGatherNd",
            "VariableShape",
            "Variable",
            "VariableV2",
        ),
        *("HashTable", "HashTableV2", "LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2"),
        *("If", "Case", "PartitionedCall", "StatefulPartitionedCall", "Assert"),
    }
)
"""Operators that TensorFlow counts among those with a state, and that change none; the functions that some of them call
are looked at themselves."""
_LOOPS = frozenset({"While", "StatelessWhile", "LoopCond"})
_ASSETS = "saved_model_assets"
_PLACES = ("Graph execution error", "Detected at node", "<stack traces", "Original stack trace")
logger = logging.getLogger(__name__)


def open_version(arguments: str) -> SavedModelSession:
    """Opens the version that ``adapters.remote.describe`` described. Errors are ServingErrors: UNIMPLEMENTED without
    TensorFlow, PERMISSION_DENIED for what needs trust, FAILED_PRECONDITION for what TensorFlow cannot load."""
    request = orjson.loads(arguments)
    if find_spec(LIBRARY) is None:
        raise not_installed()
    directory, tags = request["directory"], request["saved_model_tags"].split(",")
    with open_saved_model(directory) as saved:
        graph = saved.tagged(tags)
        signatures = inspect_graph(graph, request["trusted"], ModelSettings.model_validate(request["settings"]))
        shares = request["device"] == "cpu" and max(request["batch_rows"]) > 1
        batched = {key: found for key, found in signatures.items() if shares and _has_rows(found)}
        operators = graph.operators_of(batched)
        content = graph.content
        del graph, saved
    _set_environment(request["device"])
    started = time.monotonic()
    import tensorflow

    imported = time.monotonic()
    servable_id = ServableId(request["name"], request["version"])
    try:
        definition = tensorflow.compat.v1.MetaGraphDef.FromString(content)
        del content
        session = _load(tensorflow, definition, directory, request["torch_threads"])
        for key, signature in signatures.items():
            _check_tensors(session.graph, key, signature)
    except ServingError:
        raise
    except Exception as error:
        failure = with_detail(_load_failure(error), story(error))
    else:
        logger.info(
            "TensorFlow %s was imported in %.1f s, the model loaded in %.1f s",
            tensorflow.__version__,
            imported - started,
            time.monotonic() - imported,
        )
        found = SavedModelSession(servable_id, signatures, tensorflow, session)
        found.look_for_company([key for key in batched if _may_be_tried(operators[key])])
        return found
    raise failure


class SavedModelSession(LoadedModel):
    """A loaded SavedModel: a session with its graph."""

    def __init__(
        self, servable_id: ServableId, signatures: Mapping[str, Signature], tensorflow: Any, session: Any
    ) -> None:
        super().__init__(servable_id, NAME, signatures)
        self._label = label_of(servable_id)
        self._tensorflow = tensorflow
        self._session = session
        self._prepared = lru_cache(MAX_CALLABLES)(self._prepare)

    def look_for_company(self, keys: Iterable[str]) -> None:
        """Runs these signatures on made-up inputs of one row and of two. Calls of one that answers a row differently
        beside another share no run. Before the first request."""
        for key in keys:
            declared = self._signatures[key]
            output = dependent_output(self._id, declared, partial(self._run, key, declared.output_names), second=0)
            if output:
                logger.warning(DEPENDS, f"signature {key} of {self._id}", output)
                alone = replace(declared, conditions=read_conditions((), (), complete=False))
                self._signatures = {**self._signatures, key: alone}

    def _run(self, key: str, outputs: tuple[str, ...], inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = self._prepared(key, outputs)(*[_own(inputs[name]) for name in self._signatures[key].input_names])
        return {name: _array(result) for name, result in zip(outputs, results, strict=True)}

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        key = signature or DEFAULT_SIGNATURE
        declared, wanted = self._signatures[key], outputs or self._signatures[key].output_names
        try:
            return self._run(key, wanted, inputs)
        except self._tensorflow.errors.OpError as error:
            failure = self._failure(error, shapes_fault(declared, inputs))
        raise failure

    def close(self) -> None:
        """Does nothing: memory comes back when the process ends."""

    def resident_bytes(self) -> int | None:
        """Bytes of the process, with TensorFlow in it, without what it shares with others."""
        with open("/proc/self/statm") as file:
            resident, shared = map(int, file.read().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def _prepare(self, key: str, outputs: tuple[str, ...]) -> Callable[..., Sequence[Any]]:
        """The part of the graph from the inputs to these outputs, ready to run. Unlike ``Session.run`` it takes inputs
        of every shape, as the session of TensorFlow Serving does."""
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        signature = self._signatures[key]
        tensors = {spec.name: spec.tensor for spec in signature.outputs}
        feed, fetch = [spec.tensor for spec in signature.inputs], [tensors[name] for name in outputs]
        found: Callable[..., Sequence[Any]] = self._session._make_callable_from_options(
            CallableOptions(feed=feed, fetch=fetch)
        )
        return found

    def _failure(self, error: Any, unfit: str) -> ServingError:
        """The error to raise for one of TensorFlow's: its own code where it says that the request is to blame, or that
        memory is lacking. ``unfit``: how the inputs differ from the declaration; then it is the request, whatever
        TensorFlow says."""
        code = StatusCode(error.error_code) if error.error_code in _PASSED_ON else StatusCode.INTERNAL
        if unfit and code is not StatusCode.RESOURCE_EXHAUSTED:
            return invalid_argument(f"{self._label} failed: {_sentence(error.message)}; {unfit}")
        failure = ServingError(code, f"{self._label} failed: {_sentence(error.message)}")
        if code is StatusCode.INTERNAL:
            logger.error("%s failed on a request: %s", self._label, failure, extra={"story": story(error)})
        return failure


def _has_rows(signature: Signature) -> bool:
    batch = common_batch(signature)
    return batch is not None and all(spec.batch == batch for spec in signature.outputs)


def _may_be_tried(operators: Set[str]) -> bool:
    """Whether runs of these operators leave no traces and come to an end: none changes anything, draws random numbers
    or has a loop. TensorFlow has to be imported."""
    from tensorflow.python.framework import op_def_registry

    for operator in operators - _READING:
        definition = op_def_registry.get(operator)
        if operator in _LOOPS or definition is None or definition.is_stateful:
            return False
        if any(argument.is_ref for argument in definition.input_arg):
            return False
    return True


def _load(tensorflow: Any, definition: Any, directory: str, threads: int) -> Any:
    """A session with the graph, its variables and tables, as ``LoadSavedModel`` of TensorFlow makes it."""
    v1 = tensorflow.compat.v1
    config = v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1, allow_soft_placement=True
    )
    config.gpu_options.allow_growth = True  # which was not tried on one
    info, graph = definition.meta_info_def, v1.Graph()
    known = info.stripped_op_list if info.HasField("stripped_op_list") else None
    with graph.as_default():
        v1.import_graph_def(definition.graph_def, name="", producer_op_list=known)
    session = v1.Session(graph=graph, config=config)
    assets = _assets(definition, directory)
    variables, saver = os.path.join(directory, "variables", "variables"), definition.saver_def
    if saver.restore_op_name and os.path.exists(f"{variables}.index"):
        session.run(saver.restore_op_name, {_tensor(saver.filename_tensor_name): variables} | assets)
    initialiser = _initialiser(definition)
    if initialiser:
        session.run(initialiser, assets)
    return session


def _assets(definition: Any, directory: str) -> dict[str, str]:
    """The path of each asset, by the tensor that takes it."""
    from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

    found = list(definition.asset_file_def)
    if not found and _ASSETS in definition.collection_def:  # as before TensorFlow 1.12
        for value in definition.collection_def[_ASSETS].any_list.value:
            found.append(AssetFileDef())
            value.Unpack(found[-1])
    return {_tensor(asset.tensor_info.name): os.path.join(directory, "assets", asset.filename) for asset in found}


def _initialiser(definition: Any) -> str:
    """The operation that is run at the start; empty if there is none."""
    signatures, collections = definition.signature_def, definition.collection_def
    if INIT_OP in signatures:
        return str(signatures[INIT_OP].outputs[INIT_OP].name)
    for key in INIT_COLLECTIONS:
        if key in collections:
            names = collections[key].node_list.value
            if len(names) != 1:
                raise failed_precondition(f"the collection {key} of the graph names {len(names)} operations, not one")
            return str(names[0])
    return ""


def _check_tensors(graph: Any, key: str, signature: Signature) -> None:
    """Raises FAILED_PRECONDITION if the graph has not what the signature declares."""
    for spec in (*signature.inputs, *signature.outputs):
        try:
            tensor = graph.get_tensor_by_name(_tensor(spec.tensor))
        except (KeyError, ValueError):
            raise failed_precondition(
                f'the graph has no tensor "{spec.tensor}", which signature "{key}" declares as {spec.name}'
            ) from None
        found = DataType(tensor.dtype.base_dtype.as_datatype_enum)
        if found is not spec.dtype:
            raise failed_precondition(
                f'signature "{key}" declares {spec.name} as {spec.dtype.text}; the graph has {found.text}'
            )


def _tensor(name: str) -> str:
    """The full name: files may leave out which output of an operation it is, if that is the first."""
    return name if ":" in name else f"{name}:0"


def _own(value: Array) -> Array:
    """A copy: a variable of the model may keep it longer than the request's memory lasts."""
    return np.array(value)


def _load_failure(error: Exception) -> ServingError:
    """The error of a failed load: RESOURCE_EXHAUSTED where what the model does when it is loaded needs more memory than
    there is."""
    message = getattr(error, "message", None)
    reason = sentence(error) if message is None else _reason(message)
    if getattr(error, "error_code", None) == StatusCode.RESOURCE_EXHAUSTED:
        return ServingError(StatusCode.RESOURCE_EXHAUSTED, f"TensorFlow has not the memory to load it: {reason}")
    return failed_precondition(f"TensorFlow cannot load it: {reason}")


def _reason(message: str) -> str:
    """The first line of a message of TensorFlow that is not about the place in the graph."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(_PLACES)]
    return sentence(RuntimeError((said or lines or [message])[0]))


def _sentence(message: str) -> str:
    """The reason in a message of TensorFlow, which stands before the node that failed, and behind a stack."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    node = next((index for index, line in enumerate(lines) if line.startswith("[[")), 1)
    return sentence(RuntimeError(lines[node - 1] if node and lines else message))


def _array(value: Any) -> Array:
    """Makes an array, also of a single number or text."""
    return np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value, order="C")


def _set_environment(device: str) -> None:
    """Sets the variables that TensorFlow reads when it is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if device == "cpu" else device.partition(":")[2] or "0"
