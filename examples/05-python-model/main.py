"""Serves a class of your own. Its code runs in the server, so its path has to be trusted.

python main.py
"""

import shutil
import tempfile
from pathlib import Path

import tfs_lite

HERE = Path(__file__).parent

with tempfile.TemporaryDirectory() as base:
    Path(base, "1").mkdir()
    for name in ("model.py", "config.yaml"):
        shutil.copy(HERE / name, Path(base, "1", name))
    with tfs_lite.Server(
        model_name="colours", model_base_path=base, trusted_model_base_paths=(base,), port=0, rest_api_port=0
    ) as server:
        server.wait_ready()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client:
            print(client.predict("colours", {"index": [2, 0, 1]}).outputs["name"].tolist())
