"""TorchServe: raw float32 bytes over HTTP, one worker process beside the Java server. Takes a scratch directory.

Makes an archive of ``torchserve_handler.py``, which finds the model by the environment, and becomes the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import common

VERSION = "1.0"
QUIET = """<Configuration><Appenders><Console name="c"><PatternLayout pattern="%m%n"/></Console></Appenders>
<Loggers><Root level="error"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""
"""No line for every request, which it writes otherwise."""


def config(store: Path) -> str:
    settings = {
        "marName": f"{common.NAME}.mar",
        "defaultVersion": True,
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": common.ROWS,
        "maxBatchDelay": max(1, round(common.WAIT * 1000)),
        "responseTimeout": 60,
    }
    lines = {
        "inference_address": f"http://127.0.0.1:{common.PORT}",
        "management_address": f"http://127.0.0.1:{common.other_port()}",
        "metrics_address": f"http://127.0.0.1:{common.other_port()}",
        "grpc_inference_port": common.other_port(),
        "grpc_management_port": common.other_port(),
        "disable_token_authorization": "true",
        "job_queue_size": 1024,
        "model_store": store,
        "load_models": f"{common.NAME}.mar",
        "models": json.dumps({common.NAME: {VERSION: settings}}),
    }
    return "\n".join(f"{name}={value}" for name, value in lines.items()) + "\n"


def main() -> None:
    scratch, here = Path(sys.argv[1]), Path(__file__).resolve().parent
    store = scratch / "store"
    store.mkdir()
    tools = Path(sys.executable).parent
    pack = [str(tools / "torch-model-archiver"), "--model-name", common.NAME, "--version", VERSION]
    subprocess.run([*pack, "--handler", str(here / "torchserve_handler.py"), "--export-path", str(store)], check=True)
    settings = scratch / "config.properties"
    settings.write_text(config(store))
    logs = scratch / "log4j2.xml"
    logs.write_text(QUIET)
    os.environ.update(PYTHONPATH=str(here), LOG_LOCATION=str(scratch), METRICS_LOCATION=str(scratch))
    os.chdir(scratch)
    start = [str(tools / "torchserve"), "--start", "--foreground", "--ncs", "--ts-config", str(settings)]
    start += ["--log-config", str(logs)]
    os.execv(start[0], start)


if __name__ == "__main__":
    main()
