"""The check of the versions on disk: what a server would do with them, and their signatures, without serving or running
any of them.

The sources' own code decides which versions are complete and wanted (one poll, as at the start of a server); the
loaders' own code decides on platforms and trust, and inspects archives and reads what they
take and give. Only what needs the model to run is not checked.
"""

from __future__ import annotations

import ast
import enum
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfs_lite.adapters.aoti import model as aoti
from tfs_lite.adapters.detect import UNREAD, choose_platform, read_version, unread_files
from tfs_lite.adapters.encoders.platform import inspect_version
from tfs_lite.adapters.encoders.task import task_of_version
from tfs_lite.adapters.exported.document import inspect_exported
from tfs_lite.adapters.failures import load_failure
from tfs_lite.adapters.inspect.archive import unsafe
from tfs_lite.adapters.inspect.script import inspect_script
from tfs_lite.adapters.language.budget import budget
from tfs_lite.adapters.language.codec import open_codec
from tfs_lite.adapters.language.family import network_config
from tfs_lite.adapters.language.hf_files import check_settings
from tfs_lite.adapters.language.transformers_model import NAME as LANGUAGE_MODEL
from tfs_lite.adapters.onnx.model import NAME as ONNX
from tfs_lite.adapters.onnx.model import inspect_onnx
from tfs_lite.adapters.opening import VersionFiles, shown
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.python.model import NAME as PYTHON
from tfs_lite.adapters.python.model import declared_signature, no_class
from tfs_lite.adapters.python.source import ARTEFACT as PYTHON_SOURCE
from tfs_lite.adapters.pytorch import export, libtorch
from tfs_lite.adapters.reshape import seen_by_model
from tfs_lite.adapters.signatures import labels_of, mappings_of
from tfs_lite.adapters.tensorflow import platform as saved_model
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.config.batching import read_version_parameters
from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.config.settings import format_path
from tfs_lite.config.signatures import short_method
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, read_tree
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.signature import DEFAULT_SIGNATURE, PREDICT_METHOD, DataType, Signature, TensorSpec, format_shape
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, status_of
from tfs_lite.core.threads import is_users
from tfs_lite.operations.what_if.first_looks import FirstLooks, RemoteFiles
from tfs_lite.protocols.generation_tensors import generation_signature
from tfs_lite.sources.source_config import ServableToMonitor


class VersionVerdict(enum.Enum):
    """The verdict of a server that starts now on a version."""

    SERVED = "served"
    WAITING = "waiting"
    """The version is not complete; it is served once it is."""
    REFUSED = "refused"
    """Complete and wanted, but loading it would fail."""
    NOT_WANTED = "not wanted"
    """The version policy does not select it."""


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """One version: why it is not served (``reason``), or its ``signatures``."""

    version: int
    verdict: VersionVerdict
    platform: str = ""
    reason: str = ""
    signatures: tuple[SignatureCheck, ...] = ()
    unread: tuple[str, ...] = ()
    """Files that a load would not read, although they may be a part of the model."""
    remote: RemoteFiles | None = None
    """What is known of the files at a URL; None for those of a directory, and for versions that are not wanted."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """One model, highest version first. ``problem`` says why its base path has no versions to serve."""

    name: str
    base_path: str
    versions: tuple[VersionCheck, ...]
    problem: str = ""
    label_problems: tuple[str, ...] = ()
    """Labels of versions that would not be served."""
    remarks: tuple[str, ...] = ()
    """Remarks about names that look like versions and are none, and about files of versions that are not read."""
    settles_in: float | None = None
    """Seconds after which the verdict on a waiting version may change by itself; None: only new files change one."""

    @property
    def ok(self) -> bool:
        """Whether a version is served, and no wanted one is missing."""
        verdicts = {check.verdict for check in self.versions}
        missing = verdicts & {VersionVerdict.WAITING, VersionVerdict.REFUSED}
        return VersionVerdict.SERVED in verdicts and not missing and not self.label_problems


def check_model(
    looks: FirstLooks,
    servable: ServableToMonitor,
    platform: str,
    trusted: TrustedPaths,
    quiet_period: float,
    labels: Mapping[str, int],
    own_batching: bool = False,
) -> ModelCheck:
    """Checks the versions of one model. With an empty ``platform`` the model's config names it, or the files decide.
    ``own_batching`` means that a version's ``batching_params.pbtxt`` is read."""
    checked: dict[int, VersionCheck] = {}
    looks.begin(servable.base_path)
    while True:
        refused = {version for version, check in checked.items() if check.verdict is VersionVerdict.REFUSED}
        look = looks.look(servable, quiet_period, refused)
        unchecked = [item for item in look.aspired or () if item.id.version not in checked]
        if not unchecked:
            break
        for item in unchecked:
            checked[item.id.version] = _check_files(looks, item, platform, trusted, own_batching)
    for version in look.report.stand_ins:
        failed = ", ".join(str(each) for each in sorted(refused) if each > version)
        checked[version] = replace(checked[version], reason=f"it stands in for version {failed}")
    checks = list(checked.values())
    checks += [
        VersionCheck(version, VersionVerdict.WAITING, "", reason) for version, reason in look.report.waiting.items()
    ]
    known = {check.version for check in checks}
    checks += [
        VersionCheck(version, VersionVerdict.NOT_WANTED, "", "the version policy takes others")
        for version in looks.versions(servable.base_path)
        if version not in known
    ]
    ordered = tuple(sorted(checks, key=lambda check: check.version, reverse=True))
    return ModelCheck(
        servable.name,
        servable.base_path,
        ordered,
        look.report.problem.message,
        _label_problems(labels, ordered),
        (
            *(f"{name} beside the versions is passed over: {why}" for name, why in look.report.passed_over.items()),
            *(f"version {check.version}: {UNREAD}: {shown(check.unread)}" for check in ordered if check.unread),
        ),
        min(look.retry_in, default=None),
    )


def _label_problems(labels: Mapping[str, int], checks: Sequence[VersionCheck]) -> tuple[str, ...]:
    """Labels of versions that are missing or not wanted; refused and waiting versions have reasons of their own."""
    verdicts = {check.version: check.verdict for check in checks}
    found = []
    for label, version in sorted(labels.items()):
        if version not in verdicts:
            found.append(f'label "{label}" names version {version}, which is not on disk')
        elif verdicts[version] is VersionVerdict.NOT_WANTED:
            found.append(f'label "{label}" names version {version}, which the version policy passes over')
    return tuple(found)


def _check_files(
    looks: FirstLooks, item: ServableData[StoragePath], platform: str, trusted: TrustedPaths, own_batching: bool
) -> VersionCheck:
    """The check of a version that is complete: of its files, if they are on this machine."""
    directory, remote = looks.files(item.payload)
    if remote is not None and not remote.cached:
        return VersionCheck(item.id.version, VersionVerdict.SERVED, platform, remote=remote)
    return replace(check_version(item.id, directory, platform, trusted, own_batching), remote=remote)


def check_version(
    servable_id: ServableId,
    path: str,
    platform: str,
    trusted: TrustedPaths,
    own_batching: bool = False,
    place: str | None = None,
) -> VersionCheck:
    """Checks the files of one version in ``path`` as a load would, short of running anything. ``place`` is the
    directory that they are to be published to; None: they are where they belong."""
    found, version, place = platform, servable_id.version, place or path
    try:
        settings = settings_of(path, place, servable_id.name)
        if own_batching:
            read_version_parameters(Path(path))
        files = read_version(path)
        chosen = choose_platform(files, platform or settings.platform, PLATFORMS)
        found = chosen.name
        if not chosen.is_served:
            return VersionCheck(version, VersionVerdict.REFUSED, found, chosen.missing)
        trusts = all(trusted.allows(os.path.join(place, file)) for file in ("", *files.names))
        if chosen.needs_trust and not trusts:
            raise unsafe(f"platform {found} runs code of the version ({chosen.artefact})")
        own = _INSPECTIONS.get(found, _nothing_to_inspect)(files, trusts, settings)
        if isinstance(own, Signature):
            own = {DEFAULT_SIGNATURE: own}
        signatures = check_signatures(own, settings, path)
        unread = unread_files(files, [file.name for file in read_tree(path).version.files], chosen, settings)
    except (ServingError, OSError) as error:
        return VersionCheck(version, VersionVerdict.REFUSED, found, str(status_of(error)))
    except BaseException as error:  # an error of torch, for an archive that it cannot read, or of a platform's code
        if is_users(error):
            raise
        return VersionCheck(version, VersionVerdict.REFUSED, found, str(load_failure(servable_id, error).status))
    return VersionCheck(version, VersionVerdict.SERVED, found, signatures=signatures, unread=tuple(unread))


def settings_of(path: str, place: str, model: str) -> ModelSettings:
    """The config of the version whose files are in ``path`` and that is to be published to ``place``: the one among its
    files, else the one beside the versions that are there."""
    has_own = any(os.path.lexists(os.path.join(path, name)) for name in MODEL_SETTINGS_FILES)
    return load_model_settings(Path(path if has_own else place), model)


def _inspect_exported(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    artefact = export.ARTEFACT
    inspect_exported(os.path.join(files.directory, artefact), artefact, trusted)
    try:
        return export.check_config(files.directory, settings)
    except ServingError as error:
        if not (trusted and error.code is StatusCode.PERMISSION_DENIED):
            raise
    return None


def _inspect_compiled(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    return aoti.check_config(files.directory, settings)


def _inspect_script(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    artefact = libtorch.ARTEFACT
    inspect_script(os.path.join(files.directory, artefact), artefact, trusted)
    declared = signature_of(seen_by_model(settings))
    if declared is not None:
        libtorch.check_texts(declared.inputs)
    return signature_of(settings) if settings.input and settings.output else None


def _inspect_source(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    """Reads the source: it has to be Python and to define a Model; the inputs of a plain class have to be declared."""
    source = Path(files.directory, PYTHON_SOURCE).read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise invalid_argument(f"{PYTHON_SOURCE} is not Python: {error}") from None
    definitions = [node for node in ast.walk(tree) if _may_define_model(node)]
    if not definitions:
        raise no_class()
    if len(definitions) == 1 and _has_only_predict(definitions[0]):
        declared_signature(settings)
    return signature_of(settings) if settings.input else None


def _may_define_model(node: ast.AST) -> bool:
    """Whether the node assigns the name Model, or imports every name of a module."""
    if isinstance(node, ast.Name):
        return node.id == "Model" and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in ("Model", "*")
    return isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == "Model"


def _has_only_predict(node: ast.AST) -> bool:
    """Whether this is a class with predict() that cannot be a ``torch.nn.Module``."""
    if not isinstance(node, ast.ClassDef) or node.keywords or node.decorator_list:
        return False
    plain = all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
    return plain and any(isinstance(part, ast.FunctionDef) and part.name == "predict" for part in node.body)


def _inspect_language_model(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    """Checks settings, config, the headers of the weights and the tokenizer, and reads no tensor."""
    task = task_of_version(files)
    if task is not None:
        inspect_version(files, task, settings)
        return None
    check_settings(settings)
    budget(files, settings, on_gpu=False)
    network_config(files)
    return generation_signature(open_codec(files) is not None)


def _inspect_onnx(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    signature, _ = inspect_onnx(files, trusted, seen_by_model(settings))
    return signature


def _nothing_to_inspect(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Signature | None:
    """Platforms of other distributions have no inspection."""
    return None


def _inspect_saved_model(files: VersionFiles, trusted: bool, settings: ModelSettings) -> Mapping[str, Signature]:
    """Reads signatures and operators, without TensorFlow."""
    return saved_model.inspect_saved_model(files.directory, saved_model.SERVE, trusted, settings)


_INSPECTIONS: Mapping[
    str, Callable[[VersionFiles, bool, ModelSettings], Signature | Mapping[str, Signature] | None]
] = {
    export.NAME: _inspect_exported,
    aoti.NAME: _inspect_compiled,
    libtorch.NAME: _inspect_script,
    PYTHON: _inspect_source,
    ONNX: _inspect_onnx,
    LANGUAGE_MODEL: _inspect_language_model,
    saved_model.NAME: _inspect_saved_model,
}
"""The inspections by platform: each raises what loading would raise, and returns the model's own signature, or its
signatures by key, if they are known."""


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """One signature: ``predict``, ``classify`` or ``regress``, and its tensors by name, such as ``float[-1,3]``; None
    if only the loaded model has them."""

    name: str
    method: str
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


def check_signatures(
    own: Mapping[str, Signature] | None, settings: ModelSettings, directory: str
) -> tuple[SignatureCheck, ...]:
    """All signatures of a version. ``own`` are those of its model; if they are unknown (None), only files of labels are
    checked. Raises what loading would raise."""
    if own is not None:
        return tuple(_known(key, mapping.signature) for key, mapping in mappings_of(own, settings, directory).items())
    methods = {DEFAULT_SIGNATURE: PREDICT_METHOD}
    for key, declared in settings.signatures.items():
        labels_of(declared, format_path(("signatures", key)), directory)
        methods[key] = declared.method_name
    return tuple(SignatureCheck(key, short_method(method)) for key, method in methods.items())


def _known(key: str, signature: Signature) -> SignatureCheck:
    inputs = _texts(signature.inputs)
    for name in signature.defaults:
        inputs[name] = f"{inputs[name]} or its default".lstrip()
    return SignatureCheck(key, short_method(signature.method_name), inputs, _texts(signature.outputs))


def _texts(specs: Iterable[TensorSpec]) -> dict[str, str]:
    return {spec.name: _text(spec) for spec in specs}


def _text(spec: TensorSpec) -> str:
    if spec.dtype is DataType.INVALID and spec.shape is None:
        return ""
    return f"{'any' if spec.dtype is DataType.INVALID else spec.dtype.text}{format_shape(spec.shape)}"
