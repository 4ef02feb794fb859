"""The sources of the server's config: a config file, one base path, or a model repository, as the options say.

:func:`read_first_config` reads the one of the start. The watchers keep the served set up to date: they apply a changed
file or repository as a reload would, but wait for no model, because one that takes long to load must not hold up the
next change; a failure is logged once per cause and tried again. :class:`ModelLocator` looks up which models could be
loaded by a call, anew for each call.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tfs_lite.config.model_server import ModelConfig, ModelServerConfig, Specific, VersionPolicy, one_model
from tfs_lite.config.settings import Document, build
from tfs_lite.config.text import QUIET_SECONDS, REMOVAL_SECONDS, FileState, QuietFile, read_model_server_config
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.history import Cause, Origin, acting, current_origin
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.status import OK, ServingError, Status, failed_precondition, invalid_argument
from tfs_lite.core.threads import BoundedCalls, PeriodicThread
from tfs_lite.serving.config_checks import base_directory
from tfs_lite.serving.opening.model_configs import base_settings, wanted_by
from tfs_lite.serving.options import URL_IN_EXPLICIT_MODE, ServerOptions
from tfs_lite.serving.source_chain import served_platforms
from tfs_lite.sources.disk import DirectoryEntry, Disk, RealDisk
from tfs_lite.sources.look_queue import DISK_TIMEOUT_SECONDS
from tfs_lite.sources.repository import NO_TEXT, ModelRepository, models_in
from tfs_lite.storage.url import is_url

logger = logging.getLogger(__name__)


def read_first_config(options: ServerOptions) -> ModelServerConfig:
    """Reads the config file or the base path. Raises INVALID_ARGUMENT or NOT_FOUND in one line that names the place and
    the fault. For a model repository, see :class:`RepositoryWatcher`."""
    directory = working_directory(options)
    if options.model_config_file:
        return read_config_file(options.model_config_file, directory)
    if options.model_base_path:
        return one_model(options.model_name, options.model_base_path, directory)
    raise invalid_argument(
        "nothing to serve: set model_base_path, model_config_file or model_repository (--model_base_path=DIR ...)"
    )


def read_config_file(path: str, directory: Path) -> ModelServerConfig:
    """A config file of this server. The error of a mistake, an unsupported platform too, names its place."""
    return read_model_server_config(path, directory, served_platforms())


def working_directory(options: ServerOptions) -> Path:
    """The directory that relative base paths in flags and files are below."""
    return base_directory(options) or Path.cwd()


Apply = Callable[[ModelServerConfig], None]
_Found = tuple[str, VersionPolicy]
"""A base path, and which versions there are wanted."""


@dataclass(frozen=True, slots=True)
class RefusedConfig:
    """The reason why the config file or the model repository at ``path`` is not in force. ``config`` is its content;
    None if it cannot be read. ``is_polled``: the server looks at it again by itself."""

    path: str
    status: Status
    config: ModelServerConfig | None = None
    is_repository: bool = False
    is_polled: bool = True

    @classmethod
    def of(
        cls,
        path: str,
        status: Status,
        config: ModelServerConfig | None,
        *,
        is_repository: bool = False,
        is_polled: bool = True,
    ) -> RefusedConfig:
        return cls(path, without_path(status, path), config, is_repository, is_polled)

    def named(self, model: str) -> ModelConfig | None:
        """The config of the model; None if the file does not name it, or cannot be read."""
        models = self.config.models if self.config is not None else ()
        return next((found for found in models if found.name == model), None)

    @property
    def fix(self) -> str:
        """The words that follow "correct the config file": how the server comes to read it again."""
        return (
            ": it is read again by itself" if self.is_polled else ", then send the server SIGHUP, which reads it again"
        )


def without_path(status: Status, path: str) -> Status:
    """The same for clients, who may not all see paths of the server: the message has the last name of the path only."""
    return replace(status, message=status.message.replace(path, os.path.basename(path)))


class ConfigFileWatcher:
    """Looks at the file at intervals, and applies it when its meaning has changed, or when the last attempt failed.
    With an interval of 0 nothing but :meth:`look` reads it.

    The file may be written in place, and slowly. So a change counts only once the file has not changed for
    :data:`QUIET_SECONDS`; one that names fewer models than the config in force, or is shorter than its file, after
    :data:`REMOVAL_SECONDS`. Polls in between come by themselves, whatever the interval is.
    """

    what = "the config file"

    def __init__(
        self,
        path: str,
        working_directory: Path,
        interval: float,
        applied: ModelServerConfig,
        apply: Apply,
        clock: Clock,
        on_refused: Callable[[Status], None] = ignore,
        on_looked: Callable[[RefusedConfig | None], None] = ignore,
        disk_timeout: float = DISK_TIMEOUT_SECONDS,
    ) -> None:
        """``interval`` is in seconds. ``on_refused`` is told after each look at a file that makes no config; what
        ``apply`` refuses is not.
        ``on_looked`` is told after each look why what the file says is not in force; None: it is. A file that has not
        been read within ``disk_timeout`` seconds counts as one that cannot be read."""
        self._path = path
        self._working_directory = working_directory
        self._clock = clock
        self._file = working_directory / path
        self._applied: ModelServerConfig | None = applied
        self._in_force = applied
        self._bytes = 0
        """The bytes of the file of the config in force, as far as it was read here."""
        self._read_at: FileState | None = None
        """The state of the file when it was read last."""
        self._read_config: ModelServerConfig | None = None
        """The content of the file that this look is at; None if it has not been read."""
        self._quiet = QuietFile(clock.monotonic)
        self._next_look: Timer | None = None
        self._apply = apply
        self._on_refused = on_refused
        self._on_looked = on_looked
        self._logged_error = ""
        self._calls = BoundedCalls(disk_timeout)
        self._is_polled = interval > 0
        self._looking = threading.Lock()  # held by one look or poll at a time
        self._thread = PeriodicThread("tfs-config-file", self.poll, interval)

    def start(self) -> None:
        if self._is_polled:
            self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        if self._next_look is not None:
            self._next_look.cancel()

    def poll(self) -> None:
        """Looks at the file once, and reads it where that may change something. Never raises for what is in it."""
        with self._looking, acting(Origin(Cause.CONFIG_FILE)):
            try:
                self._attempt(self._poll)
            except ServingError as error:
                if str(error) != self._logged_error:
                    self._logged_error = str(error)
                    logger.error("the config file was refused, nothing changed; it is tried again: %s", str(error))

    def look(self) -> None:
        """Reads the file now, on the caller's thread, and applies it as it is, also where a call has applied another
        config since. Raises what refuses it; then nothing changes."""
        with self._looking:
            self._attempt(self._look)

    def _attempt(self, look: Callable[[], bool]) -> None:
        """Tells whether the file is in force, unless ``look`` says that it is too early."""
        self._read_config = None
        try:
            if look():
                self._logged_error = ""
                self._on_looked(None)
        except ServingError as error:
            refused = RefusedConfig.of(self._path, error.status, self._read_config, is_polled=self._is_polled)
            self._on_looked(refused)
            raise

    def _poll(self) -> bool:
        """False where it is too early."""
        state = self._state()
        quiet = self._quiet.seconds(state)
        if state is not None and state == self._read_at and self._applied is not None:
            return True
        if self._look_later(QUIET_SECONDS - quiet):
            return False
        config = self._read()
        changed = self._state() != state  # while it was read
        needed = REMOVAL_SECONDS if self._says_less(config, state) else QUIET_SECONDS
        if self._look_later(QUIET_SECONDS if changed else needed - quiet):
            return False
        self._follow(config, state)
        return True

    def _look(self) -> bool:
        state = self._state()
        config = self._read()
        self._applied = None
        self._follow(config, state)
        return True

    def _state(self) -> FileState | None:
        """Raises UNAVAILABLE where the disk hangs."""
        return self._calls.call("the config file", lambda: FileState.of(self._file))

    def _follow(self, config: ModelServerConfig, state: FileState | None) -> None:
        if config != self._applied:
            self._applied = None
            self._apply(config)
            self._applied = config
        self._in_force, self._read_at = config, state
        self._bytes = state.size if state is not None else 0

    def _says_less(self, config: ModelServerConfig, state: FileState | None) -> bool:
        names = {model.name for model in config.models}
        shorter = state is not None and state.size < self._bytes and config != self._in_force
        return shorter or any(model.name not in names for model in self._in_force.models)

    def _look_later(self, seconds: float) -> bool:
        """Whether it is too early by so many seconds; then it looks again by itself."""
        if seconds <= 0:
            return False
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._clock.call_later(seconds, self._thread.wake)
        return True

    def _read(self) -> ModelServerConfig:
        try:
            config = self._calls.call("the config file", lambda: read_config_file(self._path, self._working_directory))
        except ServingError as error:
            self._on_refused(without_path(error.status, self._path))
            raise
        self._read_config = config
        return config


class RepositoryWatcher:
    """Serves every model of a directory, also those that appear later, in the versions that the model's config asks
    for. ``first_look`` -> ``start`` -> ``close``."""

    what = "the repository"

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock,
        check: Callable[[ModelServerConfig], None],
        apply: Apply,
        on_refused: Callable[[Mapping[str, Status]], None] = ignore,
        on_looked: Callable[[RefusedConfig | None], None] = ignore,
        on_unread: Callable[[Mapping[str, Status]], None] = ignore,
    ) -> None:
        """``on_refused`` is told, by name, which models cannot be served and why, whenever that has changed.
        ``on_looked`` is told after each look why the repository as a whole is not in force; None: it is. ``on_unread``
        is told, by name, of the configs that are wrong, so that the version policy stays as it was, whenever that has
        changed."""
        self._check = check
        self._on_refused = on_refused
        self._on_unread = on_unread
        self._on_looked = on_looked
        self._apply = apply
        self._logged_error = ""
        self._started = threading.Event()
        self._policies = RepositoryPolicies(clock)
        self._found: dict[str, _Found] = {}
        self._refused: dict[str, Status] = {}
        self._unread: dict[str, Status] = {}
        self._no_text: frozenset[str] = frozenset()
        self._path = os.path.abspath(options.model_repository)
        interval = options.file_system_poll_wait_seconds
        self._repository = ModelRepository(
            self._path,
            RealDisk(),
            clock,
            self._on_models,
            poll_interval=interval if interval > 0 else None,
            watch=interval > 0,
            on_problem=self._on_problem,
            quiet_period=options.version_quiet_period_seconds,
            models_always_present=options.servable_versions_always_present,
            on_no_text=self._on_no_text,
            on_look=self._policies.look,
            disk_timeout=options.disk_timeout_seconds,
        )
        self._calls = BoundedCalls(options.disk_timeout_seconds)

    def first_look(self) -> ModelServerConfig:
        """The config of the models that are there now. FAILED_PRECONDITION if there is no such directory."""
        if not self._calls.call("the model repository", lambda: os.path.isdir(self._path)):
            raise failed_precondition("the model repository is no directory (--model_repository)")
        self._repository.poll()
        return self._config(self._found)

    def start(self) -> None:
        self._started.set()
        self._repository.start()

    def look(self) -> None:
        """Looks at the repository now, on the caller's thread."""
        self._repository.poll()

    def close(self) -> None:
        self._repository.close()

    def _on_models(self, models: Mapping[str, str]) -> None:
        policies, unread = self._policies.of(models), self._policies.wrong
        if unread != self._unread:
            self._unread = unread
            self._on_unread(unread)
        found = {name: (path, policies[name]) for name, path in models.items()}
        if self._started.is_set() and found != self._found:
            config = self._config(found)
            try:
                with acting(current_origin() or Origin(Cause.POLL)):
                    self._apply(config)
            except ServingError as error:
                self._refuse(error, config)
                return
        self._found, self._logged_error = found, ""
        self._on_looked(None)

    def _refuse(self, error: ServingError, config: ModelServerConfig) -> None:
        """Notes the refusal: the last config that was applied stays in force, the next look tries this one again."""
        self._on_looked(RefusedConfig.of(self._path, error.status, config, is_repository=True))
        if str(error) != self._logged_error:
            self._logged_error = str(error)
            logger.error("the models of the repository were refused, nothing changed: %s", str(error))

    def _on_problem(self, problem: Status) -> None:
        """Notes why the models stay as they are, whatever is in the directory. The look at its models tells when that
        is over."""
        if not problem.ok:
            self._on_looked(RefusedConfig.of(self._path, problem, None, is_repository=True))

    def _config(self, models: Mapping[str, _Found]) -> ModelServerConfig:
        """A model that cannot be served is left out, so that it does not stand in the way of the others."""
        refused = {name: why for name, found in models.items() if (why := self._refusal(name, found)) is not None}
        for name in refused:
            if self._refused.get(name) != refused[name]:
                logger.error("model %r of the repository is not served: %s", name, refused[name].message)
        if refused != self._refused:
            self._refused = refused
            self._tell_refused()
        return _config({name: found for name, found in models.items() if name not in refused})

    def _on_no_text(self, names: frozenset[str]) -> None:
        """Directories of the repository whose names no request could contain."""
        self._no_text = names
        self._tell_refused()

    def _tell_refused(self) -> None:
        self._on_refused(dict.fromkeys(self._no_text, NO_TEXT) | self._refused)

    def _refusal(self, name: str, found: _Found) -> Status | None:
        try:
            self._check(_config({name: found}))
        except ServingError as error:
            return error.status
        return None


def _config(models: Mapping[str, _Found]) -> ModelServerConfig:
    entries = [
        {"name": name, "base_path": path, "model_version_policy": policy} for name, (path, policy) in models.items()
    ]
    return build(ModelServerConfig, Document({"model_config_list": {"config": entries}}))


class ModelLocator:
    """Finds the models that could be loaded. Any thread may call any method; each reads files. A disk that does not
    answer is UNAVAILABLE, and a model on it is as if it were not there."""

    def __init__(self, options: ServerOptions, disk: Disk | None = None) -> None:
        self._options = options
        self._disk = disk or RealDisk()
        self._calls = BoundedCalls(options.disk_timeout_seconds)
        self._root = os.path.abspath(options.model_repository) if options.model_repository else ""

    @property
    def is_repository(self) -> bool:
        """Whether a model's own config says which of its versions are wanted."""
        return bool(self._root)

    def check(self) -> None:
        """FAILED_PRECONDITION if the repository is no directory; the error of a config file that is wrong."""
        if not self._root:
            self._first_config()
        elif not self._calls.call("the model repository", lambda: os.path.isdir(self._root)):
            raise failed_precondition("the model repository is no directory (--model_repository)")

    def _first_config(self) -> ModelServerConfig:
        config = self._calls.call("the config file", lambda: read_first_config(self._options))
        for model in config.models:
            if self._options.is_explicit and is_url(model.base_path):
                raise invalid_argument(f"model {model.name}: base_path is a URL: {URL_IN_EXPLICIT_MODE}")
        return config

    def find(self, name: str) -> ModelConfig | None:
        """None for a model that is not there. ServingError if the config file or the repository cannot be read."""
        if not self._root:
            return next((model for model in self._first_config().models if model.name == name), None)
        listing = {name: self._list(os.path.join(self._root, name)) or []}
        return model_config(name, os.path.join(self._root, name)) if models_in(listing, ()) else None

    def is_unmarked(self, name: str) -> bool:
        """Whether the repository has a directory of this name, and nothing in it that makes it a model."""
        if not self._root or name != os.path.basename(name) or name.startswith("."):
            return False
        path = os.path.join(self._root, name)
        found = self._list(path)
        return found is not None and not models_in({name: found}, ())

    def names(self) -> list[str]:
        """Every model that could be loaded; none where they cannot be read."""
        try:
            if not self._root:
                return [model.name for model in self._first_config().models]
            listed = self._calls.call("the model repository", lambda: self._disk.list_directory(self._root))
            children = [entry.name for entry in listed if entry.is_directory]
        except (OSError, ServingError):
            return []
        listing: Mapping[str, list[DirectoryEntry]] = {
            child: self._list(os.path.join(self._root, child)) or [] for child in children
        }
        return models_in(listing, ())

    def _list(self, path: str) -> list[DirectoryEntry] | None:
        """None if it cannot be listed."""
        try:
            return self._calls.call(f"the model {os.path.basename(path)}", lambda: self._disk.list_directory(path))
        except (OSError, ServingError):
            return None


def model_config(name: str, base_path: str) -> ModelConfig:
    """The config of one model. INVALID_ARGUMENT for a name that a request could not contain."""
    data = {"model_config_list": {"config": [{"name": name, "base_path": base_path}]}}
    return build(ModelServerConfig, Document(data)).models[0]


_Stamp = tuple[tuple[str, int, int, int], ...]
_LATEST, _NONE = VersionPolicy(), VersionPolicy(specific=Specific(versions=()))


class RepositoryPolicies:
    """The versions of each model in a repository that are wanted, by the model's own config. Remembers what it read for
    as long as the files do not change. A change counts after :data:`QUIET_SECONDS` without another one, for a look may
    meet a file that its writer has emptied and not yet filled. ``look`` asks the disk, on any thread, one model at a
    time; ``of`` does not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[_Stamp, VersionPolicy, Status]] = {}  # why the config was not read, too
        self._changed: dict[str, tuple[_Stamp, float]] = {}  # a stamp that was not read yet, and when it was seen first

    def look(self, name: str, base: str) -> None:
        """Looks at the config of one model. While it is wrong, the policy stays as it was; before the first right one
        no version is wanted, for any of them may be one that must not answer."""
        stamp = _stamp(base)
        before = self._known.get(name)
        if before is not None:
            if before[0] == stamp:
                return
            if not stamp and self._is_bare(base):
                return  # a volume that is away has taken the config along
            if not self._is_quiet(name, stamp):
                return
        policy, problem = before[1] if before is not None else _NONE, OK
        try:
            policy = wanted_by(base_settings(base, name))
        except ServingError as error:
            problem = error.status
            what = "no version is wanted" if policy is _NONE else "its version policy stays as it is"
            logger.error("model %s: %s, for its config is wrong: %s", name, what, str(error))
        self._known[name] = (stamp, policy, problem)

    def of(self, models: Mapping[str, str]) -> dict[str, VersionPolicy]:
        """The policies by name; ``models`` has the base paths. Other models are forgotten."""
        for name in self._known.keys() - models.keys():
            self._known.pop(name, None)
            self._changed.pop(name, None)
        return {name: known[1] if (known := self._known.get(name)) is not None else _LATEST for name in models}

    @property
    def wrong(self) -> dict[str, Status]:
        """The reasons, by name, why the config of a model could not be read, so that its policy stays as it was, if it
        had one."""
        return {name: problem for name, (_, _, problem) in list(self._known.items()) if not problem.ok}

    @staticmethod
    def _is_bare(base: str) -> bool:
        """Whether nothing there makes it a model."""
        try:
            return not models_in({"model": RealDisk().list_directory(base)}, ())
        except OSError:
            return True

    def _is_quiet(self, name: str, stamp: _Stamp) -> bool:
        now = self._clock.monotonic()
        known, since = self._changed.get(name, (None, now))
        if known != stamp:
            self._changed[name] = stamp, now
        return known == stamp and now - since >= QUIET_SECONDS


def _stamp(base: str) -> _Stamp:
    """A stamp that differs whenever a config beside the versions was changed."""
    found = []
    for name in MODEL_SETTINGS_FILES:
        path = f"{base}/{name}"
        if not os.access(path, os.F_OK):  # once a second for each model: half as dear as a stat that fails
            continue
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            continue
        found.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
