"""Serves two versions, and moves the label `stable` from one to the other by a new config.

python main.py
"""

import tempfile
from pathlib import Path

import torch

import tfs_lite

CONFIG = """
model_config_list:
  config:
    - name: m
      base_path: {base}
      model_version_policy: {{all: {{}}}}
      version_labels: {{stable: {stable}, canary: 2}}
"""

with tempfile.TemporaryDirectory() as base:
    for scale in (1.0, 10.0):
        tfs_lite.save(torch.nn.Threshold(0.0, scale), base, example_inputs=(torch.ones(2, 1),))
    file = Path(base, "models.yaml")
    file.write_text(CONFIG.format(base=base, stable=1))
    with tfs_lite.Server(model_config_file=str(file), port=0, rest_api_port=0) as server:
        server.wait_ready()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client:
            print("stable is version", client.predict("m", {"input": [[-1.0]]}, label="stable").version)
            file.write_text(CONFIG.format(base=base, stable=2))
            print(server.read_again())
            print("stable is version", client.predict("m", {"input": [[-1.0]]}, label="stable").version)
