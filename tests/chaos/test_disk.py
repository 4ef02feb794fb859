"""The disk changes under the server's feet: what is ready keeps serving, and what comes back is picked up."""

from __future__ import annotations

import json
import os
import shutil

from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until


def problem(served, model: str) -> str:
    """Why the list of models says that this one has nothing to offer."""
    body = json.loads(served.server.get("/v1/models")[1])
    return next((entry.get("reason", "") for entry in body["models"] if entry["name"] == model), "")


def test_base_path_deleted_and_recreated_while_serving(served, model):
    """A model that goes from the repository is unloaded; one that comes back, with the same number, is the new one."""
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    shutil.rmtree(served.base(model))
    served.probe.wait_states(model, {1: "END"})
    served.publish(model, 1)
    served.probe.wait_states(model, {1: "AVAILABLE"})
    served.publish(model, 2)
    served.probe.wait_states(model, {2: "AVAILABLE", 1: "END"})
    assert served.probe.ask(model) == 2


def test_version_deleted_while_it_answers_is_replaced_by_the_one_before(served, model):
    served.publish(model, 1)
    served.publish(model, 2)
    served.probe.wait_available(model, 2)
    with Traffic(served.server.target, model, threads=4) as traffic:
        shutil.rmtree(served.base(model) / "2")
        served.probe.wait_states(model, {1: "AVAILABLE", 2: "END"})
        wait_until(lambda: traffic.answers[1] > 50, "version 1 answers")
    assert traffic.failures == []
    assert traffic.wrong == []


def test_version_replaced_by_a_file_is_unloaded_or_kept_but_never_breaks_the_model(served, model):
    served.publish(model, 1)
    served.publish(model, 2)
    served.probe.wait_available(model, 2)
    shutil.rmtree(served.base(model) / "2")
    (served.base(model) / "2").write_text("I am not a directory")
    served.publish(model, 3)
    served.probe.wait_available(model, 3)
    assert served.probe.ask(model) == 3


def test_repository_entry_replaced_by_a_file_and_back(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    away = served.path / f".{model}"
    served.base(model).rename(away)
    served.base(model).write_text("a file where a directory was")
    served.probe.wait_states(model, {1: "END"})
    served.base(model).unlink()
    away.rename(served.base(model))
    served.probe.wait_states(model, {1: "AVAILABLE"})
    assert served.probe.ask(model) == 1


def test_links_that_lead_nowhere_or_round_in_circles_are_survived(served, model):
    base = served.base(model)
    base.mkdir()
    (base / "1").symlink_to(base / "nowhere")
    (base / "2").symlink_to(base / "2")
    served.publish(model, 3)
    served.probe.wait_available(model, 3)
    (base / "5").mkdir()
    (base / "5" / "model.pt2").symlink_to(base / "5" / "model.pt2")
    served.probe.wait_reason(model, 5)
    assert served.probe.ask(model) == 3


def test_a_pipe_as_an_artefact_blocks_nobody(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    directory = served.base(model) / "2"
    directory.mkdir()
    os.mkfifo(directory / "model.pt2")
    served.probe.wait_reason(model, 2, "plain file")
    other = f"{model}_other"
    served.publish(other, 1)
    served.probe.wait_available(other, 1)
    assert served.probe.ask(model) == 1


def test_new_model_that_is_never_whole_delays_no_other_new_model(served, model):
    unfinished = served.base(f"{model}_unfinished") / "1"
    unfinished.mkdir(parents=True)
    (unfinished / "model.pt2").write_bytes(b"half of someth")
    served.probe.wait_reason(f"{model}_unfinished", 1)
    served.publish(model, 1)
    served.probe.wait_available(model, 1, timeout=30)


def test_versions_that_come_and_go_faster_than_they_load_end_where_the_disk_ends(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    with Traffic(served.server.target, model, threads=2) as traffic:
        for version in range(2, 22):
            path = served.publish(model, version)
            if version % 2:
                shutil.rmtree(path)
        served.probe.wait_states(model, {20: "AVAILABLE"})
        assert served.probe.ask(model) == 20
    assert traffic.failures == []
    assert traffic.wrong == []
    wait_until(
        lambda: (
            set(served.probe.states(model).values()) <= {"AVAILABLE", "END"}
            and list(served.probe.states(model).values()).count("AVAILABLE") == 1
        ),
        "everything but version 20 is over",
    )


def test_configuration_of_a_version_that_is_broken_is_told_and_healed(served, model):
    directory = served.base(model) / "1"
    shutil.copytree(served.publish(f"{model}_source", 1), directory)
    (directory / "manifest.json").unlink(missing_ok=True)
    (directory / "config.pbtxt").write_text("max_batch_sise: 4\n")
    wait_until(lambda: "max_batch_sise" in str(served.probe.versions(model).get(1)), "the status names the wrong field")
    (directory / "config.pbtxt").unlink()
    served.probe.wait_states(model, {1: "AVAILABLE"})
    assert served.probe.ask(model) == 1
