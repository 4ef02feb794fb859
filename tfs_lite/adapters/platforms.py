"""The platforms of this installation, built in or registered by other distributions, and the loaders of versions.

A distribution adds one with the entry point group ``tfs_lite.platforms``; each entry point is a
:class:`~tfs_lite.adapters.opening.Platform`. Artefacts of planned platforms are recognised too, so that the refusal
can name them. Making a loader touches no file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from tfs_lite.adapters.aoti import model as aoti
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.encoders import platform as transformers_platform
from tfs_lite.adapters.failures import told
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.onnx import model as onnx_model
from tfs_lite.adapters.opening import Platform
from tfs_lite.adapters.python import model as python_model
from tfs_lite.adapters.pytorch import export, libtorch
from tfs_lite.adapters.reshape import seen_by_model
from tfs_lite.adapters.tensorflow import platform as tensorflow
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.source import UnarySourceAdapter
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.core.threads import is_users

GROUP = "tfs_lite.platforms"
ENSEMBLE = "ensemble"
logger = logging.getLogger(__name__)


BUILT_IN = (
    export.PLATFORM,
    libtorch.PLATFORM,
    python_model.PLATFORM,
    aoti.PLATFORM,
    onnx_model.PLATFORM,
    tensorflow.PLATFORM,
    transformers_platform.PLATFORM,
    Platform(ENSEMBLE, "", lambda files: False, None, missing="ensembles have nothing to open", composed=True),
)


def known_platforms(built_in: Iterable[Platform], registered: Iterable[EntryPoint]) -> Mapping[str, Platform]:
    """The platforms by name. A registered one that cannot be imported, is none, or takes a name that is taken, is
    logged and left out."""
    found = {platform.name: platform for platform in built_in}
    for entry in registered:
        try:
            platform = entry.load()
        except BaseException as error:
            if is_users(error):
                raise
            logger.exception("platform %s cannot be imported", entry.name)
            continue
        if not isinstance(platform, Platform):
            kind = type(platform).__name__
            logger.error("platform %s is left out: %s is of type %s, no Platform", entry.name, entry.value, kind)
            continue
        if platform.name in found:
            logger.error("platform %s is left out: another one has the name %s", entry.value, platform.name)
            continue
        found[platform.name] = platform
    return MappingProxyType(found)


PLATFORMS = known_platforms(BUILT_IN, entry_points(group=GROUP))


def make_source_adapter(platform: str | None, settings: AdapterSettings) -> UnarySourceAdapter[StoragePath, Loader]:
    """An adapter for versions of one platform; with None, each version's platform is found when it is loaded."""
    return UnarySourceAdapter(lambda item: make_loader(item, platform, settings))


def make_loader(item: ServableData[StoragePath], platform: str | None, settings: AdapterSettings) -> Loader:
    """The loader of one version."""
    return ArtifactLoader(item.payload, platform or "", settings, PLATFORMS, item.id.name)


def check_config(directory: str, settings: ModelSettings) -> None:
    """Raises INVALID_ARGUMENT if a config contradicts the artefact in ``directory``, as far as that shows without
    opening it."""
    try:
        platform = choose_platform(read_version(directory), settings.platform, PLATFORMS)
        if platform.check_config is not None:
            platform.check_config(directory, seen_by_model(settings))
    except ServingError as error:
        if error.code is StatusCode.INVALID_ARGUMENT:
            raise
    except BaseException as error:  # of a platform of another distribution; a load says it as well
        logger.warning("a config could not be compared with %s: %s", directory, told(error))
