"""Lets the server put requests of many callers into one run of the model, as the model's config says.

python main.py
"""

import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tfs_lite

CONFIG = """
max_batch_size: 32
dynamic_batching:
  max_queue_delay_microseconds: 2000  # a run waits so long for more requests
"""

with tempfile.TemporaryDirectory() as base:
    tfs_lite.save(torch.nn.Linear(512, 512), base, example_inputs=(torch.randn(2, 512),))
    Path(base, "config.yaml").write_text(CONFIG)
    with tfs_lite.Server(model_name="wide", model_base_path=base, port=0, rest_api_port=0) as server:
        server.wait_ready()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client, ThreadPoolExecutor(32) as callers:
            row = torch.randn(1, 512).numpy()
            list(callers.map(lambda _: client.predict("wide", {"input": row}), range(640)))
        page = urllib.request.urlopen(f"http://127.0.0.1:{server.rest_api_port}/metrics").read().decode()
        runs = next(line for line in page.splitlines() if line.startswith("tfs_lite_batch_size_count"))
        print(f"640 requests took {float(runs.rpartition(' ')[2]):.0f} runs of the model")
