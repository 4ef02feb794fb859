"""A config file is written in place, in pieces, while clients ask for the models that stand at its end."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.servers.models import write_python_version
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until

SOURCE = """
class Model:
    def __init__(self, context):
        self.version = context.version

    def predict(self, inputs):
        return {"y": inputs["x"] + self.version}
"""
HEAD = "model_config_list:\n  config:\n"


def test_no_request_fails_while_a_config_is_written(tmp_path: Path) -> None:
    names = ["first", "second", "third", "last"]
    for name in (*names, "new"):
        write_python_version(tmp_path / name, 1, SOURCE)
    entries = [f"    - {{name: {name}, base_path: {tmp_path / name}}}\n" for name in (*names, "new")]
    file = tmp_path / "models.yaml"
    file.write_text(HEAD + "".join(entries[:-1]))
    flags = (f"--model_config_file={file}", f"--trusted_model_base_paths={tmp_path}/*")
    with ServerProcess(*flags, "--model_config_file_poll_wait_seconds=1") as server, Probe(server) as probe:
        wait_until(lambda: all(probe.states(name) == {1: "AVAILABLE"} for name in names), "all models are available")
        pause = threading.Event()
        for text in ("", HEAD, *entries):
            with file.open("a" if text else "w") as writer:
                writer.write(text)
            for _ in range(6):
                pause.wait(0.2)  # what a slow writer takes: more than a poll, and than the quiet time of an addition
                for name in names:
                    assert probe.ask(name) == 1
        wait_until(lambda: probe.states("new") == {1: "AVAILABLE"}, "the new model is available")
        file.write_text(HEAD + "".join(entries[1:]))
        wait_until(lambda: probe.states("first").get(1) != "AVAILABLE", "what was taken out has gone")
        assert "removed [second" not in server.log()
