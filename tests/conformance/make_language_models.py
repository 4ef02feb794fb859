"""Writes the language models of the conformance tests, and the responses of transformers itself to a few prompts.

    python make_language_models.py DIR

``DIR/models`` is a model repository of tiny random Llamas whose tokens are bytes. ``writer`` writes printable ASCII,
has a chat template and two versions, ``bytes`` writes any bytes, ``narrow`` has one place for a long text, which it
never ends, ``numbers`` has no tokenizer. ``DIR/expected.json`` has greedy answers of ``writer``'s version 2 to
:data:`PROMPTS`, each token with its log probability. Run in the server's environment, which has torch and transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from tfs_lite.core.publish import commit, staging_directory

BOS, EOS, VOCABULARY = 256, 257, 264
PROMPTS = ("Once upon a time", "grüße, 世界", "", "<|user|>How are you?\n<|assistant|>")
OUTPUT = 24
"""Tokens of each expected answer."""

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}\n{% endfor %}<|assistant|>"
)
TOKENIZER: dict[str, Any] = {
    "tokenizer_class": "ByteTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_bos_token": True,
    "additional_special_tokens": ["<|system|>", "<|user|>", "<|assistant|>"],
}
CHATTY = {**TOKENIZER, "chat_template": TEMPLATE}
ENDLESS = {**TOKENIZER, "eos_token": None}


def main(root: Path) -> None:
    torch.set_num_threads(1)
    disable_progress_bar()
    models = root / "models"
    write(models / "writer", 1, llama(1, ascii_only=True), CHATTY)
    newest = llama(2, ascii_only=True)
    write(models / "writer", 2, newest, CHATTY)
    (models / "writer" / "config.pbtxt").write_text("version_policy { all {} }\n")
    write(models / "bytes", 1, llama(3), TOKENIZER)
    write(models / "narrow", 1, llama(4, length=16384, ends=False), ENDLESS)
    (models / "narrow" / "config.pbtxt").write_text(
        'max_batch_size: 1\nparameters { key: "max_queue" value { string_value: "1" } }\n'
        'parameters { key: "max_model_len" value { string_value: "16384" } }\n'
    )
    write(models / "numbers", 1, llama(5), None)
    (root / "expected.json").write_text(json.dumps({prompt: greedy(newest, prompt) for prompt in PROMPTS}))


def llama(seed: int, ascii_only: bool = False, length: int = 512, ends: bool = True) -> LlamaForCausalLM:
    """Weights are drawn so widely that it does not repeat itself. ``ascii_only``: other tokens get a logit far below.
    ``ends``: there is a token that ends a text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=length,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS if ends else None,
    )
    module = LlamaForCausalLM(config).eval()
    if ascii_only:
        printable = torch.zeros(VOCABULARY, dtype=torch.bool)
        printable[32:127] = True
        module.lm_head.weight.data[~printable] = 0
        module.lm_head.weight.data *= 2
    return module


def write(base: Path, version: int, module: LlamaForCausalLM, tokenizer: dict[str, Any] | None) -> None:
    base.mkdir(parents=True, exist_ok=True)
    with staging_directory(str(base), version) as staging:
        module.save_pretrained(staging)
        if tokenizer is not None:
            (Path(staging) / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        commit(staging, str(base), version)


@torch.inference_mode()
def greedy(module: LlamaForCausalLM, text: str) -> dict[str, Any]:
    """By the library's own loop, one text alone."""
    prompt = tokens_of(text)
    ids = torch.tensor([prompt])
    found = module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=OUTPUT,
        do_sample=False,
        pad_token_id=EOS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = found.sequences[0, len(prompt) :].tolist()
    logprobs = [float(row[0].log_softmax(-1)[token]) for row, token in zip(found.logits, tokens, strict=True)]
    return {"prompt": prompt, "tokens": tokens, "text": bytes(tokens).decode("ascii"), "logprobs": logprobs}


def tokens_of(text: str) -> list[int]:
    """Bytes, and the special tokens that a chat has."""
    found = [BOS]
    while text:
        names = {name: EOS + 1 + index for index, name in enumerate(TOKENIZER["additional_special_tokens"])}
        special = next((name for name in names if text.startswith(name)), None)
        found.extend([names[special]] if special else text[0].encode())
        text = text[len(special or text[0]) :]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
