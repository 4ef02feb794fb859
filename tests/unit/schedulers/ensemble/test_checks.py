"""Ensembles that do not fit the models of their steps are refused, and the message says where."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.schedulers.ensembles import pipeline, signature, spec, step
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DataType, Signature
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.ensemble.checks import check_steps
from tfs_lite.schedulers.ensemble.types import graph_of, interface_of

PLAIN = signature({"x": (2,)}, {"y": (2,)})
WITH_DEFAULT = Signature((*PLAIN.inputs, spec("w", (2,))), PLAIN.outputs, defaults={"w": np.zeros(2, np.float32)})
UNDECLARED = Signature((spec("x", (2,), dtype=DataType.INVALID),), PLAIN.outputs)


def chain(maps: tuple[str, str] = ("x", "y"), **settings: object) -> dict:
    """Two steps; ``maps`` are the names of the second one's input and output."""
    second = step("b", {maps[0]: "between"}, {maps[1]: "OUT"})
    return pipeline(step("a", {"x": "IN"}, {"y": "between"}), second, **settings)


def check(settings: dict, *signatures: Signature) -> None:
    check_steps(graph_of("e", ModelSettings.model_validate(settings)), [interface_of(found) for found in signatures])


@pytest.mark.parametrize(
    ("settings", "second"),
    [
        pytest.param(chain(), PLAIN, id="plain"),
        pytest.param(chain(), WITH_DEFAULT, id="an input with a default need not be mapped"),
        pytest.param(chain(), UNDECLARED, id="undeclared type"),
        pytest.param(chain(), signature({"x": (-1,)}, {"y": (-1,)}), id="any size"),
        pytest.param(chain(), signature({"x": (2,)}, {"y": (2,)}, 4), id="a step that batches"),
    ],
)
def test_steps_that_fit_pass(settings: dict, second: Signature) -> None:
    check(settings, PLAIN, second)


@pytest.mark.parametrize(
    ("settings", "second", "message"),
    [
        pytest.param(
            chain(("x", "z")),
            PLAIN,
            'step 1 (model b): ensemble tensor "OUT" is mapped from non-existing output "z"; the model has: y',
            id="no such output",
        ),
        pytest.param(
            chain(("w", "y")),
            PLAIN,
            'step 1 (model b): ensemble tensor "between" is mapping to non-existing input "w"; the model has: x',
            id="no such input",
        ),
        pytest.param(
            chain(),
            signature({"x": (2,), "w": (2,)}, {"y": (2,)}),
            'step 1 (model b): input "w" is not mapped to any ensemble tensors',
            id="input without a tensor",
        ),
        pytest.param(
            chain(),
            Signature((spec("x", (2,), dtype=DataType.INT32),), PLAIN.outputs),
            'ensemble tensor "between": inconsistent data type: output "y" of step 0 (model a) is float, '
            'input "x" of step 1 (model b) expects int32',
            id="type between steps",
        ),
        pytest.param(
            chain(),
            Signature(PLAIN.inputs, (spec("y", (2,), dtype=DataType.INT32),)),
            'ensemble tensor "OUT": inconsistent data type: output "y" of step 1 (model b) is int32, '
            'the ensemble\'s output "OUT" expects float',
            id="type of an output",
        ),
        pytest.param(
            chain(),
            signature({"x": (3,)}, {"y": (2,)}),
            'ensemble tensor "between": inconsistent shape: output "y" of step 0 (model a) has [2], '
            'input "x" of step 1 (model b) expects [3]',
            id="shape between steps",
        ),
        pytest.param(
            chain(max_batch_size=8),
            signature({"x": (2,)}, {"y": (2,)}, 4),
            "step 1 (model b) takes at most 4 rows, fewer than the max_batch_size 8 of the ensemble",
            id="too few rows",
        ),
    ],
)
def test_what_does_not_fit_is_named(settings: dict, second: Signature, message: str) -> None:
    first = signature({"x": (2,)}, {"y": (2,)}, settings.get("max_batch_size", 0))
    with pytest.raises(ServingError, match=f"^{re.escape(message)}$") as caught:
        check(settings, first, second)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_an_input_of_the_ensemble_that_its_step_does_not_take_is_named() -> None:
    with pytest.raises(ServingError, match=r'ensemble\'s input "IN" is float, input "x" of step 0 \(model a\)'):
        check(chain(), Signature((spec("x", (2,), dtype=DataType.STRING),), PLAIN.outputs), PLAIN)
