"""Ensembles whose models are ensembles."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.ensemble.models import composing_of, contains
from tfs_lite.schedulers.ensemble.servable import MAX_DEPTH, EnsembleServable
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.testing.schedulers.ensembles import (
    CHAIN,
    EnsembleFixture,
    adder,
    ask,
    failing,
    settings_of,
    single,
    step,
    tensor,
    through,
)


def test_ensembles_may_be_steps(town: EnsembleFixture) -> None:
    town.serve("a", adder(1))
    town.serve("b", adder(10))
    inner = town.ensemble("inner", CHAIN)
    outer = town.ensemble(
        "outer",
        settings_of(
            [tensor("IN")],
            [tensor("OUT")],
            [step("inner", {"IN": "IN"}, {"OUT": "t"}), step("inner", {"IN": "t"}, {"OUT": "OUT"})],
        ),
    )
    assert ask(outer, {"IN": [0, 0]})[1].outputs["OUT"].tolist() == [22, 22]
    assert town.counted() == ["a", "b", "inner", "a", "b", "inner"]
    assert (outer.composing, inner.composing) == ((("inner", None),), (("a", None), ("b", None)))
    assert outer.origins == {"OUT": (("inner", None), "OUT")}


def test_failure_inside_names_every_ensemble(town: EnsembleFixture) -> None:
    town.serve("a", failing(ServingError(StatusCode.INTERNAL, "broken")))
    town.ensemble("inner", single("a"))
    outer = town.ensemble(
        "outer", settings_of([tensor("IN")], [tensor("OUT")], [step("inner", {"IN": "IN"}, {"OUT": "OUT"})])
    )
    assert ask(outer, {"IN": [0, 0]})[1].status.message == "in ensemble 'outer', in ensemble 'inner', broken"


def test_cancelling_goes_through_all_ensembles(town: EnsembleFixture) -> None:
    gate = threading.Event()
    model = adder(1, gate=gate)
    blocked = town.serve("a", model)
    inner = town.ensemble("inner", single("a"))
    outer = town.ensemble(
        "outer", settings_of([tensor("IN")], [tensor("OUT")], [step("inner", {"IN": "IN"}, {"OUT": "OUT"})])
    )
    _, running = ask(blocked, {"x": [0, 0]})
    model.wait_entered()
    call, answer = ask(outer, {"IN": [0, 0]})
    outer.cancel(call)
    assert answer.status.code is StatusCode.CANCELLED
    town.wait_for_no_handles()
    assert (inner.pending, outer.pending) == (0, 0)
    gate.set()
    assert running.outputs
    assert len(model.seen) == 1


def test_ensemble_that_contains_itself_is_refused(town: EnsembleFixture) -> None:
    town.serve("c", adder(1))
    town.ensemble("b", through("c"))
    town.ensemble("a", through("b"))
    assert contains("c", ["a"], town.resolve)
    assert not contains("d", ["a"], town.resolve)
    with pytest.raises(ServingError, match="ensemble c contains itself") as caught:
        town.ensemble("c", through("a"), version=2)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_ensemble_behind_a_cache_is_looked_into(town: EnsembleFixture) -> None:
    town.serve("c", adder(1))
    inner = EnsembleServable(ServableId("b", 1), ModelSettings.model_validate(through("c")), town.resolve)
    town.add(inner.id, CachedServable(inner, ResponseCache(1000), inner.id))
    assert composing_of(town.servables[-1]) == (("c", None),)
    assert contains("c", ["b"], town.resolve)


def test_ensembles_that_have_become_a_circle_end_at_a_bound(town: EnsembleFixture) -> None:
    town.serve("b", adder(1))
    town.ensemble("a", through("b"))
    waiting = EnsembleFixture()
    waiting.serve("a", adder(1))
    made = EnsembleServable(ServableId("b", 2), ModelSettings.model_validate(through("a")), waiting.resolve)
    made._resolve = town.resolve  # both were checked while the other was still a plain model
    town.add(ServableId("b", 2), made)
    status = ask(town.servables[1], {"x": [0, 0]})[1].status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert f"more than {MAX_DEPTH} ensembles are inside one another" in status.message
    waiting.close()
