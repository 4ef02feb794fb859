"""The platform of a version: its files decide; where they fit several, the config has to name one. And which of its
files nobody reads: another program may read them, and answer otherwise."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping

from tfs_lite.adapters.failures import told
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.opening import Platform, VersionFiles, shown
from tfs_lite.config.batching import VERSION_FILE
from tfs_lite.config.model import ModelSettings, files_beside
from tfs_lite.core.manifest import MANIFEST_NAME, REPLAY_FILE, REPLAY_NAME, is_about, is_litter, is_looked_at
from tfs_lite.core.status import Reason, ServingError, StatusCode, not_found
from tfs_lite.protocols.tensorflow.prediction_log import WARMUP_DIRECTORY

UNREAD = "files of the version that are not read, and so have no effect"
_OF_ALL = frozenset({MANIFEST_NAME, VERSION_FILE})
_FOLDER_OF_ALL = f"{WARMUP_DIRECTORY}/"
_ARCHIVES = (".pt2", ".pt")
_ELSEWHERE = {
    ".mar": "an archive of TorchServe: docs/from-torchserve.md says how its model is served",
    ".pth": "weights without their module: docs/saving.md says how a module is saved",
    ".ckpt": "a checkpoint, which has weights without their module: docs/saving.md says how a module is saved",
    ".safetensors": "weights without what describes the model: config.json or model.py has to lie beside them",
    ".pkl": "a pickle, which may run any code: docs/python-models.md says how such a model is served",
    ".joblib": "a pickle, which may run any code: docs/python-models.md says how such a model is served",
    ".keras": "a model of Keras: export it as a SavedModel, or as ONNX",
    ".h5": "a model of Keras: export it as a SavedModel, or as ONNX",
    ".tflite": "a model for LiteRT: export the model that it was made from as a SavedModel, or as ONNX",
    ".xml": "a model of OpenVINO: docs/from-openvino.md says how the model that it was made from is served",
    ".bin": "weights without what describes the model: save it anew with save_pretrained or tfs_lite.save",
    ".onnx": "an ONNX model under another name than model.onnx: rename it, or publish the file by itself",
    ".plan": "an engine of TensorRT: save the module that it was made from, or export it as ONNX",
    ".engine": "an engine of TensorRT: save the module that it was made from, or export it as ONNX",
    ".gguf": "a language model for llama.cpp: docs/language-models.md says which files are served",
}
"""What other servers and libraries call their models, by the ending of the name, and what to do with such a file. The
first ending counts that a version has: the .bin of an OpenVINO model lies beside its .xml."""
logger = logging.getLogger(__name__)


def read_version(directory: str) -> VersionFiles:
    """Lists a version's directory. NOT_FOUND if it is not there. A damaged archive counts with its own size,
    and recorded answers, which no model holds, not at all."""
    names, members, unpacked = set[str](), frozenset[str](), 0
    recorded = os.path.join(directory, os.path.dirname(REPLAY_FILE))
    if not os.path.isdir(directory):
        raise not_found(f"version {os.path.basename(directory)}: its directory is gone")
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not is_litter(name)]
        for name in filter(is_looked_at, files):
            if folder == recorded and name == REPLAY_NAME:
                continue
            size, found = _look_into(os.path.join(folder, name))
            unpacked += size
            if folder == directory:
                names.add(name)
                members = found if name == "model.pt2" else members
    return VersionFiles(directory, frozenset(names), unpacked, members)


def choose_platform(files: VersionFiles, wanted: str, platforms: Mapping[str, Platform]) -> Platform:
    """The platform called ``wanted``, or the only one that recognises the files if that is empty.

    FAILED_PRECONDITION if there is none or more than one; INVALID_ARGUMENT if there is no platform of that name. If
    that one's ``recognises`` raises, so does this; others are passed over then.
    """
    if wanted:
        if wanted not in platforms:
            raise _none(
                f'platform "{wanted}" is not known; known: {", ".join(sorted(platforms))}', StatusCode.INVALID_ARGUMENT
            )
        if not platforms[wanted].recognises(files) and platforms[wanted].artefact:
            raise _none(f"platform {wanted} needs {platforms[wanted].artefact}; the version holds {_shown(files)}")
        return platforms[wanted]
    found, raised = recognising(files, platforms)
    if not found:
        expected = ", ".join(sorted({platform.artefact for platform in platforms.values() if platform.artefact}))
        over = "".join(f"; platform {name} was passed over: {error}" for name, error in raised.items())
        raise _none(
            f"no platform serves what the version holds ({_shown(files)}); expected {expected}{_advice(files)}{over}"
        )
    if len(found) > 1:
        raise _none(
            f"the files fit several platforms ({', '.join(sorted(found))}): set platform in config.pbtxt or config.yaml"
        )
    return next(iter(found.values()))


def recognising(
    files: VersionFiles, platforms: Mapping[str, Platform]
) -> tuple[Mapping[str, Platform], Mapping[str, str]]:
    """The platforms that recognise the files; and by name what ``recognises`` of others has raised. These are passed
    over, with a warning: the code of another distribution must not stop the versions of every platform."""
    found, raised = dict[str, Platform](), dict[str, str]()
    for name, platform in platforms.items():
        try:
            if platform.recognises(files):
                found[name] = platform
        except BaseException as error:
            raised[name] = told(error)
            logger.warning(
                "platform %s is passed over for %s: its recognises raised %s", name, files.directory, raised[name]
            )
    return found, raised


def unread_files(files: VersionFiles, paths: Collection[str], platform: Platform, settings: ModelSettings) -> list[str]:
    """The files of a version, of those with these ``paths`` inside it, that nothing reads although they may be a part
    of the model, in order. Errors of opening the version, as far as they show in its files."""
    if platform.reads is None:
        return []
    named = " ".join((*settings.parameters.values(), *files_beside(settings)))
    wanted = [path for path in paths if not (is_about(path) or path in _OF_ALL or path.startswith(_FOLDER_OF_ALL))]
    wanted = [path for path in wanted if path not in named]
    read = frozenset(platform.reads(files, wanted))
    return sorted(path for path in wanted if path not in read)


def _none(message: str, code: StatusCode = StatusCode.FAILED_PRECONDITION) -> ServingError:
    return ServingError(code, message, Reason.NO_PLATFORM)


def _look_into(path: str) -> tuple[int, frozenset[str]]:
    """Reads the unpacked bytes and the members of a file; (0, none) if it vanishes meanwhile."""
    try:
        size = os.stat(path).st_size
        if path.endswith(_ARCHIVES):
            with open_archive(path, os.path.basename(path)) as archive:
                unpacked = sum(info.file_size for info in archive.members.values())
                return max(size, unpacked), frozenset(archive.members)
    except FileNotFoundError:
        return 0, frozenset()
    except ServingError:
        pass
    return size, frozenset()


def _advice(files: VersionFiles) -> str:
    """What to do with a file that other servers or libraries would open; it follows on a sentence."""
    names = {os.path.splitext(name)[1].lower(): name for name in sorted(files.names, reverse=True)}
    return next((f"; {names[ending]} is {what}" for ending, what in _ELSEWHERE.items() if ending in names), "")


def _shown(files: VersionFiles) -> str:
    return shown(sorted(files.names)) if files.names else "no files"
