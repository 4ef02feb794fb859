"""Writes the seeds of the corpora: python tests/fuzz/seeds.py

Seeds are inputs that mean something, good and bad, from which a fuzzer starts. Files beside them that are called
``found-*`` are inputs that broke something once; this leaves them alone.
"""

from __future__ import annotations

from pathlib import Path

from seeds_files import config_pbtxt, config_yaml, tfrecord, version_file, warmup
from seeds_generation import generate_body, generation_tensors, lm_files, openai_chat, openai_completion
from seeds_messages import examples, model_info, multi_inference, predict, reload, tensor
from seeds_rest import http, json_body, msgpack_tree, rest_gzip, rest_json, rest_msgpack
from seeds_v2 import v2_config, v2_control, v2_generate, v2_http, v2_infer, v2_load, v2_rest, v2_stream

CORPUS = Path(__file__).parent / "corpus"

SEEDS = (
    *(predict, examples, multi_inference, model_info, reload, tensor),
    *(rest_json, rest_msgpack, rest_gzip, http, json_body, msgpack_tree),
    *(tfrecord, warmup, version_file, config_pbtxt, config_yaml),
    *(v2_infer, v2_stream, v2_rest, v2_generate, v2_http, v2_load, v2_control, v2_config),
    *(openai_completion, openai_chat, generate_body, generation_tensors, lm_files),
)


def main() -> None:
    for make in SEEDS:
        directory = CORPUS / make.__name__
        directory.mkdir(parents=True, exist_ok=True)
        seeds = make()
        for path in directory.iterdir():
            if not path.name.startswith("found-") and path.name not in seeds:
                path.unlink()
        for name, data in seeds.items():
            (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
