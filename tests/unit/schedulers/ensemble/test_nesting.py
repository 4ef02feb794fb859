"""Ensembles whose models are ensembles."""

from __future__ import annotations

import pytest

from tests.support.schedulers.ensembles import (
    CHAIN,
    EnsembleFixture,
    adder,
    ask,
    failing,
    pipeline,
    single,
    step,
    through,
)
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.ensemble.models import contains
from tfs_lite.schedulers.ensemble.servable import MAX_DEPTH, EnsembleServable
from tfs_lite.schedulers.response_cache import ResponseCache

OUTER = pipeline(step("inner", {"IN": "IN"}, {"OUT": "OUT"}))


def test_ensembles_may_be_steps(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    fixture.serve("b", adder(10))
    inner = fixture.ensemble("inner", CHAIN)
    twice = pipeline(step("inner", {"IN": "IN"}, {"OUT": "t"}), step("inner", {"IN": "t"}, {"OUT": "OUT"}))
    outer = fixture.ensemble("outer", twice)
    assert ask(outer, {"IN": [0, 0]}).outputs["OUT"].tolist() == [22, 22]
    assert fixture.counted() == ["a", "b", "inner", "a", "b", "inner"]
    assert (outer.traits.composing, inner.traits.composing) == ((("inner", None),), (("a", None), ("b", None)))
    assert outer.origins == {"OUT": (("inner", None), "OUT")}


def test_failure_inside_names_every_ensemble(fixture: EnsembleFixture) -> None:
    fixture.serve("a", failing(ServingError(StatusCode.INTERNAL, "broken")))
    fixture.ensemble("inner", single("a"))
    outer = fixture.ensemble("outer", OUTER)
    assert (
        ask(outer, {"IN": [0, 0]}).status.message
        == "in ensemble 'outer', step 0 (model inner): in ensemble 'inner', step 0 (model a): broken"
    )


def test_cancelling_goes_through_all_ensembles(fixture: EnsembleFixture) -> None:
    inner = fixture.serve_single("inner", "a")
    outer = fixture.ensemble("outer", OUTER)
    with fixture.blocked("a"):
        answer = ask(outer, {"IN": [0, 0]})
        outer.cancel(answer.call)
        assert answer.status.code is StatusCode.CANCELLED
        fixture.wait_for_no_handles()
        assert (inner.pending, outer.pending) == (0, 0)


def test_ensemble_that_contains_itself_is_refused(fixture: EnsembleFixture) -> None:
    fixture.serve("c", adder(1))
    fixture.ensemble("b", through("c"))
    fixture.ensemble("a", through("b"))
    assert contains("c", ["a"], fixture.resolve)
    assert not contains("d", ["a"], fixture.resolve)
    with pytest.raises(ServingError, match="ensemble c contains itself") as caught:
        fixture.ensemble("c", through("a"), version=2)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_ensemble_behind_a_cache_is_looked_into(fixture: EnsembleFixture) -> None:
    fixture.serve("c", adder(1))
    inner = EnsembleServable(ServableId("b", 1), ModelSettings.model_validate(through("c")), fixture.resolve)
    fixture.add(inner.id, CachedServable(inner, ResponseCache(1000), inner.id))
    assert fixture.servables[-1].traits.composing == (("c", None),)
    assert contains("c", ["b"], fixture.resolve)


def test_ensembles_that_have_become_a_circle_end_at_a_bound(fixture: EnsembleFixture) -> None:
    fixture.serve("b", adder(1))
    fixture.ensemble("a", through("b"))
    waiting = EnsembleFixture()
    waiting.serve("a", adder(1))
    made = EnsembleServable(ServableId("b", 2), ModelSettings.model_validate(through("a")), waiting.resolve)
    made._resolve = fixture.resolve  # both were checked while the other was still a plain model
    fixture.add(ServableId("b", 2), made)
    status = ask(fixture.servables[1], {"x": [0, 0]}).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert f"more than {MAX_DEPTH} ensembles are inside one another" in status.message
    waiting.close()
