"""The parameters of a language model's config."""

from __future__ import annotations

import pytest

from tfs_lite.config.generation import GenerationSettings, generation_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import ServingError, StatusCode


def read(slots: int = 0, **parameters: str) -> GenerationSettings:
    return generation_settings(ModelSettings(max_batch_size=slots, parameters=parameters))


def test_texts_become_values() -> None:
    found = read(max_model_len="100", prefix_reuse="false", queue_timeout="2.5", policy="longest_first")
    assert (found.max_model_len, found.prefix_reuse, found.queue_timeout) == (100, False, 2.5)
    assert found.policy == "longest_first"


def test_slots_are_the_largest_batch_unless_the_parameter_says_so() -> None:
    assert read(4).slots(on_gpu=False) == 4
    assert read(4, max_num_seqs="7").slots(on_gpu=False) == 7
    assert (read().slots(False), read().slots(True)) == (16, 64)


def test_context_is_not_longer_than_the_models() -> None:
    assert read().length(False, 1024) == 1024
    assert read().length(False, 100_000) == 2048
    assert read().length(True, 100_000) == 8192
    assert read(max_model_len="4000").length(False, 100_000) == 4000
    assert read().length(False, None) == 2048


def test_a_step_has_room_for_every_slot() -> None:
    assert read(1000).rows(False) == 1000
    assert read(8).rows(False) == 512
    assert read(8, max_batched_tokens="32").chunk(False) == 32


def test_queues_grow_with_the_slots() -> None:
    found = read(3)
    assert (found.queue(3), found.queued_tokens(3, 50)) == (12, 150)
    assert read(3, max_queue="1", max_queued_tokens="9").queue(3) == 1
    assert read(3, max_queue="0").queue(3) == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_modl_len": "3"}, 'a language model has no max_modl_len; did you mean "max_model_len"?'),
        ({"dtype": "int4"}, "parameters.dtype"),
        ({"max_model_len": "0"}, "parameters.max_model_len"),
        ({"cuda_graphs": "perhaps"}, "parameters.cuda_graphs"),
        ({"prefill_slowdown": "1"}, "parameters.prefill_slowdown"),
        ({"queue_timeout": "nan"}, "parameters.queue_timeout"),
        ({"max_num_seqs": "8", "max_batched_tokens": "4"}, "less than the 8 texts that run at once"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_senseless_parameters_are_refused_by_name(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ServingError, match=message.replace("?", r"\?")) as caught:
        read(**parameters)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
