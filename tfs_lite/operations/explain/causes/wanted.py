"""Causes of what is not asked for rightly, or is not wanted."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace

from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import Status, listed
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.phrases import (
    FROM_REPOSITORY,
    SHORT,
    config_name,
    latest,
    load_it,
    numbers,
    specific,
)
from tfs_lite.operations.explain.explanation import Link, Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot
from tfs_lite.serving.standing import StandingRefusal
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

_REPOSITORY = "the model repository"


def label_unknown(case: Case) -> Link | None:
    model, label, refused = case.model, case.label, case.server.refused_config
    if label is None or label in model.labels or not model.configured:
        return None
    known = listed(sorted(model.labels)) or "none"
    newest = max(model.answering, default=None)
    text = f'the model has no label "{label}"; it has: {known}'
    example = f'version_labels {{ key: "{label}" value: {newest if newest is not None else "N"} }}'
    if case.server.has_yaml:
        example = f'version_labels: {{"{label}": {newest if newest is not None else "N"}}}'
    fix = f"ask for one of these, or add {example} to the model's config and reload: tfs-lite reload FILE"
    said = refused.config.named(model.name) if refused is not None else None
    if refused is not None and said is not None and label in said.version_labels:
        text += f"; the config file gives it to version {said.version_labels[label]}, but was refused"
        fix = f"correct the config file{refused.config.fix}"
    return Link("LABEL_UNKNOWN", text, fix)


def label_to_missing(case: Case) -> Link | None:
    model, label = case.model, case.label
    if label is None or label not in model.labels or case.verdict is Verdict.SERVING:
        return None
    version, newest = model.labels[label], max(model.answering, default=None)
    text = f'label "{label}" points to version {version}, which {SHORT[case.verdict]}'
    fix = f"make version {version} available"
    if newest is not None:
        fix += f", or point the label to version {newest}, which answers, and reload: tfs-lite reload FILE"
    return Link("LABEL_TO_MISSING", text, fix)


def unloaded(case: Case) -> Link | None:
    if case.verdict is not Verdict.ENDED:
        return None
    text = "it was withdrawn" if case.version is not None else "its last version was withdrawn"
    return Link("UNLOADED", text, load_it(case.model), case.found.since)


def passed_over(case: Case) -> Link | None:
    found, server = case.found, case.server
    if case.version is None or case.verdict not in (Verdict.NOT_WANTED, Verdict.LEAVING):
        return None
    if server.by_calls or not case.model.configured or found.aspired or found.on_disk is False:
        return None
    return _left_to_policy(case.model, case.version)


def _left_to_policy(model: ModelSnapshot, version: int) -> Link:
    on_disk = sorted((v for v, found in model.versions.items() if found.on_disk), reverse=True)
    match model.policy:
        case LatestPolicy(count):
            count = max(count, 1)
            taken = [v for v, found in model.versions.items() if found.aspired] or on_disk[:count]
            text = f"the version policy latest {{num_versions: {count}}} takes {numbers(sorted(taken))}"
            place = on_disk.index(version) + 1 if version in on_disk else count + 1
            fix = f"{latest(model, place)} or {specific(model, [version])}"
        case SpecificPolicy(versions):
            text = f"the version policy specific takes {numbers(versions) or 'none'}"
            fix = specific(model, [*versions, version])
        case AllPolicy():
            text, fix = "the version policy all takes it again", "nothing"
    where = "in the model's config"
    if model.server.source == FROM_REPOSITORY:
        how = f"set {fix} {where} ({config_name(model)} beside the versions)"
    elif model.server.source == "--model_config_file":
        how = f"set {fix} {where} and reload it: tfs-lite reload FILE"
    else:
        how = f"reload a config with {fix}: tfs-lite reload FILE"
    return Link("POLICY_PASSES_OVER", text, how)


def left_out(model: ModelSnapshot, version: int, *, is_newer: bool) -> Link:
    """``is_newer``: the version is newer than the one that the model is about; else its directory came last."""
    link = _left_to_policy(model, version)
    if is_newer:
        return replace(link, text=f"version {version} is on disk and newer, but {link.text}")
    fix = f"{link.fix}; or publish it under a higher number: tfs-lite publish SRC --base BASE"
    return replace(link, text=f"version {version} came last, but {link.text}", fix=fix)


def policy_not_read(problem: Status) -> Link:
    """The link for a model in a repository; versions with a config of their own do not mind."""
    text = f"its version policy stays as it was, for the config beside its versions is wrong: {problem.message}"
    fix = "correct that config file: it is read again by itself"
    return Link("CONFIG_NOT_APPLIED", text, fix, doc="model-config.md")


def unloaded_by_call(case: Case) -> Link | None:
    """An unload call has taken the model away: only calls do, where only calls load."""
    state = case.found.state
    if case.verdict is not Verdict.NOT_CONFIGURED or not case.server.by_calls or state is None:
        return None
    if state.state.state is not ManagerState.END or not state.state.health.ok:
        return None
    text = f"version {case.version} was withdrawn by an unload call"
    return Link("UNLOADED", text, f"load it again: POST /v2/repository/models/{case.model.name}/load", case.found.since)


def not_configured(case: Case) -> Link | None:
    model, server = case.model, case.server
    if model.configured:
        return None
    near = difflib.get_close_matches(model.name, server.known, n=3, cutoff=0.5)
    served = (
        f"; did you mean {' or '.join(near)}?" if near else f"; served are: {listed(sorted(server.known)) or 'none'}"
    )
    text = f"no model {model.name!r} is served{served} (models come from {_origin(model)})"
    if server.refused_config is not None:
        refused = server.refused_config.config
        what = _REPOSITORY if refused.is_repository else "the config file"
        fix = f"correct {what}{refused.fix}"
        if refused.named(model.name) is not None:
            return Link("NOT_CONFIGURED", f"{what} names model {model.name!r}, but was refused", fix)
        if refused.config is None:
            text = f"no model {model.name!r} is served; {what} may name it, but cannot be read"
            return Link("NOT_CONFIGURED", text, fix)
    if model.name in server.refused_models:
        text = f"the repository has it, but it is refused: {server.refused_models[model.name].message}"
        fix = "correct what the message says (a wrong name: rename its directory); it is looked at again by itself"
        return Link("NOT_CONFIGURED", text, fix, doc="model-config.md")
    if model.unmarked:
        text = "the repository has a directory of this name without a version: those are directories named by a number"
        fix = f"move its files into {model.name}/1; {_looked_at(model)}"
        return Link("NOT_CONFIGURED", text, fix, doc="serving.md")
    return Link("NOT_CONFIGURED", text, load_it(model))


def _looked_at(model: ModelSnapshot) -> str:
    if model.server.by_calls:
        return f"then load it: POST /v2/repository/models/{model.name}/load"
    return "it is seen by itself" if model.server.polls else "then start the server again"


def _origin(model: ModelSnapshot) -> str:
    return "load calls" if model.server.by_calls else model.server.source


def config_refused(case: Case) -> Link | None:
    """The link is said once, of what was asked for."""
    refused = case.server.refused_config
    return config_refusal(refused, case.paths) if refused is not None and not case.depth else None


def config_refusal(refused: StandingRefusal, paths: bool) -> Link:
    """The link for all models: nothing of the file is in force."""
    return Link("CONFIG_NOT_APPLIED", *refused.in_words(paths), refused.since, "model-config.md")


def left_to_calls(case: Case) -> Link | None:
    is_out = case.verdict in (Verdict.NOT_WANTED, Verdict.ENDED, Verdict.NOT_CONFIGURED)
    if not case.server.by_calls or not (is_out or _is_unseen(case)):
        return None
    text = "--model_control_mode=explicit: only load and unload calls change what is served"
    fix = f"load it: POST /v2/repository/models/{case.model.name}/load"
    if case.version is not None and case.model.configured:
        config = json.dumps({"version_policy": {"specific": {"versions": [case.version]}}})
        fix += f" with the body {json.dumps({'parameters': {'config': config}})}"
    return Link("CONTROL_MODE", text, fix)


def not_looked_at(case: Case) -> Link | None:
    if case.server.looks_again or not _is_unseen(case):
        return None
    flag = "--model_control_mode=none" if case.server.control_mode == "none" else "--file_system_poll_wait_seconds=0"
    text = f"version {case.version} is on disk now; {flag}: the disk is not looked at again"
    fix = "start the server again, with --model_control_mode=poll if versions are to be taken up as they come"
    return Link("CONTROL_MODE", text, fix)


def _is_unseen(case: Case) -> bool:
    """Whether it is on disk now, and the source has not seen it."""
    is_unknown = case.version is not None and case.version not in case.model.versions
    return case.verdict is Verdict.NOT_ON_DISK and is_unknown and case.model.exists


def server_stops(case: Case) -> Link | None:
    if not case.server.draining:
        return None
    text = "the server is being stopped: it answers what is inside and takes nothing new"
    return Link("DRAINING_SERVER", text, "ask another server, or start it again")
