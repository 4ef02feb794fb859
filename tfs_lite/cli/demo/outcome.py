"""The promises of the demo, checked against what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfs_lite.cli.demo.traffic import Tally
from tfs_lite.core.servable import VersionState, VersionStatus

FIRST, BETTER, BROKEN = 1, 2, 3


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The server's last state, the clients' counts, and how the server ended. ``stuck`` names a step that did not reach
    its end, or is empty."""

    versions: Mapping[int, VersionStatus]
    tally: Tally
    server_exit_code: int | None
    seconds: float
    stuck: str = ""

    def problems(self) -> list[str]:
        """The broken promises."""
        checks = (
            (not self.stuck, self.stuck),
            (self.tally.failures == 0, f"{self.tally.failures} requests failed, the first: {self.tally.first_failure}"),
            (self._answered(FIRST) and self._answered(BETTER), "a version that was served answered no request"),
            (not self._answered(BROKEN), f"version {BROKEN} is broken and yet answered requests"),
            (self._accuracy(BETTER) > self._accuracy(FIRST), "the accuracy that clients see did not rise at the swap"),
            (self._is(FIRST, VersionState.END), f"version {FIRST} was not unloaded"),
            (self._is(BETTER, VersionState.AVAILABLE), f"version {BETTER} is not available at the end"),
            (self._has_failed(BROKEN), f"version {BROKEN} did not end with an error"),
            (self.server_exit_code == 0, f"the server ended with exit code {self.server_exit_code}, expected 0"),
        )
        return [problem for kept, problem in checks if not kept]

    def as_json(self) -> dict[str, Any]:
        problems = self.problems()
        return {
            "ok": not problems,
            "problems": problems,
            "seconds": round(self.seconds, 1),
            "requests": self.tally.requests,
            "failed_requests": self.tally.failures,
            "server_exit_code": self.server_exit_code,
            "versions": [self._version_json(number, status) for number, status in sorted(self.versions.items())],
        }

    def _version_json(self, number: int, status: VersionStatus) -> dict[str, Any]:
        counted = self.tally.version(number)
        return {
            "version": number,
            "state": status.state.name,
            "error": "" if status.status.ok else str(status.status),
            "requests": counted.requests,
            "accuracy": round(counted.accuracy, 4) if counted.requests else None,
        }

    def _answered(self, number: int) -> bool:
        return self.tally.version(number).requests > 0

    def _accuracy(self, number: int) -> float:
        return self.tally.version(number).accuracy

    def _is(self, number: int, state: VersionState) -> bool:
        status = self.versions.get(number)
        return status is not None and status.state is state

    def _has_failed(self, number: int) -> bool:
        return self._is(number, VersionState.END) and not self.versions[number].status.ok
