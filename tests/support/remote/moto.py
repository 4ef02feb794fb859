"""An S3 server of the test process on a thread, with buckets in memory; it answers as GCS too, to readers."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEY_ID = "AKIACANARY0000000001"
SECRET = "canary-secret-of-the-tests"
REGION = "us-east-1"
ACCOUNT = "123456789012"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}


def forget_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes what leads to real clouds out of the environment, so that no test asks one, or this machine's identity."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_", "IDENTITY_", "MSI_")):
            monkeypatch.delenv(name)


class Moto:
    """The server. Every test makes a bucket of its own: their names are never used again."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        self.port: int = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock, self._made = threading.Lock(), 0

    def stop(self) -> None:
        self._server.stop()

    def make_bucket(self, name: str = "") -> Bucket:
        with self._lock:
            self._made += 1
            # Without a hyphen, because clients of GCS escape it, which moto does not read.
            bucket = Bucket(self, name or f"bucket{self._made}")
        bucket.backend.create_bucket(bucket.name, REGION)
        return bucket

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The variables that a server process needs for S3 here, or behind a proxy on another port."""
        return {
            **CREDENTIALS,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def google_environment(self, port: int | None = None) -> dict[str, str]:
        """The same for GCS, reading only."""
        key = {
            "gcs_base_url": f"http://127.0.0.1:{port or self.port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {
            "GOOGLE_SKIP_SIGNATURE": "true",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key),
            "GOOGLE_ALLOW_HTTP": "true",
        }


class Bucket:
    """A bucket, changed as somebody else would, without requests."""

    def __init__(self, moto: Moto, name: str) -> None:
        from moto.s3.models import s3_backends

        self.moto, self.name, self.url = moto, name, f"s3://{name}"
        self.backend: Any = s3_backends[ACCOUNT]["aws"]

    def set(self, path: str, data: bytes) -> None:
        self.backend.put_object(self.name, path, data)

    def delete(self, path: str) -> None:
        self.backend.delete_object(self.name, path)

    def read(self, path: str) -> bytes:
        data: bytes = self.backend.get_object(self.name, path).value
        return data

    def paths(self) -> list[str]:
        """The keys, sorted."""
        return sorted(self.backend.buckets[self.name].keys)

    def set_tree(self, prefix: str, directory: Path) -> None:
        """Copies the files of a directory to below a prefix."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.set(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())

    def make_public(self) -> None:
        """Lets readers without a signature read and list it, as those of GCS are here."""
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": ["s3:*"],
            "Resource": [f"arn:aws:s3:::{self.name}/*"],
        }
        self.backend.put_bucket_policy(self.name, json.dumps({"Statement": [statement]}).encode())


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    server = Moto()
    yield server
    server.stop()


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket; the environment leads to the server."""
    forget_clouds(monkeypatch)
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    return moto.make_bucket()
