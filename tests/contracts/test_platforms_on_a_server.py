"""One suite over every platform, through a server: what a client is answered, and what bad versions lead to.

The server has of each platform that a test asked for a model, one that returns what it gets, and all its bad versions;
and a neighbour, which answers whatever happens. Memory and swaps: tests/integration/test_platform_swaps.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.platforms.damage import SECRET
from tests.support.platforms.kinds import CONFIG, KINDS
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.platforms import write_plain
from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.protocols.dtypes import to_numpy

LOAD_SECONDS = 60.0
MODEL, SAME, NEIGHBOUR = "model", "same", "neighbour"
MARKS = {name: [pytest.mark.load] if kind.slow else [] for name, kind in KINDS.items()}
ALL = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]


def cases(field: str) -> list[Any]:
    """A platform and one of its cases."""
    return [
        pytest.param(name, case, marks=MARKS[name], id=f"{name}, {case}")
        for name, kind in KINDS.items()
        for case in getattr(kind, field)
    ]


class Served:
    """The models of one platform on the server; ``reference`` says what the first one has to answer."""

    def __init__(self, name: str, server: ServerFixture, drafts: Path) -> None:
        self.name, self.kind, self.server = name, KINDS[name], server
        drafts.mkdir()
        whole = drafts / MODEL
        self.reference = self.kind.write(whole)
        publish(str(whole), self.base(MODEL), 1)
        self.types: Sequence[DataType] = ()
        if self.kind.write_same is not None:
            self.types = self.kind.write_same(drafts / SAME)
            publish(str(drafts / SAME), self.base(SAME), 1)
        for case, damage in self.kind.damage.items():
            version = Path(shutil.copytree(whole, drafts / case / "1"))
            damage.edit(version)
            if damage.by_hand:
                version.parent.rename(self.base(case))
            else:
                publish(str(version), self.base(case), 1)

    def base(self, model: str) -> str:
        return str(self.server.root / self.model(model))

    def model(self, what: str) -> str:
        """The name on the server of MODEL, SAME, or the bad version of a case."""
        return f"{self.name}_{what.replace(' ', '_')}"

    def predict(self, inputs: Any, what: str = MODEL, **options: Any) -> Any:
        return self.server.client.predict(self.model(what), inputs, **options).outputs

    def wait(self, what: str, wanted: VersionState) -> None:
        """Returns when the version is in the state; AssertionError if it fails instead."""
        model = self.model(what)

        def reached() -> bool:
            found = self.server.status(model).get(1)
            assert found is None or found.status.ok, found
            return found is not None and found.state is wanted

        wait_until(reached, f"{model} is {wanted.name}", LOAD_SECONDS)

    def refusal(self, case: str) -> Status:
        """Why the version is not served."""
        model = self.model(case)

        def refused() -> Status | None:
            found = self.server.status(model).get(1)
            assert found is None or found.state is not VersionState.AVAILABLE
            return None if found is None or found.status.ok else found.status

        return wait_until(refused, f"{model} is refused", LOAD_SECONDS)

    def check_neighbour(self) -> None:
        answer = self.server.client.predict(NEIGHBOUR, {"x": np.ones((1, 4), np.float32)})
        assert answer.outputs["y"].tolist() == [[2.0] * 4]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("models")
    (write_plain(root / NEIGHBOUR / "1") / "config.pbtxt").write_text(CONFIG)
    trusted = [str(root / f"{name}_*") for name, kind in KINDS.items() if kind.needs_trust]
    flags = {"max_num_load_retries": 0, "trusted_model_base_paths": (str(root / NEIGHBOUR), *trusted)}
    if find_spec("tqdm") is not None:
        import_module("tqdm").tqdm.monitor_interval = 0  # else a thread of it outlives the server
    with serving(root, model_repository=str(root), **flags) as found:
        yield found


@pytest.fixture(scope="module")
def on_server() -> dict[str, Served]:
    """What is on the server already, by platform."""
    return {}


@pytest.fixture
def served(
    request: pytest.FixtureRequest,
    server: ServerFixture,
    on_server: dict[str, Served],
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    name = request.param
    if lacks := KINDS[name].lacks():
        pytest.skip(f"needs {lacks}")
    if name not in on_server:
        on_server[name] = Served(name, server, tmp_path_factory.mktemp(name) / "drafts")
        for what in (MODEL, SAME) if on_server[name].types else (MODEL,):
            on_server[name].wait(what, VersionState.AVAILABLE)
    return on_server[name]


@pytest.mark.parametrize("served", ALL, indirect=True)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_it_answers_as_the_reference(served: Served, rows: int) -> None:
    inputs = served.kind.inputs(rows)
    answer, expected = served.predict(inputs), served.reference(inputs)
    for name, right in expected.items():
        assert (answer[name].dtype, answer[name].shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(answer[name], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "served", [found for found in ALL if KINDS[found.values[0]].write_same is not None], indirect=True
)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_element_type_goes_in_and_comes_out(served: Served, rows: int) -> None:
    inputs = {f"{dtype.text}_": sample(dtype, rows) for dtype in served.types}
    answer = served.predict(inputs, SAME)
    for name, sent in inputs.items():
        found = answer[f"{name}out"]
        assert (found.dtype, found.shape, found.tolist()) == (sent.dtype, sent.shape, sent.tolist()), name


def sample(dtype: DataType, rows: int) -> Any:
    if dtype is DataType.STRING:
        return np.array([[b"a", "\xe9".encode()]] * rows, object).reshape(rows, 2)
    return (np.arange(2 * rows) % 2).reshape(rows, 2).astype(to_numpy(dtype))


@pytest.mark.parametrize(("served", "case"), cases("bad_inputs"), indirect=["served"])
def test_wrong_input_is_refused_and_the_next_request_is_answered(served: Served, case: str) -> None:
    inputs, word = served.kind.bad_inputs[case]
    assert word in refusal(served.predict, inputs, code=StatusCode.INVALID_ARGUMENT)
    assert served.predict(served.kind.inputs(1))


@pytest.mark.parametrize("served", ALL, indirect=True)
def test_outputs_and_signatures_that_it_has_not_are_refused_by_name(served: Served) -> None:
    inputs = served.kind.inputs(1)
    assert "loot" in refusal(served.predict, inputs, outputs=("loot",), code=StatusCode.INVALID_ARGUMENT)
    assert "loot" in refusal(served.predict, inputs, signature="loot", code=StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize(("served", "case"), cases("damage"), indirect=["served"])
def test_bad_version_is_refused_with_a_remedy_and_its_neighbour_answers(served: Served, case: str) -> None:
    damage = served.kind.damage[case]
    status = served.refusal(case)
    assert (status.code, damage.words in status.message) == (damage.code, True), status
    assert "\n" not in status.message
    assert str(served.server.root) not in status.message
    assert SECRET.decode() not in status.message
    served.check_neighbour()
    assert served.predict(served.kind.inputs(1))


@pytest.mark.parametrize("served", ALL, indirect=True)
def test_it_closes_and_the_model_comes_back_when_it_is_there_again(served: Served) -> None:
    base = Path(served.base(MODEL))
    there, away = base / "1", base / ".away"
    there.rename(away)
    served.wait(MODEL, VersionState.END)
    served.check_neighbour()
    away.rename(there)
    served.wait(MODEL, VersionState.AVAILABLE)
    assert served.predict(served.kind.inputs(1))
