"""Lets the model go on with a text, and shows what it writes as it comes.

    python examples/tiny_lm/client.py ["The "] [--by openai|http|v2] [--address localhost:8501]

``openai`` is OpenAI's own client, ``http`` sends the same request with the standard library, and ``v2`` asks through
the other protocol, KServe's, with Triton's ``generate_stream``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any

MODEL = "tiny_lm"
TIMEOUT = 60.0
Pieces = Iterator[tuple[str, str]]
"""More of the text, and the version that wrote it. Failures are RuntimeError in the server's words, or OSError."""


def by_openai(address: str, prompt: str, tokens: int, seed: int = 0) -> Pieces:
    import openai

    try:
        with (
            openai.OpenAI(base_url=f"http://{address}/openai/v1", api_key="none", timeout=TIMEOUT) as client,
            client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=tokens,
                temperature=0.7,
                seed=seed,
                stream=True,
                extra_body={"ignore_eos": True},  # what OpenAI has no word for
            ) as stream,
        ):
            for chunk in stream:
                yield chunk.choices[0].text, _version(chunk.system_fingerprint)
    except openai.APIError as error:
        raise RuntimeError(error.message) from error


def by_http(address: str, prompt: str, tokens: int, seed: int = 0) -> Pieces:
    asked = {"model": MODEL, "prompt": prompt, "stream": True, **_wanted(tokens, seed)}
    for event in _events(address, "/openai/v1/completions", asked):
        yield event["choices"][0]["text"], _version(event["system_fingerprint"])


def by_v2(address: str, prompt: str, tokens: int, seed: int = 0) -> Pieces:
    for event in _events(
        address, f"/v2/models/{MODEL}/generate_stream", {"text_input": prompt, **_wanted(tokens, seed)}
    ):
        yield event["text_output"], event["model_version"]


WAYS: Mapping[str, Callable[..., Pieces]] = {"openai": by_openai, "http": by_http, "v2": by_v2}
USUAL = "openai" if find_spec("openai") else "http"


def _wanted(tokens: int, seed: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "temperature": 0.7, "seed": seed, "ignore_eos": True}


def _version(fingerprint: str | None) -> str:
    """``tiny_lm:1`` is version 1."""
    return (fingerprint or "").rpartition(":")[2]


def _events(address: str, path: str, asked: object) -> Iterator[dict[str, Any]]:
    """Server-sent events, as they come. Nobody listens any more once the iterator is closed: then the server stops
    writing that text."""
    with closing(http.client.HTTPConnection(address, timeout=TIMEOUT)) as connection:
        connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(reply.read().decode())
        for line in reply:
            data = line.removeprefix(b"data: ").strip()
            if not line.startswith(b"data: ") or data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            yield event


def show(prompt: str, pieces: Pieces) -> tuple[str, set[str]]:
    """Prints the text as it comes, each line behind a bar. The text without the prompt, and who wrote it."""
    text, versions = "", set[str]()
    print("  | " + _shown(prompt), end="", flush=True)
    for piece, version in pieces:
        print(_shown(piece), end="", flush=True)
        text += piece
        versions.add(version)
    print(flush=True)
    return text, versions


def _shown(text: str) -> str:
    """Nothing that would move a terminal's cursor: a model may write any byte."""
    return "".join("\n  | " if letter == "\n" else letter if letter.isprintable() else "?" for letter in text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="The ")
    parser.add_argument("--by", choices=WAYS, default=USUAL)
    parser.add_argument("--address", default="localhost:8501", help="the server's HTTP port")
    parser.add_argument("--tokens", type=int, default=500, help="bytes that the model writes")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same text")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without all letters
    try:
        pieces = WAYS[arguments.by](arguments.address, arguments.prompt, arguments.tokens, arguments.seed)
        _, versions = show(arguments.prompt, pieces)
    except (OSError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    print(f"written by version {'+'.join(sorted(versions))}")


if __name__ == "__main__":
    main()
