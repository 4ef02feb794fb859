"""The base class of the built-in platforms' models: what is done around the call of an artefact.

    find the signature -> compute -> pick the wanted outputs -> results as arrays -> check them; errors become statuses

Nothing here imports torch; models of torch extend it in :mod:`tfs_lite.adapters.pytorch.model`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from tfs_lite.adapters.cuda.failed_gpu import GPU_WATCH
from tfs_lite.adapters.failures import label_of, run_failure, story
from tfs_lite.adapters.opening import OpenedModel
from tfs_lite.adapters.results import as_sent, check_outputs
from tfs_lite.core.model import WorkerStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, ShapeContract, Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array

MAX_LOGGED_CAUSES = 20
logger = logging.getLogger(__name__)


class LoadedModel(OpenedModel, ABC):
    """A model whose results are arrays, unless ``to_arrays`` makes them so.

    Threads: ``run`` and ``close`` by one thread at a time, everything else by any. The caller's arrays are never
    written to; results belong to the caller. Every failure of ``run`` is a ServingError.
    """

    states: Mapping[str, str] = MappingProxyType({})
    """The output states that a model may leave out, and the inputs whose values they keep then."""
    leaves_out = False
    """Whether ``compute`` may leave wanted outputs out, and ``run`` then does as well."""
    reason = ""
    """Why ``Platform.open_in_process`` has opened the model; empty if ``Platform.open`` has."""

    def __init__(self, servable_id: ServableId, platform: str, signatures: Mapping[str, Signature]) -> None:
        self._id = servable_id
        self._platform = platform
        self._signatures = signatures
        self._shapes_were_checked = all(map(says_everything, signatures.values()))
        self._logged = set[str]()

    @property
    def platform(self) -> str:
        return self._platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus(reason=self.reason)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        declared = self.run_signature(signature)
        try:
            results = self.compute(signature, cast(Mapping[str, Array], inputs), outputs)
            if not isinstance(results, Mapping):
                raise self._no_dict(results)
            wanted = outputs or declared.output_names or tuple(results)
            if self.leaves_out:
                wanted = self._given(wanted, results)
            return self.to_arrays(declared, inputs, {name: self._pick(results, name, inputs) for name in wanted})
        except BaseException as error:  # a model that calls sys.exit() fails like any other
            failure = run_failure(self._id, error, self._shapes_were_checked)
            self._note(failure, error)
        raise failure

    def run_signature(self, signature: str) -> Signature:
        """The inputs and outputs of ``run``: the client's, unless the model has ``preprocess`` or ``postprocess``."""
        return find_signature(self._signatures, signature)

    @abstractmethod
    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        """Runs the model; results by name, at least the wanted ``outputs``. May raise anything."""

    def to_arrays(
        self, declared: Signature, inputs: Mapping[str, Tensor], results: Mapping[str, object]
    ) -> dict[str, Tensor]:
        """The results as arrays; INTERNAL unless they are that, and have the declared dtypes and shapes."""
        arrays = {name: as_sent(name, result) for name, result in results.items()}
        check_outputs(declared, inputs, arrays)
        return arrays

    @abstractmethod
    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors; None if unknown."""

    @abstractmethod
    def close(self) -> None:
        """Drops the weights. Called once, after the last ``run``."""

    def _no_dict(self, results: object) -> ServingError:
        kind = type(results).__name__
        return ServingError(
            StatusCode.INTERNAL, f"{label_of(self._id)} returned {kind}, expected a dict of the outputs by name"
        )

    def _pick(self, results: Mapping[str, object], name: str, inputs: Mapping[str, Tensor]) -> object:
        try:
            return results[name]
        except KeyError:
            if name in self.states:
                return inputs[self.states[name]]
            raise ServingError(
                StatusCode.INTERNAL,
                f"model {self._id.name} version {self._id.version} did not return output {name}; "
                f"it returned: {', '.join(sorted(results)) or 'nothing'}",
            ) from None

    def _given(self, wanted: tuple[str, ...], results: Mapping[str, object]) -> tuple[str, ...]:
        """The wanted outputs that there are. The log names the others, each set of them once."""
        given = tuple([name for name in wanted if name in results or name in self.states])
        if len(given) < len(wanted):
            missing, found = (", ".join(sorted(names)) for names in ({*wanted} - {*given}, results))
            if missing not in self._logged and len(self._logged) < MAX_LOGGED_CAUSES:
                self._logged.add(missing)
                logger.warning("%s did not return output %s; it returned: %s", self._id, missing, found or "nothing")
        return given

    def _note(self, failure: ServingError, error: BaseException) -> None:
        """Logs an internal failure with its stack, once per message. Some errors are the end of this process."""
        GPU_WATCH.saw(error)
        if failure.code is not StatusCode.INTERNAL or failure.status.message in self._logged:
            return
        if len(self._logged) < MAX_LOGGED_CAUSES:
            self._logged.add(failure.status.message)
            logger.error(
                "%s failed on a request: %s", self._id, failure, extra={"story": failure.detail or story(error)}
            )


def says_everything(signature: Signature) -> bool:
    """Whether every input's dtype and shape is declared, so that inputs that fit the signature fit the model."""
    return signature.contract is not ShapeContract.NONE and all(
        spec.dtype is not DataType.INVALID and spec.shape is not None for spec in signature.inputs
    )
