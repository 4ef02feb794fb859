"""What the process of a SavedModel does: it reads the file, refuses what needs trust, and only then imports TensorFlow.

    open_version -> saved_model.pb, read without TensorFlow -> are its operators allowed? -> import, load

The process was forked by one that has imported neither torch nor TensorFlow: it had one thread when it entered its
sandbox, and TensorFlow's threads are in there, too. The server hears of signatures from here; requests come through
shared memory as those of every model in a process.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import orjson

from tfs_lite.adapters.failures import label_of, sentence, story, with_detail
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.tensorflow.platform import LIBRARY, NAME, inspect_saved_model, not_installed
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.protocols.dtypes import Array

_PASSED_ON = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.OUT_OF_RANGE, StatusCode.UNIMPLEMENTED, StatusCode.RESOURCE_EXHAUSTED}
)
"""Codes of TensorFlow that clients get as they are."""
_PLACES = ("Graph execution error", "Detected at node", "<stack traces")
logger = logging.getLogger(__name__)


def open_version(arguments: str) -> SavedModelFunctions:
    """Opens the version that ``adapters.remote.describe`` described. Errors are ServingErrors: UNIMPLEMENTED without
    TensorFlow, PERMISSION_DENIED for what needs trust, FAILED_PRECONDITION for what TensorFlow cannot load."""
    request = orjson.loads(arguments)
    if find_spec(LIBRARY) is None:
        raise not_installed()
    directory, tags = request["directory"], request["saved_model_tags"].split(",")
    settings = ModelSettings.model_validate(request["settings"])
    signatures = inspect_saved_model(directory, request["saved_model_tags"], request["trusted"], settings)
    _set_environment(request["device"])
    started = time.monotonic()
    import tensorflow

    _set_devices(tensorflow, request["torch_threads"])
    imported = time.monotonic()
    servable_id = ServableId(request["name"], request["version"])
    try:
        loaded = tensorflow.saved_model.load(directory, tags=tags)
        functions = {key: _function(loaded, key, signature) for key, signature in signatures.items()}
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
        return SavedModelFunctions(servable_id, signatures, functions, tensorflow, loaded)
    raise failure


class SavedModelFunctions(LoadedModel):
    """A loaded SavedModel: a function for each signature."""

    def __init__(
        self,
        servable_id: ServableId,
        signatures: Mapping[str, Signature],
        functions: Mapping[str, Callable[..., Mapping[str, Any]]],
        tensorflow: Any,
        loaded: object,
    ) -> None:
        super().__init__(servable_id, NAME, signatures)
        self._label = label_of(servable_id)
        self._functions = functions
        self._tensorflow = tensorflow
        self._loaded = loaded  # its functions work as long as it is there

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        function = self._functions[signature or DEFAULT_SIGNATURE]
        try:
            results = function(**{name: self._tensor(value) for name, value in inputs.items()})
            return {name: _array(results[name]) for name in outputs or results}
        except self._tensorflow.errors.OpError as error:
            failure = self._failure(error)
        raise failure

    def close(self) -> None:
        """Memory comes back when the process ends."""

    def resident_bytes(self) -> int | None:
        """Of the process, with TensorFlow in it, without what it shares with others."""
        with open("/proc/self/statm") as file:
            resident, shared = map(int, file.read().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def _tensor(self, value: Array) -> Any:
        """A tensor of its own: a variable of the model may keep it longer than the request's memory lasts."""
        if value.dtype == object:
            return self._tensorflow.constant(value, dtype=self._tensorflow.string)
        return self._tensorflow.constant(np.array(value))

    def _failure(self, error: Any) -> ServingError:
        """TensorFlow's own code where it says that the request is to blame, or that memory is lacking."""
        code = StatusCode(error.error_code) if error.error_code in _PASSED_ON else StatusCode.INTERNAL
        failure = ServingError(code, f"{self._label} failed: {_sentence(error.message)}")
        if code is StatusCode.INTERNAL:
            logger.error("%s failed on a request: %s", self._label, failure, extra={"story": story(error)})
        return failure


def _function(loaded: Any, key: str, signature: Signature) -> Callable[..., Mapping[str, Any]]:
    """The function behind a signature of the file."""
    function = loaded.signatures.get(key) if hasattr(loaded.signatures, "get") else None
    if function is None:
        raise failed_precondition(f'TensorFlow finds no signature "{key}", which the file declares')
    missing = sorted(set(signature.output_names) - set(function.structured_outputs))
    if missing:
        raise failed_precondition(f'signature "{key}" does not return {", ".join(missing)}, which the file declares')
    found: Callable[..., Mapping[str, Any]] = function
    return found


def _load_failure(error: Exception) -> ServingError:
    """RESOURCE_EXHAUSTED where what the model does when it is loaded needs more memory than there is."""
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


def _array(tensor: Any) -> Array:
    """The contents; texts as an array of objects, also a single one."""
    value = tensor.numpy()
    array: Array = np.asarray(value, dtype=object) if isinstance(value, bytes) else np.ascontiguousarray(value)
    if array.ndim != tensor.shape.rank:  # numpy makes a row of a single number
        array = array.reshape(tuple(tensor.shape))
    return array


def _set_environment(device: str) -> None:
    """What TensorFlow reads when it is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if device == "cpu" else device.partition(":")[2] or "0"


def _set_devices(tensorflow: Any, threads: int) -> None:
    """Before the first operation. Memory of a GPU is taken as it is needed, which was not tried on one."""
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tensorflow.config.list_physical_devices("GPU"):
        tensorflow.config.experimental.set_memory_growth(gpu, True)
