"""The models of OpenAI's API: which one a request names, why it is not available, and the list of them.

A request names a model as ``name``, ``name:label`` or ``name@version``. Names may have both characters in them: a name
that the server knows is that name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from tfs_lite.core.servable import MAX_VERSION, ModelRef
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.openai.answers import model_text, models_text
from tfs_lite.server.inference.predictor import Lookup
from tfs_lite.server.openai.embeddings import embeds
from tfs_lite.server.openai.errors import NoSuchModel
from tfs_lite.transport.table import EVERYTHING, Grant

Listing: TypeAlias = Callable[[], Iterable[tuple[str, Collection[int], float]]]
"""Every model that the server knows: its name, its available versions, and since when (seconds since 1970) it has
one."""

_NOT_THERE = (StatusCode.NOT_FOUND, StatusCode.INVALID_ARGUMENT)
"""An unknown label is INVALID_ARGUMENT elsewhere."""


class OpenAiModels:
    """The models as OpenAI's API shows them. This runs on the event loop, and so do the functions passed in: they are
    short."""

    def __init__(self, lookup: Lookup, models: Listing) -> None:
        self._lookup = lookup
        self._models = models

    def ref(self, sent: str, grant: Grant = EVERYTHING) -> ModelRef:
        """The model that a request's ``model`` names. NOT_FOUND if its sender may not see it."""
        ref = self._ref(sent)
        if not grant.allows(ref.name):
            raise NoSuchModel(f"The model '{sent}' does not exist")
        return ref

    def _ref(self, sent: str) -> ModelRef:
        name, at, version = sent.rpartition("@")
        is_version = bool(name and at) and version.isascii() and version.isdigit() and len(version) < 20
        if not is_version and ":" not in sent:
            return ModelRef(sent)
        if any(known == sent for known, _, _ in self._models()):
            return ModelRef(sent)
        if is_version:
            return ModelRef(name, version=min(int(version), MAX_VERSION))
        name, _, label = sent.rpartition(":")
        return ModelRef(name, label=label) if name and label else ModelRef(sent)

    def missing(self, sent: str, ref: ModelRef, error: ServingError) -> ServingError:
        """The error of a failed lookup for a client: the model is unknown, or only not available now."""
        if error.code not in _NOT_THERE:
            return error
        versions = next((versions for name, versions, _ in self._models() if name == ref.name), None)
        if versions is None:
            return NoSuchModel(f"The model '{sent}' does not exist")
        if not versions:
            return ServingError(StatusCode.UNAVAILABLE, f"The model '{sent}' has no version that is available now")
        if ref.label is not None:
            return NoSuchModel(f"The model '{ref.name}' has no label '{ref.label}'")
        shown = ", ".join(map(str, sorted(versions)[-10:]))
        return NoSuchModel(f"The model '{ref.name}' has no version {ref.version} that is available; there are: {shown}")

    def list(self, grant: Grant = EVERYTHING) -> bytes:
        """Language models and models of embeddings that can be asked now, and that the caller may see."""
        found = {}
        for name, versions, created in self._models():
            if versions and grant.allows(name) and self._can_answer(name):
                found[name] = int(created)
        return models_text(found)

    def one(self, sent: str) -> bytes:
        """The model under the name that was asked for. Raises ServingError."""
        ref = self.ref(sent)
        try:
            is_known_here = self._answers(ref)
        except ServingError as error:
            raise self.missing(sent, ref, error) from None
        if not is_known_here:
            raise NoSuchModel(f"The model '{sent}' is no language model")
        created = next((int(created) for name, _, created in self._models() if name == ref.name), 0)
        return model_text(sent, created)

    def _can_answer(self, name: str) -> bool:
        try:
            return self._answers(ModelRef(name))
        except ServingError:
            return False  # it has gone meanwhile

    def _answers(self, ref: ModelRef) -> bool:
        """Whether one of this API's routes is for the model."""
        with self._lookup(ref) as handle:
            servable = handle.servable
            return bool(servable.traits.generates) or embeds(servable.signatures)
