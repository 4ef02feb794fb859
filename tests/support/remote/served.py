"""A whole server in the test's own process whose models are in a bucket, behind a proxy that breaks.

with serving_bucket(moto, archives, root) as place:
    place.publish("m", 1)
    place.serve("m")
    assert place.served.version("m") == 1
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.remote.moto import Bucket, Moto
from tests.support.remote.proxy import FaultProxy
from tests.support.servers.in_process import TIMEOUT, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState

REMOTE = {"remote_poll_wait_seconds": 1.0, "remote_quiet_seconds": 0.0}


class Publisher:
    """Puts versions into a bucket as a publisher would: the manifest last. ``root`` is a directory for its files."""

    def __init__(self, bucket: Bucket, archives: TaggedArchives, root: Path) -> None:
        self.bucket, self.root = bucket, root
        self._archives = archives

    def publish(self, model: str, version: int, **more: bytes) -> Path:
        """A tagged model, and ``more`` files by name. Returns the directory of the copy that was uploaded."""
        source = self.root / "sources" / model / str(version)
        source.mkdir(parents=True)
        self._archives.write(version, source / "model.pt2")
        for name, data in more.items():
            (source / name).write_bytes(data)
        return self.upload(model, version, source)

    def publish_code(self, model: str, version: int, source: str) -> Path:
        """A python model."""
        return self.upload(model, version, write_python_version(self.root / "sources" / model, version, source))

    def upload(self, model: str, version: int, source: Path) -> Path:
        base = self.root / "published" / model
        shutil.rmtree(base / str(version), ignore_errors=True)
        directory = Path(publish(str(source), str(base), version).path)
        files = sorted((path for path in directory.rglob("*") if path.is_file()), key=_manifest_last)
        for path in files:
            self.bucket.set(f"{model}/{version}/{path.relative_to(directory).as_posix()}", path.read_bytes())
        return directory

    def remove(self, model: str, version: int | None = None) -> None:
        """Removes a version, or all that is below the model's prefix."""
        prefix = f"{model}/" if version is None else f"{model}/{version}/"
        for path in self.bucket.paths():
            if path.startswith(prefix):
                self.bucket.delete(path)


def _manifest_last(path: Path) -> tuple[bool, str]:
    return path.name == "tfs_lite.manifest.json", str(path)


class ServedBucket(Publisher):
    """``served`` is the server; all its requests to the bucket go through ``proxy``."""

    served: ServerFixture

    def __init__(self, bucket: Bucket, proxy: FaultProxy, archives: TaggedArchives, root: Path) -> None:
        super().__init__(bucket, archives, root)
        self.proxy = proxy
        self._entries: dict[str, str] = {}

    def serve(self, model: str, path: str = "", rest: str = "", wait: bool = True) -> None:
        """Adds the model to the config, or moves it to another base path. ``wait``: until a version of it answers, if
        it is new."""
        self._entries[model] = entry(model, rest, path or f"{self.bucket.url}/{model}")
        config = parse_model_server_config(config_text(self.root, *self._entries.values()), "reload")
        if wait:
            self.served.client.reload(config)
        else:
            self.served.server.core.reloader.follow(config)

    def wait_version(self, model: str, version: int) -> None:
        """Returns when this version answers."""
        wait_until(lambda: self.served.states(model).get(version) is VersionState.AVAILABLE, f"{model}/{version}", 60)
        assert self.served.version(model) == version

    def wait_problem(self, model: str, words: str) -> str:
        """What is said of the model when its base path cannot be read."""
        wait_until(lambda: words in self.served.problem(model), words, TIMEOUT)
        return self.served.problem(model)

    def wait_reason(self, model: str, version: int, words: str) -> str:
        """Why a version waits."""

        def reason() -> str:
            status = self.served.status(model).get(version)
            text = status.status.message if status is not None else ""
            return text if words in text else ""

        return wait_until(reason, f"{model}/{version}: {words}", 60)


@contextlib.contextmanager
def environment(moto: Moto, port: int | None = None) -> Iterator[None]:
    """While the block runs, this process has the variables for the storage, or for a proxy of it on this port."""
    with mock.patch.dict(os.environ, moto.environment(port)):
        yield


@contextlib.contextmanager
def serving_bucket(
    moto: Moto, archives: TaggedArchives, root: Path, *entries: str, ready: bool = True, **options: Any
) -> Iterator[ServedBucket]:
    """A server with a bucket of its own and no models but ``entries``."""
    file = root / "models.config"
    file.write_text(config_text(root, *entries))
    with FaultProxy(moto.port) as proxy, environment(moto, proxy.port):
        place = ServedBucket(moto.make_bucket(), proxy, archives, root)
        fields = {**REMOTE, "model_cache_dir": str(root / "cache"), "model_config_file": str(file), **options}
        with serving(root, ready=ready, **fields) as place.served:
            yield place
            proxy.heal()
