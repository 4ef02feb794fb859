"""What holds for the file-system source whatever happens on the disk: a state machine in virtual time."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.profiles import examples
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ServableData
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource, ServableToMonitor, SourceConfig
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, VersionPolicy
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

QUIET = 1.0


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/version", b"0" * 20)
    return buffer.getvalue()


WHOLE = _archive()
versions = st.integers(1, 4)
names = st.sampled_from(["a", "b"])
policies: st.SearchStrategy[VersionPolicy] = st.just(AllPolicy()) | st.builds(LatestPolicy, st.integers(1, 2))


class SourceMachine(RuleBasedStateMachine):
    """Writes, repairs and removes versions of two models, moves the time and polls."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.disk = MemoryDisk(self.clock)
        self.files: dict[tuple[str, int], tuple[bytes, float]] = {}  # what is on the disk: contents, time of the change
        self.present: set[tuple[str, int]] = set()  # version directories
        self.unreadable: set[str] = set()
        self.offered: dict[str, dict[int, str]] = {"a": {}, "b": {}}
        self.called: set[str] = set()
        self.keeping: set[str] = set()  # whose report says why the last list goes on counting

    @initialize(a=policies, b=policies)
    def start(self, a: VersionPolicy, b: VersionPolicy) -> None:
        for name in ("a", "b"):
            self.disk.mkdir(f"/{name}")
        self.policies = {"a": a, "b": b}
        monitored = tuple(ServableToMonitor(name, f"/{name}", policy) for name, policy in self.policies.items())
        self.source = FileSystemStoragePathSource(
            SourceConfig(monitored, poll_interval=None, quiet_period=QUIET),
            self.disk,
            self.clock,
            self.on_report,
            watch=False,
            executor=PoolExecutor("digests", 0),
        )
        self.source.set_aspired_versions_callback(self.aspire)

    def teardown(self) -> None:
        if hasattr(self, "source"):
            self.source.close()

    @rule(name=names, version=versions, cut=st.just(0) | st.integers(0, len(WHOLE)))
    def write(self, name: str, version: int, cut: int) -> None:
        data = WHOLE[: len(WHOLE) - cut]
        self.disk.write(f"/{name}/{version}/model.pt2", data)
        self.files[name, version] = (data, self.clock.time())
        self.present.add((name, version))

    @rule(name=names, version=versions)
    def make_directory(self, name: str, version: int) -> None:
        self.disk.mkdir(f"/{name}/{version}")
        self.present.add((name, version))

    @rule(name=names, version=versions)
    def remove(self, name: str, version: int) -> None:
        if (name, version) in self.present:
            self.disk.remove(f"/{name}/{version}")
            self.present.discard((name, version))
            self.files.pop((name, version), None)

    @rule(name=names)
    def break_or_mend_the_base_path(self, name: str) -> None:
        if name in self.unreadable:
            self.disk.allow(f"/{name}")
            self.unreadable.discard(name)
        else:
            self.disk.deny(f"/{name}")
            self.unreadable.add(name)

    @rule(seconds=st.sampled_from([0.1, 0.5, QUIET, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def poll(self) -> None:
        self.called = set()
        self.source.poll()
        assert self.called == {"a", "b"} - self.unreadable - self.keeping
        for name in self.called:
            assert self.offered[name] or name not in {of for of, _ in self.present}, "an order, while one is to come"

    @rule()
    def settle(self) -> None:
        """After enough quiet, everything wanted that is whole is offered."""
        self.source.poll()
        self.clock.advance(QUIET + 0.01)
        self.source.poll()
        for name in {"a", "b"} - self.unreadable:
            whole = [version for (of, version), (data, _) in self.files.items() if of == name and data == WHOLE]
            if isinstance(self.policies[name], AllPolicy):
                assert set(whole) <= self.offered[name].keys()
            elif whole:
                assert max(self.offered[name]) >= max(whole)

    def on_report(self, report: SourceReport) -> None:
        assert report.problem.ok or not report.waiting
        assert all(report.waiting.values())
        self.keeping = self.keeping | {report.name} if report.keeps else self.keeping - {report.name}

    def aspire(self, name: str, items: Sequence[ServableData[str]]) -> None:
        self.called.add(name)
        before = self.offered[name]
        self.offered[name] = {item.id.version: item.revision for item in items}
        for version, revision in self.offered[name].items():
            assert (name, version) in self.present
            if revision != before.get(version, revision):
                self.check_complete(name, version)
        if isinstance(self.policies[name], AllPolicy):
            gone = before.keys() - self.offered[name].keys()
            assert not {(name, version) for version in gone} & self.present
            for version in self.offered[name].keys() - before.keys():
                self.check_complete(name, version)

    def check_complete(self, name: str, version: int) -> None:
        data, changed = self.files[name, version]
        assert data == WHOLE
        assert self.clock.time() - changed >= QUIET - 1e-6


SourceMachine.TestCase.settings = settings(examples(100), stateful_step_count=40)
TestSourceMachine = SourceMachine.TestCase
