"""Seeds of language models: requests over OpenAI's API, V2 and TensorFlow's messages, and files of versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save
from seeds_messages import wire
from targets_generation import packed

from tfs_lite.core.servable import ModelRef
from tfs_lite.protocols.messages import PredictRequest
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.testing.language.tiny_version import BYTES_OF_TEXT, CONFIG, SHAPES, TEMPLATE

SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 7,
    "min_tokens": 1,
    "ignore_eos": True,
}


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def openai_completion() -> dict[str, bytes]:
    def asked(prompt: Any = "hi", model: str = "lm", **members: Any) -> bytes:
        return _json(model=model, prompt=prompt, **{"max_tokens": 3, **members})

    return {
        "text": asked(),
        "texts": asked(["a", "b"], n=2, best_of=2),
        "tokens": asked([1, 2, 3], return_token_ids=True),
        "several-tokens": asked([[1], [2, 3]]),
        "sampling": asked(**SAMPLING),
        "logprobs": asked(logprobs=2, echo=True, max_tokens=0),
        "bias": asked(logit_bias={"65": 100, "66": -100}),
        "stop": asked(stop=["a", "b"], stop_token_ids=[7], include_stop_str_in_output=True),
        "stream": asked(stream=True, stream_options={"include_usage": True}),
        "stream-logprobs": asked(stream=True, logprobs=1, skip_special_tokens=False),
        "ids": asked([5], "ids", return_token_ids=True, stream=True),
        "label": asked(model="lm:best"),
        "version": asked(model="lm@1", user="me", service_tier="auto"),
        "other": asked(model="simple"),
        "long": asked("x" * 70),
        "nothing": b"{}",
        "nan": b'{"model": "lm", "prompt": "a", "temperature": NaN}',
    }


def openai_chat() -> dict[str, bytes]:
    def said(*messages: Mapping[str, Any], model: str = "lm", **members: Any) -> bytes:
        return _json(model=model, messages=messages, **{"max_tokens": 3, **members})

    user = {"role": "user", "content": "hi"}
    return {
        "one": said(user),
        "several": said({"role": "developer", "content": "s"}, user, {"role": "assistant", "content": None}, user),
        "parts": said({"role": "user", "name": "me", "content": [{"type": "text", "text": "a"}]}),
        "image": said({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "logprobs": said(user, logprobs=True, top_logprobs=2, n=2),
        "stream": said(user, stream=True, stream_options={"include_usage": True}, max_completion_tokens=3),
        "tools": said(user, tools=[], tool_choice="none", response_format={"type": "text"}),
        "bare": said(user, model="bare"),
        "ids": said(user, model="ids", return_token_ids=True),
        "sampling": said(user, **SAMPLING),
        "open-end": said(user, max_tokens=None),
        "nothing": said(),
    }


def generate_body() -> dict[str, bytes]:
    return {
        "text": b"l" + _json(text_input="hi", max_tokens=3),
        "parameters": b"l" + _json(id="1", text_input="hi", parameters={**SAMPLING, "max_tokens": 4}),
        "texts": b"l" + _json(text_input=["a", "b"], max_tokens=[1, 2], temperature=[0, 1]),
        "stop": b"l" + _json(text_input="hi", stop=["a", "b"], stop_token_ids=[1]),
        "echo": b"l" + _json(text_input="hi", echo=True, stream=True),
        "tokens": b"i" + _json(input_ids=[1, 2], max_tokens=3),
        "rows": b"i" + _json(input_ids=[[1, 2], [3, 4]], max_tokens=3),
        "no-text": b"i" + _json(text_input="hi"),
        "nothing": b"l{}",
        "unknown": b"l" + _json(text_input="a", sed=1),
    }


def generation_tensors() -> dict[str, bytes]:
    types = {"top_k": np.int32, "seed": np.int64, "min_tokens": np.int32, "ignore_eos": np.bool_}

    def request(model: str = "lm", outputs: tuple[str, ...] = (), **arrays: Any) -> bytes:
        inputs = {name: encode(np.asarray(array)) for name, array in arrays.items()}
        return wire(PredictRequest(model_spec=model_spec(ModelRef(model)), inputs=inputs, output_filter=outputs))

    def texts(*items: bytes) -> Any:
        found = np.empty(len(items), object)
        found[:] = items
        return found

    few = np.int32(3)
    sampling = {name: np.asarray(value, types.get(name, np.float32)) for name, value in SAMPLING.items()}
    return {
        "text": request(text_input=texts(b"hi"), max_tokens=few),
        "texts": request(text_input=texts(b"a", b"b"), max_tokens=np.array([1, 2], np.int32)),
        "tokens": request("ids", input_ids=np.array([1, 2]), max_tokens=few),
        "rows": request(input_ids=np.array([[1, 2], [3, 4]]), max_tokens=few),
        "sampling": request(text_input=texts(b"hi"), max_tokens=few, **sampling),
        "stop": request(text_input=texts(b"hi"), stop=texts(b"a", b"\xff"), stop_token_ids=np.array([7])),
        "outputs": request(outputs=("token_ids",), text_input=texts(b"hi"), max_tokens=few),
        "empty": request(text_input=texts()),
        "other": request("simple", INPUT0=np.zeros((1, 4), np.int32)),
        "nothing": b"",
    }


def lm_files() -> dict[str, bytes]:
    small = {"hidden_size": 4, "intermediate_size": 4, "head_dim": 2, "vocab_size": 4, "num_key_value_heads": 1}
    whole = {**CONFIG, **small}
    arrays = {name: np.zeros([min(size, 4) for size in shape], np.float32) for name, shape in SHAPES.items()}

    def version(config: Mapping[str, Any] = whole, tokenizer: Any = BYTES_OF_TEXT, weights: Any = None) -> bytes:
        stored = save(arrays) if weights is None else weights
        return packed([json.dumps(dict(config)).encode(), json.dumps(tokenizer).encode(), stored])

    roles = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    gpt2 = {"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "vocab_size": 4, "n_positions": 8}
    text = {"model_type": "gemma3", "text_config": {**small, "model_type": "gemma3_text"}}
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
    return {
        "llama": version(),
        "gpt2": version(gpt2),
        "qwen3": version({**whole, "model_type": "qwen3", "architectures": None, "layer_types": ["full_attention"]}),
        "text-part": version(text),
        "rope": version({**whole, "rope_parameters": rope, "eos_token_id": [1, 2]}),
        "bert": version({"model_type": "bert"}),
        "tokenizer": version(tokenizer={**BYTES_OF_TEXT, **roles, "additional_special_tokens": ["<a>"]}),
        "template": version(tokenizer={**BYTES_OF_TEXT, "chat_template": TEMPLATE}),
        "code": version({**whole, "auto_map": {"AutoConfig": "x.Y"}}),
        "quantised": version({**whole, "quantization_config": {"bits": 4}}),
        "no-vocabulary": version(tokenizer={}),
        "half": version(weights=save({"a": np.zeros((2, 2), np.float16), "b": np.zeros((), np.int64)})),
        "no-tensors": version(weights=save({})),
        "no-weights": version(weights=b""),
        "config-only": packed([b"{}"]),
    }
