"""The REST pages about models: their list, the states of their versions, their signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from tfs_lite.core.history import iso_time
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import printable
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.requests import REST
from tfs_lite.protocols.tensorflow.serving import signature_def_map, status_json, status_rows
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import JSON, json_reply
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.serving.standing import StandingRefusal

if TYPE_CHECKING:
    from tfs_lite.core.state import ReplicaReport


class ModelPages:
    """The pages about models, on the event loop. Raises ServingError."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._metrics = core.metrics.requests

    def list(self, request: Request, ref: ModelRef) -> Response:
        """Every model that the caller may see with its versions, and why a model without any has none; how far its
        loads are; the processes of those that live in processes; and the replicas of those that live in a cluster."""
        with self._metrics.record("ListModels", "", REST, request):
            replicas: dict[str, list[ReplicaReport]] = {}
            for report in self._core.view.replicas():
                replicas.setdefault(report.id.name, []).append(report)
            loads: dict[str, dict[int, LoadProgress]] = {}
            for servable_id, progress in self._core.view.loads().items():
                loads.setdefault(servable_id.name, {})[servable_id.version] = progress
            processes: dict[str, list[WorkerState]] = {}
            for worker in self._core.view.workers():
                if worker.kind == "process":
                    processes.setdefault(worker.id.name, []).append(worker)
            visible = [report for report in self._core.states.reports() if request.grant.allows(report.name)]
            models = [
                _report(
                    report, loads.get(report.name, {}), replicas.get(report.name, ()), processes.get(report.name, ())
                )
                for report in visible
            ]
            refused = self._core.refusals.config
            rest = {"config_refused": _refused(refused)} if refused is not None else {}
            return json_reply({"models": models, **rest})

    def status(self, request: Request, ref: ModelRef) -> Response:
        with self._metrics.record("GetModelStatus", ref.name, REST, request):
            return Response(status_json(self._core.view.status(ref)).encode(), media_type=JSON.media_type)

    def metadata(self, request: Request, ref: ModelRef) -> Response:
        with (
            self._metrics.record("GetModelMetadata", ref.name, REST, request) as record,
            self._core.handle(ref) as handle,
        ):
            record.version = handle.id.version
            signatures = MessageToDict(
                signature_def_map(handle.servable.signatures),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            spec = {"name": ref.name, "signature_name": "", "version": str(handle.id.version)}
            return json_reply({"model_spec": spec, "metadata": {"signature_def": signatures}})


def _refused(refused: StandingRefusal) -> dict[str, Any]:
    """The refusal as the link of an explanation."""
    text, fix = refused.in_words(paths=False)
    cause, doc = "CONFIG_NOT_APPLIED", "model-config.md"
    text = printable(text)
    return {"cause": cause, "text": text, "since": iso_time(refused.since), "fix": fix, "doc": doc}


def _report(
    report: ModelReport,
    loads: Mapping[int, LoadProgress],
    replicas: Sequence[ReplicaReport],
    processes: Sequence[WorkerState],
) -> dict[str, Any]:
    body: dict[str, Any] = {"name": report.name, "model_version_status": status_rows(report.versions)}
    reason = "; ".join(filter(None, ("" if report.problem.ok else report.problem.message, report.remark)))
    if reason:
        body["reason"] = reason
    if loads:
        body["load_progress"] = [{"version": str(version), **loads[version].as_json()} for version in sorted(loads)]
    if replicas:
        body["replica_status"] = [_of_replicas(of_version) for of_version in replicas]
    if processes:
        body["process_status"] = [_of_process(process) for process in processes]
    return body


def _of_process(process: WorkerState) -> dict[str, Any]:
    """``sandbox`` is null for a process in none."""
    return {
        "version": str(process.id.version),
        "instance": process.instance,
        "pid": process.pid,
        "drains": process.drains,
        "sandbox": None if process.sandbox is None else process.sandbox._asdict(),
    }


def _of_replicas(report: ReplicaReport) -> dict[str, Any]:
    return {
        "version": str(report.id.version),
        "summary": report.summary,
        "replicas": [asdict(replica) for replica in report.replicas],
    }
