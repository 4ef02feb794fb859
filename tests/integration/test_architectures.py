"""Families of transformers with small random weights, served from the directories of save_pretrained: answers are those
of the library, or the load is refused in true words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.support.language.architectures import (
    COUNT,
    FAMILIES,
    PIXELS,
    PROMPTS,
    REFUSED,
    TEXTS,
    answers,
    save_family,
    texts_of,
)
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until

pytestmark = pytest.mark.slow
SAMPLE = (("embeds", "phi3"), ("classifies", "bart"), ("sees", "pvt"), ("generates", "falcon"))
SAMPLE_REFUSED = (("generates", "prophetnet"), ("embeds", "big_bird"), ("sees", "pp_lcnet"))
LOADS = 600.0
"""Seconds for all loads."""
OUTPUTS = {"embeds": "embeddings", "classifies": "logits", "tags": "logits", "sees": "logits"}


def _check(root: Path, families: Sequence[tuple[str, str]]) -> None:
    networks = {pair: save_family(root / "-".join(pair) / "1", *pair) for pair in families}
    with serving(root, ready=False, model_repository=str(root), max_num_load_retries=0) as served:
        served.server.wait_ready(LOADS)
        wrong = [f"{way} {kind}" for (way, kind), module in networks.items() if not _equal(served, way, kind, module)]
    assert not wrong


def _equal(served: ServerFixture, way: str, kind: str, module: Any) -> bool:
    name = f"{way}-{kind}"
    if way == "generates":
        with openai.OpenAI(base_url=f"{served.url}/openai/v1", api_key="none", max_retries=0) as client:
            found = client.completions.create(model=name, prompt=list(PROMPTS), max_tokens=COUNT, temperature=0)
        return [choice.text.strip() for choice in found.choices] == [text.strip() for text in texts_of(module)]
    if way == "sees":
        given: dict[str, Any] = {"pixel_values": PIXELS}
    else:
        given = {"text": np.array([text.encode() for text in TEXTS], object)}
    together = served.client.predict(name, given).outputs[OUTPUTS[way]]
    return all(map(_close, together, answers(module, way)))


def _close(row: Any, wanted: Any) -> bool:
    """``row`` may be longer: those of tags are filled up."""
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    return np.allclose(row[: len(wanted)], wanted, rtol=1e-3, atol=1e-3 * scale)


def test_four_families_answer_as_the_library_does(tmp_path: Path) -> None:
    _check(tmp_path, SAMPLE)


@pytest.mark.load
def test_every_family_answers_as_the_library_does(tmp_path: Path) -> None:
    _check(tmp_path, [(way, kind) for way, kinds in FAMILIES.items() for kind in kinds])


def _check_refused(root: Path, families: Sequence[tuple[str, str]]) -> None:
    for way, kind in families:
        save_family(root / f"{way}-{kind}" / "1", way, kind)
    with serving(root, ready=False, model_repository=str(root), max_num_load_retries=0) as served:
        for way, kind in families:
            said = wait_until(lambda name=f"{way}-{kind}": _error(served, name), f"{way} {kind} is refused")
            assert REFUSED[way, kind] in said, f"{way} {kind}: {said}"


def _error(served: ServerFixture, name: str) -> str:
    return "".join(each.status.message for each in served.status(name).values())


def test_what_would_answer_otherwise_is_refused(tmp_path: Path) -> None:
    _check_refused(tmp_path, SAMPLE_REFUSED)


@pytest.mark.load
def test_every_refusal_says_why(tmp_path: Path) -> None:
    _check_refused(tmp_path, [pair for pair in REFUSED if pair not in SAMPLE_REFUSED])
