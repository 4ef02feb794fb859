"""Azure's own emulator of blobs, as a process, where it is installed: ``make test-azure``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.remote.moto import forget_clouds

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's, the same everywhere."""
START_SECONDS = 60
LOOK_SECONDS = 0.05
API = "2021-08-06"


def find_azurite() -> str | None:
    """The program: in the folder ``azurite`` of the virtual environment, or in the path."""
    place = Path(sys.prefix, "azurite", "node_modules", ".bin", "azurite-blob")
    return str(place) if place.exists() else shutil.which("azurite-blob")


class Azurite:
    """The process. Every test makes a container of its own."""

    def __init__(self, program: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._made = 0
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(LOOK_SECONDS)
        self.stop()
        raise RuntimeError("azurite does not start")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The variables that lead here, or to a proxy on another port."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def make_container(self) -> Container:
        self._made += 1
        container = Container(self.port, f"container-{self._made}")
        container.request("PUT", "", query={"restype": "container"})
        return container


class Container:
    """A container, changed as somebody else would."""

    def __init__(self, port: int, name: str) -> None:
        self.port, self.name, self.url = port, name, f"az://{name}"

    def set(self, path: str, data: bytes) -> None:
        self.request("PUT", quote(path), data, headers={"x-ms-blob-type": "BlockBlob"})

    def request(
        self,
        method: str,
        path: str,
        data: bytes = b"",
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """A request with the signature of a shared key."""
        target = f"/{ACCOUNT}/{self.name}" + (f"/{path}" if path else "")
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API, **(headers or {})}
        names = "".join(f"{name}:{value}\n" for name, value in sorted(sent.items()))
        rest = "".join(f"\n{name}:{value}" for name, value in sorted((query or {}).items()))
        size, kind = (str(len(data)), "application/octet-stream") if data else ("", "")
        text = f"{method}\n\n\n{size}\n\n{kind}\n\n\n\n\n\n\n{names}/{ACCOUNT}{target}{rest}"
        digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
        sent["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        if data:
            sent["Content-Type"] = kind
        asked = "&".join(f"{name}={value}" for name, value in (query or {}).items())
        url = f"http://127.0.0.1:{self.port}{target}" + (f"?{asked}" if asked else "")
        urllib.request.urlopen(urllib.request.Request(url, data or None, sent, method=method)).close()


@pytest.fixture(scope="session")
def azurite_process() -> Iterator[Azurite]:
    program = find_azurite()
    if program is None:
        pytest.skip("azurite is not installed: make test-azure")
    server = Azurite(program)
    yield server
    server.stop()


@pytest.fixture
def azurite(azurite_process: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    """The emulator; the environment leads to it."""
    forget_clouds(monkeypatch)
    for name, value in azurite_process.environment().items():
        monkeypatch.setenv(name, value)
    return azurite_process
