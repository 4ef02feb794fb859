"""What an ensemble asks of its models before it is served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.schedulers.ensembles import CHAIN, EnsembleFixture, adder, ask, single
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType
from tfs_lite.core.status import Reason, ServingError, StatusCode


def test_ensemble_waits_for_the_models_of_its_steps(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    with pytest.raises(ServingError) as caught:
        fixture.ensemble("e", CHAIN)
    status = caught.value.status
    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, Reason.WAITS_FOR_MODELS)
    assert status.message == "it contains models that are not available: waits for step 1 (model b)"
    fixture.serve("b", adder(1))
    assert ask(fixture.ensemble("e", CHAIN), {"IN": [0, 0]}).outputs


def test_ensemble_waits_for_a_version_that_a_step_names(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    with pytest.raises(ServingError, match=r"waits for step 0 \(model a version 3\)$") as caught:
        fixture.ensemble("e", single("a", version=3))
    assert caught.value.status.reason is Reason.WAITS_FOR_MODELS


def test_newest_version_is_checked_whichever_a_step_names_and_its_handle_released(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    fixture.serve("a", adder(1, dims=(3,)), version=2)
    with pytest.raises(ServingError, match="inconsistent shape") as caught:
        fixture.ensemble("e", single("a", version=1))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert caught.value.status.reason is None
    fixture.wait_for_no_handles()


def test_model_with_several_answers_is_refused(fixture: EnsembleFixture) -> None:
    servable = fixture.serve("a", adder(1))
    servable.traits = replace(servable.traits, decoupled=True)
    with pytest.raises(ServingError, match="model a gives several answers") as caught:
        fixture.ensemble("e", single("a"))
    assert caught.value.code is StatusCode.UNIMPLEMENTED


def test_ensemble_looks_like_a_model(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1, batch=8), max_batch_size=8)
    e = fixture.ensemble("e", single("a", max_batch_size=8))
    found = e.signatures[DEFAULT_SIGNATURE]
    assert [(one.name, one.dtype, one.batch) for one in (*found.inputs, *found.outputs)] == [
        ("IN", DataType.FLOAT, "batch"),
        ("OUT", DataType.FLOAT, "batch"),
    ]
    assert (e.traits.platform, e.traits.max_batch_size, e.traits.decoupled) == ("ensemble", 8, False)
    assert (e.models, e.pending) == ((), 0)
