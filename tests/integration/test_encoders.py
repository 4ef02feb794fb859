"""Encoders as save_pretrained writes them, served: each kind answers what its network says, on every protocol."""

from __future__ import annotations

import base64
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.support.language.tiny_encoders import (
    LABELS,
    LENGTH,
    add_sentence_files,
    save_classifier,
    save_embedder,
    save_image_classifier,
    save_tagger,
    tokenizer,
)
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState

pytestmark = pytest.mark.slow
Image = pytest.importorskip("PIL.Image")
TEXTS = ["The cat sat on the mat", "", "good " * 60, "dog ran", "yes no and or not so very", "Sun"]


class Encoders:
    """The server, and the networks that it serves, by model."""

    def __init__(self, served: ServerFixture, networks: dict[str, Any]) -> None:
        self.served = served
        self.networks = networks
        self.http = httpx.Client(base_url=served.url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{served.url}/openai/v1", api_key="none", max_retries=0)

    def predict(self, model: str, signature: str = "", **inputs: Any) -> Any:
        return self.served.client.predict(model, inputs, signature=signature).outputs

    @torch.inference_mode()
    def alone(self, model: str, text: str) -> Any:
        """What transformers itself answers."""
        sent = tokenizer()(text, truncation=True, return_tensors="pt", return_token_type_ids=False)
        return self.networks[model](**sent)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoders]:
    root = tmp_path_factory.mktemp("encoders")
    networks = {
        "means": save_embedder(root / "means" / "1"),
        "sentences": save_embedder(root / "sentences" / "1", seed=1),
        "positions": save_embedder(root / "positions" / "1", kind="roberta"),
        "moods": save_classifier(root / "moods" / "1"),
        "topics": save_classifier(root / "topics" / "1", problem_type="multi_label_classification"),
        "grades": save_classifier(root / "grades" / "1", problem_type="regression", id2label={0: "grade"}),
        "names": save_tagger(root / "names" / "1"),
        "pictures": save_image_classifier(root / "pictures" / "1"),
        "numbers": save_embedder(root / "numbers" / "1"),
    }
    add_sentence_files(root / "sentences" / "1", max_seq_length=10)
    (root / "numbers" / "1" / "tokenizer.json").unlink()
    (root / "numbers" / "config.pbtxt").write_text('parameters { key: "inputs" value { string_value: "tokens" } }')
    with serving(root, model_repository=str(root), max_num_load_retries=0) as served:
        found = Encoders(served, networks)
        yield found
        found.http.close()
        found.openai.close()


def as_bytes(texts: list[str]) -> Any:
    found = np.empty(len(texts), object)
    found[:] = [text.encode() for text in texts]
    return found


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("model", ["means", "positions"])
def test_embedding_is_the_mean_of_the_networks_vectors_whatever_else_is_in_the_batch(
    encoders: Encoders, model: str
) -> None:
    together = encoders.predict(model, text=as_bytes(TEXTS))["embeddings"]
    for text, found in zip(TEXTS, together, strict=True):
        close(found, encoders.alone(model, text).last_hidden_state[0].mean(0))
        close(found, encoders.predict(model, text=as_bytes([text]))["embeddings"][0])


def test_files_of_sentence_transformers_decide_pooling_length_and_norm(encoders: Encoders) -> None:
    short = TEXTS[0]
    found = encoders.predict("sentences", text=as_bytes([short, "good " * 60]))
    wanted = torch.nn.functional.normalize(encoders.alone("sentences", short).last_hidden_state[:, 0], dim=-1)
    close(found["embeddings"][0], wanted[0])
    assert found["token_count"].tolist() == [8, 10]


def test_classes_have_scores_labels_and_logits(encoders: Encoders) -> None:
    found = encoders.predict("moods", text=as_bytes(TEXTS))
    for index, text in enumerate(TEXTS):
        logits = encoders.alone("moods", text).logits[0]
        close(found["logits"][index], logits)
        close(found["scores"][index], logits.softmax(-1))
        assert found["labels"][index] == LABELS[int(logits.argmax())].encode()


def test_classes_that_do_not_exclude_one_another_have_scores_of_their_own(encoders: Encoders) -> None:
    found = encoders.predict("topics", text=as_bytes(["cat"]))
    close(found["scores"][0], encoders.alone("topics", "cat").logits[0].sigmoid())


def test_a_regression_answers_regress_of_tensorflow(encoders: Encoders) -> None:
    body = {"signature_name": "regress", "examples": [{"text": "good cat"}]}
    answer = encoders.http.post("/v1/models/grades:regress", json=body)
    assert answer.status_code == 200, answer.text
    close(answer.json()["results"], [encoders.alone("grades", "good cat").logits[0, 0]])


def test_classify_of_tensorflow_names_every_class(encoders: Encoders) -> None:
    body = {"signature_name": "classify", "examples": [{"text": "good cat"}, {"text": "dog"}]}
    answer = encoders.http.post("/v1/models/moods:classify", json=body)
    assert answer.status_code == 200, answer.text
    (first, _) = answer.json()["results"]
    assert [label for label, _ in first] == list(LABELS)
    close([score for _, score in first], encoders.alone("moods", "good cat").logits[0].softmax(-1))


def test_v2_takes_texts_and_its_classification_has_the_labels(encoders: Encoders) -> None:
    body = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good cat"]}],
        "outputs": [{"name": "scores", "parameters": {"classification": 1}}],
    }
    answer = encoders.http.post("/v2/models/moods/infer", json=body)
    assert answer.status_code == 200, answer.text
    best = int(encoders.alone("moods", "good cat").logits[0].argmax())
    assert answer.json()["outputs"][0]["data"][0].split(":")[1:] == [str(best), LABELS[best]]


def test_tokens_are_classified_with_their_place_in_the_text(encoders: Encoders) -> None:
    texts = ["The cat sat", "", "a very good dog ran home"]
    found = encoders.predict("names", text=as_bytes(texts))
    assert found["labels"].shape == (3, 6)
    for index, text in enumerate(texts):
        logits = encoders.alone("names", text).logits[0, 1:-1]
        words = text.split()
        close(found["logits"][index, : len(words)], logits)
        shown = [text[first:last] for first, last in found["offsets"][index, : len(words)].tolist()]
        assert shown == words
        assert not found["scores"][index, len(words) :].any()


@pytest.mark.parametrize("model", ["means", "moods", "names"])
def test_tokens_of_a_client_give_what_its_text_gives(encoders: Encoders, model: str) -> None:
    texts = ["The cat sat on the mat", "dog"]
    sent = tokenizer()(texts, padding=True, return_tensors="np")
    by_tokens = encoders.predict(
        model, "tokens", input_ids=sent["input_ids"], attention_mask=sent["attention_mask"].astype(np.int64)
    )
    by_text = encoders.predict(model, text=as_bytes(texts))
    if model == "names":
        close(by_tokens["logits"][0, 1:-1], by_text["logits"][0])
        close(by_tokens["logits"][1, 1:2], by_text["logits"][1, :1])
    else:
        name = "embeddings" if model == "means" else "logits"
        close(by_tokens[name], by_text[name])


def test_tokens_can_be_the_default_of_a_version_without_a_tokenizer(encoders: Encoders) -> None:
    body = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [2, 6, 3]}]}
    answer = encoders.http.post("/v2/models/numbers/infer", json=body)
    assert answer.status_code == 200, answer.text
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    close(outputs["embeddings"], encoders.alone("means", "cat").last_hidden_state[0].mean(0))


TOKENS_REFUSED = {
    "too_long": (np.ones((1, LENGTH + 1), np.int64), None, "at most 40"),
    "not_in_the_vocabulary": (np.full((1, 2), 999, np.int64), None, "not among"),
    "negative": (np.full((1, 2), -1, np.int64), None, "not among"),
    "nothing_left": (np.ones((1, 2), np.int64), np.zeros((1, 2), np.int64), "every token of row 0"),
    "odd_mask": (np.ones((1, 2), np.int64), np.full((1, 2), 7, np.int64), "other values than 0 and 1"),
}


@pytest.mark.parametrize("case", TOKENS_REFUSED)
def test_tokens_that_the_network_cannot_take_are_refused(encoders: Encoders, case: str) -> None:
    ids, mask, words = TOKENS_REFUSED[case]
    with pytest.raises(Exception, match=words):
        encoders.predict("means", "tokens", input_ids=ids, **({} if mask is None else {"attention_mask": mask}))


def png(color: tuple[int, int, int], size: tuple[int, int] = (50, 30), form: str = "PNG") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, form)
    return data.getvalue()


def test_images_are_classified_as_pixels_and_as_files(encoders: Encoders) -> None:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    ready = ViTImageProcessorPil(size={"height": 16, "width": 16})(images=[Image.new("RGB", (50, 30), (200, 3, 3))])
    pixels = np.stack(ready["pixel_values"]).astype(np.float32)
    with torch.inference_mode():
        wanted = encoders.networks["pictures"](pixel_values=torch.from_numpy(pixels)).logits
    close(encoders.predict("pictures", pixel_values=pixels)["logits"], wanted)
    files = np.empty(1, object)
    files[:] = [png((200, 3, 3))]
    close(encoders.predict("pictures", "images", image=files)["logits"], wanted)
    body = {"signature_name": "classify", "examples": [{"image": {"b64": base64.b64encode(files[0]).decode()}}]}
    answer = encoders.http.post("/v1/models/pictures:classify", json=body)
    assert [label for label, _ in answer.json()["results"][0]] == list(LABELS), answer.text


def test_what_is_no_image_is_refused_with_its_number(encoders: Encoders) -> None:
    files = np.empty(2, object)
    files[:] = [png((1, 2, 3)), b"%PDF-1.7"]
    with pytest.raises(Exception, match=r"image\[1\]: no image of PNG"):
        encoders.predict("pictures", "images", image=files)


def test_the_stock_client_of_openai_embeds_texts_and_tokens(encoders: Encoders) -> None:
    wanted = [encoders.alone("means", text).last_hidden_state[0].mean(0) for text in TEXTS]
    for encoding in ("float", "base64"):
        found = encoders.openai.embeddings.create(model="means", input=TEXTS, encoding_format=encoding)  # type: ignore[arg-type]
        rows = [each.embedding for each in found.data]
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]  # type: ignore[arg-type]
        close(rows, np.stack(wanted))
        assert [each.index for each in found.data] == list(range(len(TEXTS)))
    plain = encoders.openai.embeddings.create(model="means", input=TEXTS[0])
    close(plain.data[0].embedding, wanted[0])
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens, plain.model) == (8, 8, "means")
    ids = tokenizer()(TEXTS)["input_ids"]
    by_tokens = encoders.openai.embeddings.create(model="means", input=[row[:LENGTH] for row in ids if len(row) < 20])
    close(by_tokens.data[0].embedding, wanted[0])
    assert by_tokens.usage.prompt_tokens == sum(len(row) for row in ids if len(row) < 20)
    one = encoders.openai.embeddings.create(model="means", input=ids[0], dimensions=32)
    close(one.data[0].embedding, wanted[0])


def test_two_thousand_texts_are_one_request(encoders: Encoders) -> None:
    texts = [TEXTS[index % len(TEXTS)] for index in range(2048)]
    found = encoders.openai.embeddings.create(model="sentences", input=texts)
    assert len(found.data) == 2048
    close(found.data[6].embedding, found.data[0].embedding)


EMBEDDINGS_REFUSED: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "other_dimensions": ({"dimensions": 16}, 400, "dimensions", "have 32"),
    "no_input": ({"input": []}, 400, "input", "none empty"),
    "number": ({"input": 5}, 400, "input", "expected a string"),
    "mixed": ({"input": ["a", 5]}, 400, "input", "neither"),
    "too_many": ({"input": ["a"] * 2049}, 400, "input", "at most 2048"),
    "no_tokens": ({"input": [[]]}, 400, "input", "no tokens"),
    "too_many_tokens": ({"input": [[5] * (LENGTH + 1)]}, 400, "input", "41 tokens"),
    "token_out_of_range": ({"input": [[5, 4000]]}, 400, None, "input_ids"),
    "other_encoding": ({"encoding_format": "hex"}, 400, "encoding_format", "float"),
    "unknown_field": ({"dimension": 32}, 400, "dimension", 'did you mean "dimensions"'),
    "unknown_model": ({"model": "nothing"}, 404, "model", "does not exist"),
    "classifier": ({"model": "moods"}, 400, "model", "makes no embeddings"),
    "texts_for_tokens": ({"model": "numbers"}, 400, "input", "takes tokens, not texts"),
}


@pytest.mark.parametrize("case", EMBEDDINGS_REFUSED)
def test_embeddings_are_refused_in_openais_words(encoders: Encoders, case: str) -> None:
    fields, status, param, words = EMBEDDINGS_REFUSED[case]
    answer = encoders.http.post("/openai/v1/embeddings", json={"model": "means", "input": "cat", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error"), answer.text
    assert words in error["message"]


def test_a_full_queue_is_429_for_embeddings_and_says_when_to_come_again(tmp_path: Path) -> None:
    save_embedder(tmp_path / "means" / "1")
    with serving(tmp_path, model_repository=str(tmp_path), max_queued_requests=1) as served:
        sent = {"model": "means", "input": ["cat"] * 2048}  # is queued as several calls, more than may wait
        answer = httpx.post(f"{served.url}/openai/v1/embeddings", json=sent, timeout=60)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert "the most allowed; try again later" in answer.json()["error"]["message"]


def test_models_of_embeddings_are_listed(encoders: Encoders) -> None:
    listed = {model.id for model in encoders.openai.models.list()}
    assert listed == {"means", "sentences", "positions", "numbers"}
    assert encoders.openai.models.retrieve("means").id == "means"


def test_requests_of_many_callers_share_batches_and_keep_their_answers(encoders: Encoders) -> None:
    wanted = {text: encoders.alone("means", text).last_hidden_state[0].mean(0).numpy() for text in TEXTS}
    found: list[tuple[str, Any]] = []

    def ask(first: int) -> None:
        with httpx.Client(base_url=encoders.served.url, timeout=60) as client:
            for index in range(20):
                text = TEXTS[(first + index) % len(TEXTS)]
                answer = client.post("/openai/v1/embeddings", json={"model": "means", "input": text})
                found.append((text, answer.json()["data"][0]["embedding"]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    for text, row in found:
        close(row, wanted[text])


def write(directory: Path, name: str, **fields: Any) -> None:
    old = json.loads((directory / name).read_text()) if (directory / name).exists() else {}
    (directory / name).write_text(json.dumps({**old, **fields}))


def pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def not_a_number(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "classifier.bias": np.full(3, np.nan, np.float32)}, directory / "model.safetensors")


BAD: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "pickles": (pickled, "FAILED_PRECONDITION", "safe_serialization=True"),
    "not_finite": (not_a_number, "DATA_LOSS", "classifier.bias"),
    "no_tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "FAILED_PRECONDITION", "tokenizer.save_pretrained"),
    "code": (lambda d: write(d, "config.json", auto_map={"AutoModel": "evil.Model"}), "PERMISSION_DENIED", "auto_map"),
    "code_of_the_tokenizer": (
        lambda d: write(d, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
        "PERMISSION_DENIED",
        "auto_map",
    ),
    "unknown_architecture": (
        lambda d: write(d, "config.json", architectures=["BrtForSequenceClassification"]),
        "FAILED_PRECONDITION",
        'did you mean "BertForSequenceClassification"?',
    ),
    "labels_with_a_gap": (lambda d: write(d, "config.json", id2label={"0": "a", "2": "b"}), "DATA_LOSS", "id2label"),
    "other_number_of_labels": (
        lambda d: write(d, "config.json", id2label={"0": "a", "1": "b"}),
        "FAILED_PRECONDITION",
        "classifier",
    ),
    "endless_layers": (lambda d: write(d, "config.json", num_hidden_layers=10**9), "FAILED_PRECONDITION", "calls for"),
    "unknown_parameter": (
        lambda d: (d / "config.pbtxt").write_text('parameters { key: "poling" value { string_value: "cls" } }'),
        "INVALID_ARGUMENT",
        'did you mean "pooling"?',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_directory_is_refused_with_a_remedy_and_the_old_version_answers_on(
    encoders: Encoders, tmp_path: Path, case: str
) -> None:
    edit, code, words = BAD[case]
    bad = tmp_path / "2"
    shutil.copytree(encoders.served.root / "moods" / "1", bad)
    edit(bad)
    model, served = f"bad_{case}", encoders.served
    shutil.copytree(served.root / "moods" / "1", served.root / model / "1")
    served.wait_states({1: VersionState.AVAILABLE}, model)
    bad.rename(served.root / model / "2")
    wait_until(lambda: 2 in served.status(model) and served.status(model)[2].state is VersionState.END, "it is refused")
    status = served.status(model)[2]
    assert status.status.code.name == code, status
    assert words in status.status.message
    assert encoders.predict(model, text=as_bytes(["cat"]))["scores"].shape == (1, 3)
    shutil.rmtree(served.root / model)


def test_new_version_takes_over_under_load_without_a_failed_request(encoders: Encoders, tmp_path: Path) -> None:
    served = encoders.served
    shutil.copytree(served.root / "means" / "1", served.root / "swapped" / "1")
    served.wait_states({1: VersionState.AVAILABLE}, "swapped")
    save_embedder(tmp_path / "2", seed=5)
    versions, failures, stop = set[str](), list[str](), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=served.url, timeout=60) as client:
            while not stop.is_set():
                answer = client.post("/openai/v1/embeddings", json={"model": "swapped", "input": TEXTS})
                if answer.status_code != 200:
                    failures.append(answer.text)
                versions.add(answer.headers.get("x-model-version", ""))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: "1" in versions, "the old version answers")
        shutil.copytree(tmp_path / "2", served.root / "swapped" / ".2")
        (served.root / "swapped" / ".2").rename(served.root / "swapped" / "2")
        served.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE}, "swapped")
        wait_until(lambda: "2" in versions, "the new version answers")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert versions == {"1", "2"}
