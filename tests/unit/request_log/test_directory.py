"""A log whose directory belongs to somebody else. In a process of its own, because tests may run as root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

FORBIDDEN_DIRECTORY = """
import os, sys
from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.request_log.sampler import RequestLogs
if os.geteuid() == 0:
    os.setuid(65534)
try:
    RequestLogs(SystemClock()).configure({"m": LoggingSettings(log_collector_config={"filename_prefix": sys.argv[1]})})
except Exception as error:
    print(error.code.name, error)
"""


def test_a_directory_that_may_not_be_written_to_is_refused() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        script = [sys.executable, "-c", FORBIDDEN_DIRECTORY, f"{directory}/m"]
        run = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith("FAILED_PRECONDITION model m: ")
    assert run.stdout.endswith("but the server may not write there\n")
