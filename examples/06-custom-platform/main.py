"""Serves an artefact of a kind of your own: install the platform, then run this.

pip install .
python main.py
"""

import tempfile
from pathlib import Path

import tfs_lite

with tempfile.TemporaryDirectory() as base:
    Path(base, "1").mkdir()
    Path(base, "1", "words.txt").write_text("to be or not to be")
    with tfs_lite.Server(model_name="words", model_base_path=base, port=0, rest_api_port=0) as server:
        server.wait_ready()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client:
            print(client.predict("words", {"word": [b"to", b"not", b"fish"]}).outputs["count"].tolist())
