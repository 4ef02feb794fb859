"""The part of a model's config about its versions and its answers: which versions are served, whether a request may
have several answers, whether answers are kept for equal requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import StrictBool, StrictStr, model_validator

from tfs_lite.config.model_server import VersionPolicy
from tfs_lite.config.settings import Settings, problem
from tfs_lite.config.signatures import Name

VersionPolicySettings = VersionPolicy
"""The same as in a server's config: ``latest``, ``all`` or ``specific``; ``choice`` is the one that counts."""


class TransactionPolicy(Settings):
    """``decoupled``: a request may have any number of answers."""

    decoupled: StrictBool = False


class ResponseCacheSettings(Settings):
    """``enable``: the answer to an equal request may be given again, if the server has a cache."""

    enable: StrictBool = False


class Agent(Settings):
    """A plugin that changes a model's files before they are loaded."""

    name: Name
    parameters: Mapping[StrictStr, StrictStr] = {}


class RepositoryAgents(Settings):
    """Always empty: files are served as they are."""

    agents: tuple[Agent, ...] = ()

    @model_validator(mode="after")
    def _none(self) -> RepositoryAgents:
        if self.agents:
            raise problem("is not supported; leave it out", "agents")
        return self
