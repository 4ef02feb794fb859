"""Configs and models that are not in force, for as long as that stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.status import Status
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.config_sources import RefusedConfig


@dataclass(frozen=True, slots=True)
class StandingRefusal:
    """A config file or repository that is not in force, and since when the server has known that, in seconds since
    1970."""

    config: RefusedConfig
    since: float

    def in_words(self, paths: bool) -> tuple[str, str]:
        """Sentences that say what is not in force and what to do. ``paths``: whether the reader may see paths of the
        server."""
        config, where = self.config, f" {self.config.path}" if paths else ""
        if config.is_repository:
            message = config.status.message.replace("the model repository", "it", 1)
            return (
                f"the model repository{where} is not followed: {message}",
                "mend what the message says (a missing directory: a mount, its name, its rights): it is looked at "
                "again by itself; until then the models stay as they are",
            )
        return (
            f"the config file{where} was refused: {config.status.message}",
            f"correct the config file{where}{config.fix}; until then the config of before is in force",
        )


class Refusals:
    """``config`` is the config file or repository that is not in force, until it is corrected (None: it is, or none is
    followed); ``models`` are those of a repository that are not served and why, by name. Both are written by one thread
    at a time and replaced as a whole; any thread may read them."""

    def __init__(self, changes: ChangeNotifier, time: Callable[[], float]) -> None:
        self._changes = changes
        self._time = time
        self.config: StandingRefusal | None = None
        self.models: Mapping[str, Status] = {}

    def config_looked_at(self, refused: RefusedConfig | None) -> None:
        """Takes the result of each look at the config file or the repository: why its content is not in force; None if
        it is."""
        before = self.config
        if refused != (before.config if before is not None else None):
            since = before.since if before is not None else self._time()
            self.config = StandingRefusal(refused, since) if refused is not None else None
            self._changes.notify()

    def repository_refuses(self, models: Mapping[str, Status]) -> None:
        """Takes the models of the repository that are not served, until the next call."""
        self.models = models
        self._changes.notify()
