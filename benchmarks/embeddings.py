"""Embeddings of 1,000 texts of mixed length: many callers of a server, next to the loop of sentence-transformers.

    python -m benchmarks.embeddings --rounds 3

The network is a BERT of the size of MiniLM (6 layers, 384 wide) with random weights; texts have 3 to 250 words, most of
them few. The loop has all texts at once: it sorts them by length and runs batches of 32. The callers of the server have
one text each (``--each`` for more) and wait for its answer. Both use as many threads of torch (``--threads``). If
sentence-transformers is installed its own ``encode`` is the loop, else the same algorithm on transformers. The two take
turns; a ratio above 1 means that the server does more texts per second. CPU seconds, the client's not counted, tell
more on a machine that others use too. Embeddings of both are compared.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from tests.support.language.tiny_encoders import SPECIAL, add_sentence_files
from tests.support.servers.process import ServerProcess

WORDS = 20_000
BATCH = 32
Embed = Callable[[list[str]], np.ndarray[Any, Any]]


def make_version(directory: Path) -> None:
    """What ``save_pretrained`` and sentence-transformers write."""
    torch.manual_seed(0)
    names = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = BertConfig(
        vocab_size=len(names),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(directory)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=made, model_max_length=256, **special).save_pretrained(directory)
    add_sentence_files(directory, "mean_tokens", max_seq_length=256)


def make_texts(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.0, 0.9, count), 3, 250).astype(int)
    return [" ".join(f"w{word}" for word in draw.integers(WORDS, size=length)) for length in lengths]


def loop(directory: Path) -> tuple[str, Embed]:
    """The loop's name, and the function."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return "its algorithm on transformers", _algorithm(directory)
    model = SentenceTransformer(str(directory), device="cpu")
    return "sentence-transformers", lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def _algorithm(directory: Path) -> Embed:
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> np.ndarray[Any, Any]:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        found: list[Any] = [None] * len(texts)
        for start in range(0, len(texts), BATCH):
            part = order[start : start + BATCH]
            sent = tokenizer([texts[index] for index in part], padding=True, truncation=True, return_tensors="pt")
            vectors, mask = model(**sent).last_hidden_state, sent["attention_mask"].unsqueeze(-1).float()
            mean = torch.nn.functional.normalize((vectors * mask).sum(1) / mask.sum(1), dim=-1)
            for index, row in zip(part, mean.numpy(), strict=True):
                found[index] = row
        return np.stack(found)

    return embed


def ask(port: int, texts: list[str], callers: int, each: int) -> np.ndarray[Any, Any]:
    """Every caller has a connection, and asks for the next ``each`` texts as soon as it has its answer."""
    parts = [(start, texts[start : start + each]) for start in range(0, len(texts), each)]
    found: list[Any] = [None] * len(texts)
    waiting = iter(parts)
    lock = threading.Lock()

    def call() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        while True:
            with lock:
                start, part = next(waiting, (0, []))
            if not part:
                return
            body = json.dumps({"model": "m", "input": part, "encoding_format": "base64"})
            connection.request("POST", "/openai/v1/embeddings", body, {"content-type": "application/json"})
            answer = connection.getresponse().read()
            for number, row in enumerate(json.loads(answer)["data"]):
                found[start + number] = np.frombuffer(base64.b64decode(row["embedding"]), "<f4")

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.stack(found)


def seconds(work: Callable[[], Any], cpu: Callable[[], float]) -> tuple[float, float]:
    """(wall, CPU)"""
    begun, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - begun, cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--each", type=int, default=1, help="texts of one request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, on both sides")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = make_texts(options.texts)
    with tempfile.TemporaryDirectory() as directory:
        version = Path(directory) / "m" / "1"
        version.mkdir(parents=True)
        make_version(version)
        name, embed = loop(version)
        flags = ["--model_name=m", f"--model_base_path={version.parent}"]
        flags.append(f"--tensorflow_intra_op_parallelism={options.threads}")
        with ServerProcess(*flags, env=dict(os.environ)) as server:
            server.wait_ready()
            port = server.http_port
            difference = np.abs(embed(texts) - ask(port, texts, options.callers, options.each)).max()
            print(f"largest difference of an embedding: {difference:.1e}")
            ratios = list[tuple[float, float]]()
            server_cpu = psutil.Process(server.pid)
            for number in range(options.rounds):
                of_loop, loop_cpu = seconds(lambda: embed(texts), time.process_time)
                of_server, cpu = seconds(
                    lambda: ask(port, texts, options.callers, options.each), lambda: sum(server_cpu.cpu_times()[:2])
                )
                ratios.append((of_loop / of_server, loop_cpu / cpu))
                print(
                    f"round {number + 1}: {name} {len(texts) / of_loop:.0f} texts/s, {loop_cpu:.2f} s of CPU; "
                    f"server {len(texts) / of_server:.0f} texts/s, {cpu:.2f} s of CPU"
                )
            wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
            print(f"median ratio {wall:.2f}, by CPU time {cpu:.2f}, with {options.callers} callers")


if __name__ == "__main__":
    main()
