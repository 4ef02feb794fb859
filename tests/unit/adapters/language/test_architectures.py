"""A load checks an architecture that was checked before in brief, and in full where that does not confirm it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.support.language.tiny_encoders import tokenizer
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders import model as encoder
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.language import architectures, transformers_model
from tfs_lite.adapters.language.architectures import Architectures
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import SelfCheckResult
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.servable import ServableId

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY = 300
Build = Callable[[int], PreTrainedModel]


def bert(width: int) -> PreTrainedModel:
    return BertModel(BertConfig(**{**SIZES, "hidden_size": width}, vocab_size=VOCABULARY, max_position_embeddings=64))


def llama(width: int) -> PreTrainedModel:
    sizes = {**SIZES, "hidden_size": width}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=VOCABULARY, max_position_embeddings=96, eos_token_id=9))


BUILDS = {"encoder": bert, "language model": llama}


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Makes a network of some width; nothing is known of any architecture yet."""
    monkeypatch.setattr(encoder, "_FOUND", Architectures())
    monkeypatch.setattr(transformers_model, "_PASSED", Architectures())
    return BUILDS[request.param]


@contextmanager
def forwards() -> Iterator[list[int]]:
    """The tokens of each forward: how many are looked up in the table of tokens."""
    found = list[int]()

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == VOCABULARY:
            found.append(args[0].numel())

    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def load(directory: Path, module: Any, seed: int = 0) -> tuple[Any, list[int]]:
    """The opened version with random weights, and the tokens of the forwards of its load."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    module.eval().save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    with forwards() as found:
        assert PLATFORM.open is not None
        request = OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", False)
        return PLATFORM.open(request), found


def test_second_version_of_an_architecture_takes_a_fraction_of_the_forwards(build: Build, tmp_path: Path) -> None:
    _, first = load(tmp_path / "1", build(32))
    _, second = load(tmp_path / "2", build(32), seed=1)
    assert 0 < 4 * sum(second) < sum(first)
    assert 2 * len(second) < len(first)


def test_known_language_model_runs_a_whole_text_several_rows_and_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_model, "_PASSED", Architectures())
    load(tmp_path / "1", llama(32))
    model, tokens = load(tmp_path / "2", llama(32), seed=1)
    assert tokens == [6, 5, 1]
    assert model.batches


@pytest.mark.parametrize("rows", [1, 5])
def test_known_language_model_whose_steps_are_wrong_is_checked_in_full(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_model, "_PASSED", Architectures())
    load(tmp_path / "1", llama(32))
    right = Network.logits

    def wrong(self: Network, step: Any) -> torch.Tensor:
        found = right(self, step)
        return -found if len(found) == rows else found

    monkeypatch.setattr(Network, "logits", wrong)
    _, tokens = load(tmp_path / "2", llama(32), seed=1)
    assert len(tokens) > 3


def test_version_of_another_architecture_is_checked_in_full(build: Build, tmp_path: Path) -> None:
    _, first = load(tmp_path / "1", build(32))
    _, wider = load(tmp_path / "2", build(64))
    assert wider == first


def test_encoder_that_is_checked_in_brief_answers_as_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_FOUND", Architectures())
    load(tmp_path / "1", bert(32))
    network = bert(32)
    model, _ = load(tmp_path / "2", network, seed=1)
    rows = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17]]
    ids = np.zeros((3, 9), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    together = model.run("tokens", {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}, ())["embeddings"]
    with torch.inference_mode():
        alone = [network(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0).numpy() for row in rows]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-4)
    assert model._joins


def test_known_encoder_runs_a_row_alone_and_joined_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_FOUND", Architectures())
    load(tmp_path / "1", bert(32))
    model, tokens = load(tmp_path / "2", bert(32), seed=1)
    assert tokens == [5, 5 + 8 + 5]
    assert model._joins


@pytest.mark.parametrize(("row", "wrong"), [(0, -1.0), (1, np.nan), (2, -1.0)])
def test_encoder_that_does_not_confirm_what_is_known_is_checked_in_full(
    row: int, wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_FOUND", Architectures())
    _, first = load(tmp_path / "1", bert(32))
    joined = encoder.TextEncoder._joined

    def of_one_row(self: encoder.TextEncoder, rows: Any) -> Any:
        return [answer * wrong if at == row else answer for at, answer in enumerate(joined(self, rows))]

    monkeypatch.setattr(encoder.TextEncoder, "_joined", of_one_row)
    model, second = load(tmp_path / "2", bert(32), seed=1)
    assert not model._joins
    assert second[-len(first) :] == first
    assert len(second) > len(first)


def test_language_model_that_does_not_confirm_what_is_known_is_checked_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfs_lite.adapters.language import self_check

    monkeypatch.setattr(transformers_model, "_PASSED", Architectures())
    load(tmp_path / "1", llama(32))
    check, briefs = self_check.self_check, list[bool]()

    def fails_in_brief(network: Any, module: Any, brief: bool = False) -> SelfCheckResult:
        briefs.append(brief)
        return SelfCheckResult(1.0, 0.1, 9, 9, 2) if brief else check(network, module)

    monkeypatch.setattr(self_check, "self_check", fails_in_brief)
    model, _ = load(tmp_path / "2", llama(32), seed=1)
    assert briefs == [True, False]
    assert model.batches


def test_architectures_are_forgotten_in_the_order_in_which_they_were_found() -> None:
    known = Architectures[int]()
    for number in range(architectures.MOST + 1):
        known.add(str(number), number)
    assert (known.find("0"), known.find("1"), known.find(str(architectures.MOST))) == (None, 1, architectures.MOST)


def test_versions_share_a_tokenizer_while_one_of_them_is_loaded(build: Build, tmp_path: Path) -> None:
    first, _ = load(tmp_path / "1", build(32))
    second, _ = load(tmp_path / "2", build(32), seed=1)
    name = "_reader" if isinstance(first, encoder.TextEncoder) else "_codec"
    assert getattr(second, name) is getattr(first, name)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    third, _ = load(tmp_path / "3", build(32), seed=2)
    assert getattr(third, name) is not getattr(first, name)
