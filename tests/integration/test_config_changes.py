"""Configs beside models that serve are changed while clients ask: they are followed, and no request fails."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers.in_process import ROW, TIMEOUT, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import ServingError

CLIENTS = 3
SOURCE = """
class Model:
    def __init__(self, context):
        self.plus = float(context.config.parameters.get("plus", "0"))

    def predict(self, inputs):
        return {"y": inputs["x"] + self.plus}
"""
SIGNATURE = """platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
"""


def config(plus: float, more: str = "") -> str:
    return f'{SIGNATURE}parameters {{ key: "plus" value {{ string_value: "{plus}" }} }}\n{more}'


def write_config(path: Path, text: str) -> None:
    """As editors do: the old text is there until the new one is whole."""
    beside = path.with_name("." + path.name)
    beside.write_text(text)
    os.replace(beside, path)


class Adder:
    """One model that adds what its config says; every name is used by one test."""

    def __init__(self, root: Path, name: str, served: ServerFixture) -> None:
        self.name, self.base, self._served = name, root / name, served
        self.config = self.base / "config.pbtxt"

    def publish(self, version: int = 1) -> None:
        directory = self.base / f".{version}"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(SOURCE)
        os.replace(directory, self.base / str(version))
        wait_until(lambda: self.states().get(version) is VersionState.AVAILABLE, "it is available", TIMEOUT)

    def states(self) -> dict[int, VersionState]:
        return self._served.states(self.name)

    def plus(self, version: int | None = None) -> float:
        return added(self._served.client, self.name, version)

    def wait_plus(self, expected: float, version: int | None = None) -> None:
        wait_until(lambda: self.plus(version) == expected, f"it adds {expected:g}", TIMEOUT)

    def problem(self, version: int = 1) -> str:
        status = self._served.status(self.name)[version]
        assert status.state is VersionState.AVAILABLE
        return str(status.status)

    def wait_problem(self, words: str, version: int = 1) -> str:
        return wait_until(
            lambda: text if words in (text := self.problem(version)) else None, f"its status says {words}", TIMEOUT
        )

    @contextlib.contextmanager
    def asked(self) -> Iterator[list[float]]:
        """While the block runs clients ask without a pause; no request fails. What was added, in order of the ends."""
        stop, seen, faults = threading.Event(), list[float](), list[BaseException]()

        def ask() -> None:
            with Client(self._served.target, timeout=TIMEOUT) as client:
                while not stop.is_set():
                    try:
                        seen.append(added(client, self.name))
                    except BaseException as error:
                        faults.append(error)
                        return

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: faults or seen, "one was answered before anything changes", TIMEOUT)
            yield seen
            asked = len(seen)
            wait_until(lambda: faults or len(seen) > asked + CLIENTS, "one is asked and answered now", TIMEOUT)
        finally:
            stop.set()
            for thread in threads:
                thread.join(TIMEOUT)
        assert not faults, faults[0]


def added(client: Client, name: str, version: int | None = None) -> float:
    outputs = client.predict(name, {"x": ROW}, version=version).outputs
    (plus,) = set((np.asarray(outputs["y"]) - ROW).ravel().tolist())
    return float(plus)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("models")
    fields = {"model_repository": str(root), "trusted_model_base_paths": (f"{root}/*",), "max_num_load_retries": 0}
    with serving(root, **fields) as found:
        yield found


@pytest.fixture
def adder(served: ServerFixture, request: pytest.FixtureRequest) -> Adder:
    """Version 1 of it serves and adds 1."""
    found = Adder(served.root, request.node.name.replace("[", "_").replace("]", ""), served)
    found.base.mkdir()
    write_config(found.config, config(1))
    found.publish()
    assert found.plus() == 1
    return found


def test_changed_config_is_followed_without_a_failed_request(adder: Adder) -> None:
    with adder.asked() as seen:
        for plus in (2, 3, 4):
            write_config(adder.config, config(plus))
            adder.wait_plus(plus)
    assert list(dict.fromkeys(seen)) == [1, 2, 3, 4]
    assert adder.problem() == "OK"
    assert adder.states() == {1: VersionState.AVAILABLE}


def test_every_version_that_serves_follows(adder: Adder) -> None:
    policy = "version_policy { all {} }"
    write_config(adder.config, config(1, policy))
    adder.publish(2)
    both = {2: VersionState.AVAILABLE, 1: VersionState.AVAILABLE}
    wait_until(lambda: adder.states() == both, "both are available", TIMEOUT)
    with adder.asked():
        write_config(adder.config, config(5, policy))
        for version in (1, 2):
            adder.wait_plus(5, version)


def test_config_of_a_version_comes_and_goes(adder: Adder) -> None:
    with adder.asked():
        own = adder.base / "1" / "config.pbtxt"
        write_config(own, config(7))
        adder.wait_plus(7)
        write_config(own, config(8))
        adder.wait_plus(8)
        own.unlink()
        adder.wait_plus(1)


def test_config_that_becomes_yaml_is_followed(adder: Adder) -> None:
    yaml = adder.base / "config.yaml"
    text = "platform: python\ninput: [{name: x, data_type: TYPE_FP32, dims: [-1, 3]}]\n"
    text += "output: [{name: y, data_type: TYPE_FP32, dims: [-1, 3]}]\nparameters: {plus: {string_value: '6'}}\n"
    with adder.asked():
        write_config(yaml, text)
        assert "both config.pbtxt and config.yaml" in adder.wait_problem("keep one")
        adder.config.unlink()
        adder.wait_plus(6)
    assert adder.problem() == "OK"


def test_wrong_config_changes_nothing_says_where_it_is_wrong_and_is_followed_when_mended(
    adder: Adder, caplog: pytest.LogCaptureFixture
) -> None:
    with adder.asked() as seen:
        write_config(adder.config, config(2, "max_batch_sise: 4"))
        problem = adder.wait_problem("config.pbtxt:")
        assert problem.startswith("INVALID_ARGUMENT: it goes on with the config of before: config.pbtxt:5:")
        asked = len(seen)
        wait_until(lambda: len(seen) > asked + 100, "some more answers", TIMEOUT)
        write_config(adder.config, config(3))
        adder.wait_plus(3)
    assert set(seen) == {1, 3}
    assert adder.problem() == "OK"
    assert caplog.text.count("goes on with the config of before") == 1


def test_config_that_fails_to_load_leaves_what_serves_and_the_next_one_is_followed(adder: Adder) -> None:
    with adder.asked() as seen:
        write_config(adder.config, config(2).replace("python", "pytorch_export"))
        adder.wait_problem("it goes on with the config of before")
        write_config(adder.config, config(3))
        adder.wait_plus(3)
    assert set(seen) == {1, 3}


def test_new_version_takes_over_while_a_wrong_config_keeps_the_old_one(adder: Adder) -> None:
    write_config(adder.config, "nonsense")
    adder.wait_problem("config.pbtxt:1:")
    (adder.base / "2").mkdir()
    (adder.base / "2" / "model.py").write_text(SOURCE)
    wait_until(lambda: adder.states().get(2) is VersionState.END, "version 2 fails", TIMEOUT)
    assert adder.plus() == 1
    write_config(adder.config, config(4))
    wait_until(lambda: adder.states().get(2) is VersionState.AVAILABLE, "version 2 is available", TIMEOUT)
    assert adder.plus() == 4


def test_deleted_config_is_followed(adder: Adder) -> None:
    """Without a config this model has no signature, so it cannot be loaded: what serves goes on."""
    text = adder.config.read_text()
    adder.config.unlink()
    adder.wait_problem("it goes on with the config of before")
    assert adder.plus() == 1
    adder.config.write_text(text)
    wait_until(lambda: adder.problem() == "OK", "its status is fine again", TIMEOUT)


def test_version_of_a_deleted_config_goes_on_with_the_defaults(served: ServerFixture, archives: TaggedArchives) -> None:
    base = served.root / "tagged"
    base.mkdir()
    write_config(base / "config.pbtxt", "max_batch_size: 1")
    archives.write_version(1, base)
    served.wait_states({1: VersionState.AVAILABLE}, "tagged")
    core = served.server.core

    def bound() -> int:
        with core.handle(ModelRef("tagged")) as handle:
            return core.renewal.settings_of(handle.servable).max_batch_size

    assert bound() == 1
    (base / "config.pbtxt").unlink()
    wait_until(lambda: bound() == 0, "it has no config", TIMEOUT)
    assert served.version("tagged") == 1


def test_touched_config_and_a_version_policy_change_nothing(
    adder: Adder, served: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    loads = served.server.core.view.last_attempts(adder.name)[1].number
    for text in (config(1), "# a remark\n" + config(1), config(1, "version_policy { latest { num_versions: 1 } }")):
        write_config(adder.config, text)
    write_config(adder.config, config(2))
    adder.wait_plus(2)
    write_config(adder.config, config(2, "instance_group { count: 2 kind: KIND_CPU }"))
    wait_until(lambda: workers(served, adder.name) == 2, "it has two instances", TIMEOUT)
    assert served.server.core.view.last_attempts(adder.name)[1].number == loads + 1
    assert "changed on disk" not in caplog.text


def workers(served: ServerFixture, name: str) -> int:
    families = {family.name: family for family in served.server.core.registry.collect()}
    samples = families["tfs_lite_worker_up"].samples
    return int(sum(sample.value for sample in samples if sample.labels["model"] == name))


def test_instances_alone_are_changed_in_place(adder: Adder, served: ServerFixture) -> None:
    loads = served.server.core.view.last_attempts(adder.name)[1].number
    with adder.asked():
        for count in (3, 1, 2):
            write_config(adder.config, config(1, f"instance_group {{ count: {count} }}"))
            wait_until(lambda count=count: workers(served, adder.name) == count, f"{count} instances", TIMEOUT)
    assert served.server.core.view.last_attempts(adder.name)[1].number == loads


def ensemble(model: str, steps: int) -> str:
    """``model``, so many times in a row."""
    tensors = [*(f"t{number}" for number in range(steps)), "y"]
    tensors[0] = "x"
    chain = " ".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{one}" }} '
        f'output_map {{ key: "y" value: "{other}" }} }}'
        for one, other in itertools.pairwise(tensors)
    )
    return SIGNATURE.replace("python", "ensemble") + f"ensemble_scheduling {{ {chain} }}"


def test_ensembles_and_their_models_are_followed(adder: Adder, served: ServerFixture) -> None:
    pipe = Adder(served.root, "pipe", served)
    (pipe.base / "1").mkdir(parents=True)
    write_config(pipe.config, ensemble(adder.name, 1))
    wait_until(lambda: pipe.states().get(1) is VersionState.AVAILABLE, "the ensemble is available", TIMEOUT)
    with pipe.asked() as seen:
        write_config(adder.config, config(10))
        pipe.wait_plus(10)
        write_config(pipe.config, ensemble(adder.name, 2))
        pipe.wait_plus(20)
        write_config(pipe.config, ensemble("nobody", 1))
        pipe.wait_problem("nobody")
        assert pipe.plus() == 20
    assert list(dict.fromkeys(seen)) == [1, 10, 20]


Start = Callable[..., ServerFixture]


@pytest.fixture
def start(tmp_path: Path, archives: TaggedArchives) -> Iterator[Start]:
    """Starts a server of one model by its base path."""
    with contextlib.ExitStack() as servers:

        def make(**fields: object) -> ServerFixture:
            (tmp_path / "m").mkdir()
            write_config(tmp_path / "m" / "config.pbtxt", config(1))
            version = tmp_path / "m" / "1"
            version.mkdir()
            (version / "model.py").write_text(SOURCE)
            if "model_config_file" not in fields:
                fields = {"model_name": "m", "model_base_path": str(tmp_path / "m"), **fields}
            return servers.enter_context(serving(tmp_path, trusted_model_base_paths=("/*",), **fields))

        yield make


def test_with_the_resource_policy_the_old_one_goes_first(start: Start) -> None:
    served = start(aspired_version_policy="resource")
    adder = Adder(served.root, "m", served)
    write_config(adder.config, "nonsense")
    adder.wait_problem("config.pbtxt:1:")
    write_config(adder.config, config(2))

    def plus() -> float | None:
        """None in the gap."""
        try:
            return adder.plus()
        except ServingError:
            return None

    wait_until(lambda: plus() == 2, "it adds 2", TIMEOUT)


def test_models_of_a_config_file_are_followed(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("m")))
    served = start(model_config_file=str(file))
    adder = Adder(served.root, "m", served)
    with adder.asked():
        write_config(adder.config, config(2))
        adder.wait_plus(2)


def test_config_that_changes_during_a_load_is_followed_after_it_and_not_at_the_next_poll(
    start: Start, tmp_path: Path
) -> None:
    served = start(file_system_poll_wait_seconds=60)
    adder, go = Adder(served.root, "m", served), tmp_path / "go"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\n"
    version = adder.base / ".2"
    version.mkdir()
    (version / "model.py").write_text(waits + SOURCE)
    (version / "config.pbtxt").write_text(config(2))
    os.replace(version, adder.base / "2")
    wait_until(lambda: adder.states().get(2) is VersionState.LOADING, "it is being loaded", TIMEOUT)
    write_config(adder.base / "2" / "config.pbtxt", config(3))
    go.touch()
    adder.wait_plus(3)


def test_version_that_goes_on_with_the_files_of_before_has_no_stand_in(start: Start) -> None:
    served = start(version_quiet_period_seconds=0.2)
    adder = Adder(served.root, "m", served)
    adder.publish(2)
    wait_until(lambda: adder.states()[1] is VersionState.END, "the old version is gone", TIMEOUT)
    file = adder.base / "2" / "model.py"
    write_config(file, "raise RuntimeError('broken')")
    adder.wait_problem("broken", 2)
    write_config(file, SOURCE.replace("+ self.plus", "+ self.plus + 10"))
    adder.wait_plus(11)
    assert adder.states() == {1: VersionState.END, 2: VersionState.AVAILABLE}


def test_in_the_mode_none_changes_are_ignored(start: Start) -> None:
    served = start(model_control_mode="none")
    adder = Adder(served.root, "m", served)
    write_config(adder.config, config(2))
    assert served.server.core.renewal.follower is None
    assert adder.plus() == 1
