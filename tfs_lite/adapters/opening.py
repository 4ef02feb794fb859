"""The contract of a platform: how it recognises its artefact, and how it opens it as a model.

    recognises(files)  ->  open(request)  ->  OpenedModel.run*  ->  OpenedModel.close

A platform is a value: a name, a rule, a function. To add one, write a module with a :class:`Platform` and register it
under the entry point group ``tfs_lite.platforms``. What all platforms share (trust, devices, memory, workers) is in
:mod:`tfs_lite.adapters.loader`. Nothing here imports torch, so that a process of a model can do without it.

    load: LoadedFiles -> read everything -> changes? -> note_loaded
    later, a process started again, an instance added: require -> read -> require

One version must not give the answers of two models in turn, so whoever opens a version again opens what was loaded, or
nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tfs_lite.adapters.measured import Measured
from tfs_lite.adapters.python.imports import importing_in_turns
from tfs_lite.config.model import ModelSettings, files_beside
from tfs_lite.core.loader import LoadMeter
from tfs_lite.core.manifest import Tree, read_tree, state_of, state_of_file
from tfs_lite.core.model import Model, ModelAround, close_models
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition, listed, not_found, printable
from tfs_lite.core.threads import call_in_background

logger = logging.getLogger(__name__)
MAX_SHOWN = 8
GONE = "its directory is gone"
CHANGED = "its files have changed since it was loaded"
_MEMBERS = ("signatures", "run", "resident_bytes", "close")
"""The members of a model without which nothing can be done with it."""


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The files in a version's directory.

    ``unpacked_bytes`` counts archives by their contents. ``members`` are those of ``model.pt2``, if there is one.
    """

    directory: str
    names: frozenset[str]
    unpacked_bytes: int = 0
    members: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SeenFiles:
    """The files of a version as they were at one moment: those in its directory, and those that its config names next
    to it, with their states."""

    directory: str
    tree: Tree
    beside: tuple[tuple[str, str], ...] = ()

    @classmethod
    def look(cls, directory: str, settings: ModelSettings) -> SeenFiles:
        """Looks at the files. NOT_FOUND if the directory is gone, UNAVAILABLE if it cannot be read."""
        base = os.path.dirname(directory)
        try:
            tree = read_tree(directory)
        except FileNotFoundError:
            raise not_found(f"version {os.path.basename(directory)}: {GONE}") from None
        except OSError as error:
            raise ServingError(StatusCode.UNAVAILABLE, f"its files cannot be read: {error.strerror}") from None
        found = ((name, state_of_file(os.path.join(base, name))) for name in files_beside(settings))
        return cls(directory, tree, tuple(sorted((name, state) for name, state in found if state)))

    @property
    def state(self) -> str:
        """The state of the files, as sources tell it in their lists."""
        return state_of(self.directory, self.tree.version.fingerprint, self.beside)

    def changes(self, now: SeenFiles) -> list[str]:
        """The names of the files that are others now."""
        before, after = dict(self.beside), dict(now.beside)
        beside = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        return self.tree.version.differences(now.tree.version) + [f"../{name}" for name in beside]


class LoadedFiles:
    """The files that a version is loaded from, as they were before anything of them was read. Whatever opens the
    version again, or more of it, asks :meth:`require` before and after it has read them. Any thread."""

    def __init__(self, directory: str, settings: ModelSettings) -> None:
        """Raises as :meth:`SeenFiles.look`."""
        self.directory = directory
        self._settings = settings
        self._seen = SeenFiles.look(directory, settings)
        self._loaded = False

    @property
    def state(self) -> str:
        return self._seen.state

    @property
    def paths(self) -> list[str]:
        """The paths in the version, without its configs."""
        return [file.name for file in self._seen.tree.version.files]

    def changes(self) -> list[str]:
        """The names of the files that are others now."""
        return self._seen.changes(SeenFiles.look(self.directory, self._settings))

    def note_loaded(self, accept: bool = False) -> None:
        """The version has been loaded from them. ``accept``: what its own code has written meanwhile is part of it."""
        if accept:
            self._seen = SeenFiles.look(self.directory, self._settings)
        self._loaded = True

    def require(self) -> None:
        """UNAVAILABLE if they are others now, or cannot be read, NOT_FOUND if they are gone: what is opened from them
        would not be what serves. Does nothing while the version is loaded: the end of the load tells."""
        if self._loaded and (changed := self.changes()):
            raise ServingError(StatusCode.UNAVAILABLE, f"{CHANGED} ({shown(changed)})")


def shown(names: Sequence[str]) -> str:
    """File names for a message, the first of them."""
    return printable(listed(names, MAX_SHOWN))


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The request to open a version: ``device`` is ``cpu`` or ``cuda:N``. ``settings`` are empty without a config.
    ``batch_rows``: the numbers of rows that its batches will mostly have, ascending; some models prepare for them.
    ``beside`` are the instances of the version that are open already. ``loaded_from`` are the files as they were when
    the load began; None in a process of the model, whose server knows. ``threads``: how many threads an instance uses
    inside an operator; 0: as many as torch. ``meter`` is told how far the load is: a platform that reads bytes itself
    begins the phase READING with their number and adds what it has read."""

    id: ServableId
    files: VersionFiles
    device: str
    trusted: bool
    settings: ModelSettings = field(default_factory=ModelSettings)
    beside: tuple[OpenedModel, ...] = field(default=(), repr=False, compare=False)
    threads: int = 0
    batch_rows: tuple[int, ...] = (1,)
    meter: LoadMeter = field(default_factory=LoadMeter, repr=False, compare=False)
    loaded_from: LoadedFiles | None = field(default=None, repr=False, compare=False)

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def require_files(self) -> None:
        """Raises ServingError if the files are not those any more that the version was loaded from. What opens a
        version again asks before and after."""
        if self.loaded_from is not None:
            self.loaded_from.require()


class NeedsProcess(Exception):
    """Raised by ``Platform.open`` for a version that ``Platform.open_in_process`` opens, in a process of the model. The
    message says why."""


class OpenedModel(Model, Protocol):
    """An opened version, with the signatures that its artefact has, and that knows its size."""

    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors; None if unknown."""

    def measured_bytes(self) -> Measured:
        """Bytes that the model holds now, by device and kind; empty where that cannot be measured. Costs
        milliseconds."""
        return {}

    def another(self, device: str) -> OpenedModel | None:
        """A further instance on ``device`` with the same weights, without the config's signatures. Each is closed by
        itself, and the weights go with the last. None where that is not possible, such as on another device."""
        return None


class OpenedModelAround(ModelAround, OpenedModel):
    """A :class:`~tfs_lite.core.model.ModelAround` around an opened model."""

    _inner: OpenedModel

    def __init__(self, inner: OpenedModel) -> None:
        super().__init__(inner)

    def resident_bytes(self) -> int | None:
        return self._inner.resident_bytes()

    def measured_bytes(self) -> Measured:
        return self._inner.measured_bytes()

    def another(self, device: str) -> OpenedModel | None:
        return self._inner.another(device)


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of artefact, and how versions of it are opened.

    ``open`` is None if this server cannot serve the artefact, and ``missing`` says why; or if the platform is
    ``composed``: a version has no artefact, and its servable is made of other models. ``open_in_process`` opens the
    versions for which ``open`` raises NeedsProcess, in processes of their own, which share the modules ``shared``.
    ``check_config`` raises INVALID_ARGUMENT if the artefact in a directory contradicts a config, without opening it.
    ``reserve`` returns an upper bound of the bytes that a version takes on its device, from its files, the config and
    whether it goes to a GPU, or raises ServingError; None means that the bound follows from the size of the files.
    ``for_a_moment`` returns the bytes of main memory that opening takes besides.

    ``reads`` returns those of a version's files, given by their paths inside it, that the platform reads; None means
    that the version's own code may read any.

    ``leaves_threads``: whether ``open`` may leave threads or processes behind. If not, a thread of low priority calls
    it and ends (:func:`tfs_lite.core.threads.call_in_background`).

    ``extra`` is the extra of the package that the platform needs: its library is imported inside ``open``. ``home`` is
    where models live: where config and server say, always in the server, or always in a process of their own.
    ``apart`` says why a version should have a process of its own where neither of them says anything; empty if it
    should not. ``shares_weights``: instances in one process on one device have one copy of the weights as a rule
    (``another``).

    ``program`` (``module:function``) opens versions in processes that are started without torch; if it is empty, they
    are forked from one that has imported it. ``sandbox`` is for processes of models: "auto", one where the kernel has
    it; "asked", only if the model's config or the server asks for it; "required", no process without one unless the
    version is trusted.
    """

    name: str
    artefact: str
    recognises: Callable[[VersionFiles], bool]
    open: Callable[[OpenRequest], OpenedModel] | None
    needs_trust: bool = False
    missing: str = ""
    composed: bool = False
    reserve: Callable[[VersionFiles, ModelSettings, bool], int] | None = None
    for_a_moment: Callable[[VersionFiles], int] = lambda files: 0
    extra: str = ""
    home: Literal["any", "server", "process"] = "any"
    apart: Callable[[OpenRequest], str] = lambda request: ""
    shares_weights: bool = False
    program: str = ""
    sandbox: Literal["auto", "asked", "required"] = "auto"
    open_in_process: Callable[[OpenRequest], OpenedModel] | None = None
    shared: tuple[str, ...] = ()
    check_config: Callable[[str, ModelSettings], object] | None = None
    reads: Callable[[VersionFiles, Collection[str]], Collection[str]] | None = None
    leaves_threads: Callable[[OpenRequest], bool] = lambda request: True

    @property
    def is_served(self) -> bool:
        """Whether this server can serve versions of it."""
        return self.open is not None or self.composed

    def start(self, request: OpenRequest) -> OpenedModel:
        """Calls ``open``; UNIMPLEMENTED if there is none, or what it imports is not installed."""
        if self.needs_trust:  # it may end the process, and nobody could say afterwards who did
            logger.info("%s: process %d runs its code (%s)", request.id, os.getpid(), self.artefact)
        if self.leaves_threads(request):
            return self._call(self.open, request)

        def call() -> OpenedModel:
            with importing_in_turns():
                return self._call(self.open, request)

        return call_in_background(call, "tfs-open")

    def start_in_process(self, request: OpenRequest) -> OpenedModel:
        """Calls ``open_in_process``; errors as those of ``start``."""
        return self._call(self.open_in_process, request)

    def _checked(self, model: OpenedModel) -> OpenedModel:
        """What ``open`` has returned. FAILED_PRECONDITION if it is no model, or can answer nothing."""
        what = f"platform {self.name}: open returned {type(model).__name__}"
        missing = [name for name in _MEMBERS if not hasattr(model, name)]
        if missing:
            raise failed_precondition(f"{what}, expected a model; it has no {', '.join(missing)}")
        if not model.signatures:
            close_models([model], self.name)
            raise failed_precondition(f"{what} without a signature, expected one at least")
        return model

    def _call(self, opens: Callable[[OpenRequest], OpenedModel] | None, request: OpenRequest) -> OpenedModel:
        if opens is None:
            raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {self.name}: {self.missing}")
        try:
            return self._checked(opens(request))
        except ModuleNotFoundError as error:
            if not self.extra:
                raise
            library = error.name
        raise ServingError(
            StatusCode.UNIMPLEMENTED,
            f"platform {self.name} needs {library}, which is not installed: pip install 'tfs-lite[{self.extra}]'",
            Reason.NEEDS_EXTRA,
        )
