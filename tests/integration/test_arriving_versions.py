"""A version is served whole or not at all, however slowly its files arrive; the status says what it waits for."""

from __future__ import annotations

import shutil

from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until

PIECES = 5
NOT_WHOLE = ("archive", "truncated", "zip")
"""Words of the reason why files that have been quiet are not served yet."""


def go_on_for(traffic: Traffic, answers: int) -> None:
    """Lets time pass, measured in answers to the clients."""
    goal = traffic.total + answers
    wait_until(lambda: traffic.total >= goal, f"{answers} more answers")


def test_version_written_piece_by_piece_is_never_served_half(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    content = served.archive(2).read_bytes()
    size = len(content) // PIECES + 1
    directory = served.base(model) / "2"
    with Traffic(served.server.target, model, threads=2) as traffic:
        directory.mkdir()
        served.probe.wait_reason(model, 2)
        (directory / "notes.txt").write_text("the weights follow")
        with (directory / "model.pt2").open("wb", buffering=0) as file:
            for piece in range(PIECES - 1):
                file.write(content[piece * size : (piece + 1) * size])
                served.probe.wait_reason(model, 2, *NOT_WHOLE)
                go_on_for(traffic, answers=500)
                assert served.probe.states(model) == {2: "START", 1: "AVAILABLE"}
            file.write(content[(PIECES - 1) * size :])
        served.probe.wait_available(model, 2)
        assert served.probe.ask(model) == 2
    assert traffic.failures == []
    assert traffic.wrong == []
    assert set(traffic.answers) <= {1, 2}


def test_truncated_archive_says_so_and_is_served_once_repaired(served, model):
    whole = served.archive(1).read_bytes()
    artefact = served.base(model) / "1" / "model.pt2"
    artefact.parent.mkdir(parents=True)
    artefact.write_bytes(whole[: len(whole) // 2])
    served.probe.wait_reason(model, 1, *NOT_WHOLE)
    artefact.write_bytes(whole)
    served.probe.wait_available(model, 1)
    assert served.probe.ask(model) == 1


def test_published_version_whose_files_do_not_match_the_manifest_waits_and_says_so(served, model):
    directory = served.publish(model, 1)
    served.probe.wait_available(model, 1)
    hidden = served.base(model) / ".copying"
    shutil.copytree(directory, hidden)
    content = served.archive(2).read_bytes()
    (hidden / "model.pt2").write_bytes(content[:-100])
    hidden.rename(served.base(model) / "2")
    served.probe.wait_reason(model, 2, "model.pt2")
    assert served.probe.ask(model) == 1


def test_corrupt_version_fails_visibly_and_its_repaired_self_is_served(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    corrupt = served.publish(model, 2, content=served.archive(2).read_bytes()[:-1000])
    failed = served.probe.wait_failed(model, 2)
    assert str(served.path) not in failed.status.message
    assert served.probe.ask(model) == 1
    shutil.rmtree(corrupt)
    served.publish(model, 2)
    served.probe.wait_states(model, {2: "AVAILABLE"})
    assert served.probe.ask(model) == 2
    served.probe.wait_states(model, {1: "END"})


def test_version_garbled_inside_says_so_and_is_served_once_repaired_in_place(served, model):
    directory = served.base(model) / "1"
    directory.mkdir(parents=True)
    whole = served.archive(1).read_bytes()
    (directory / "model.pt2").write_bytes(whole[:1500] + b"\xff" * 800 + whole[2300:])
    wait_until(
        lambda: any(not version.status.ok for version in served.probe.versions(model).values()), "an error shows"
    )
    (directory / "model.pt2").write_bytes(whole)
    served.probe.wait_states(model, {1: "AVAILABLE"})
    assert served.probe.ask(model) == 1
