"""Looks at a running server from outside: what each version's state is, and whether answers are true.

:class:`Probe` asks and waits for states. :class:`Traffic` keeps several clients calling one model without pause and
records every answer, so that a test can say afterwards that none was lost, late or from the wrong version. Both expect
the tagged models of ``testing.models``, whose answers are ``x`` plus the version's number.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np

from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.client import Client, Prediction
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import ServingError, StatusCode

T = TypeVar("T")

ROW = np.array([[1.0, 2.0, 3.0]], np.float32)


def expect_true(answer: Prediction, x: Any = ROW) -> int:
    """The version that answered, after checking that the numbers are that version's."""
    np.testing.assert_array_equal(answer.outputs["y"], x + np.float32(answer.version))
    return answer.version


def is_tagged(inputs: Mapping[str, Any], answer: Prediction) -> bool:
    """Whether a tagged model of the version that the answer names has given it."""
    return np.array_equal(answer.outputs["y"], inputs["x"] + np.float32(answer.version))


class Probe:
    """One client of one server. Any thread may call. Close it, or use it in a ``with`` block."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.client = Client(server.target)
        self._raw = grpc.insecure_channel(server.target, options=[("grpc.max_send_message_length", -1)])

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        self._raw.close()

    def ask(self, model: str, x: Any = ROW, **options: Any) -> int:
        """Predicts and returns the version that answered; the numbers must be that version's."""
        return expect_true(self.client.predict(model, {"x": x}, **options), x)

    def raw(self, path: str, body: bytes, timeout: float = 60.0) -> bytes:
        """Sends bytes to a gRPC method as they are and returns the bytes of the answer; raises grpc.RpcError."""
        call = self._raw.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        answer: bytes = call(body, timeout=timeout)
        return answer

    def versions(self, model: str) -> dict[int, VersionStatus]:
        """The status of every version of the model, the highest first; empty if there is none."""
        try:
            return {status.version: status for status in self.client.status(model)}
        except ServingError as error:
            if error.code is StatusCode.NOT_FOUND:
                return {}
            raise

    def states(self, model: str) -> dict[int, str]:
        return {version: status.state.name for version, status in self.versions(model).items()}

    def wait_available(self, model: str, version: int, timeout: float = 60.0) -> None:
        """Returns when that version is available; AssertionError as soon as it has ended with an error."""

        def available() -> bool:
            status = self.versions(model).get(version)
            if status is not None and status.state is VersionState.END and not status.status.ok:
                raise AssertionError(f"version {version} of {model} failed: {status.status}\n{self._server.log()}")
            return status is not None and status.state is VersionState.AVAILABLE

        self._wait(available, f"version {version} of {model} is available", timeout, model)

    def wait_states(self, model: str, expected: Mapping[int, str], timeout: float = 60.0) -> None:
        """Returns when each of these versions is in the state named; others may be in any."""
        self._wait(
            lambda: expected.items() <= self.states(model).items(), f"{model} is {dict(expected)}", timeout, model
        )

    def wait_failed(self, model: str, version: int, timeout: float = 60.0) -> VersionStatus:
        """Returns the status of the version when it has ended with an error."""

        def failed() -> VersionStatus | None:
            status = self.versions(model).get(version)
            over = status is not None and status.state is VersionState.END and not status.status.ok
            return status if over else None

        return self._wait(failed, f"version {version} of {model} has failed", timeout, model)

    def wait_reason(self, model: str, version: int, *words: str, timeout: float = 60.0) -> str:
        """Returns why the version waits, when it is in START for a reason that has one of the words (any, if none)."""

        def waiting() -> str:
            status = self.versions(model).get(version)
            if status is None or status.state is not VersionState.START:
                return ""
            reason = status.status.message
            return reason if not words or any(word in reason.lower() for word in words) else ""

        return self._wait(
            waiting, f"version {version} of {model} waits because of {words or 'anything'}", timeout, model
        )

    def _wait(self, predicate: Callable[[], T | None], what: str, timeout: float, model: str) -> T:
        try:
            return wait_until(predicate, what, timeout)
        except TimeoutError as error:
            seen = list(self.versions(model).values())
            raise AssertionError(f"{error}\nnow: {seen}\n{self._server.log()}") from None


class Traffic:
    """Threads that call one model without pause while the ``with`` block runs; each has a connection of its own.

    Afterwards ``answers`` counts answers by version, ``failures`` lists what was refused or broke, and ``wrong``
    lists answers that are not those of the version they name. ``backwards`` counts answers of a version older than one
    that had answered before the request began. Entering waits until every thread has had an answer.
    Models other than the tagged ones come with ``inputs``, those of each thread, and ``is_true``, which says of an
    answer to them whether it is that of its version.
    """

    def __init__(
        self,
        target: str,
        model: str,
        threads: int = 8,
        stop_at_failure: bool = False,
        inputs: Callable[[int], Mapping[str, Any]] = lambda index: {"x": ROW * (index + 1)},
        is_true: Callable[[Mapping[str, Any], Prediction], bool] = is_tagged,
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[ServingError] = []
        self.wrong: list[str] = []
        self.backwards = 0
        self._newest = 0
        self._target = target
        self._model = model
        self._stop_at_failure = stop_at_failure
        self._inputs = inputs
        self._is_true = is_true
        self._lock = threading.Lock()  # guards the five above
        self._stop = threading.Event()
        self._begun = [threading.Event() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._call_on, args=(index,), name=f"traffic-{index}") for index in range(threads)
        ]

    @property
    def total(self) -> int:
        """Answers so far."""
        with self._lock:
            return self.answers.total()

    def stop(self) -> None:
        """Ends the calling and waits for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} got no answer"

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        for begun in self._begun:
            assert begun.wait(60), "a client got no first answer"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _call_on(self, index: int) -> None:
        inputs = self._inputs(index)
        with Client(self._target) as client:
            while not self._stop.is_set():
                answered = self._call_once(client, inputs)
                self._begun[index].set()
                if not answered and self._stop_at_failure:
                    return

    def _call_once(self, client: Client, inputs: Mapping[str, Any]) -> bool:
        newest = self._newest
        try:
            answer = client.predict(self._model, inputs)
        except ServingError as error:
            with self._lock:
                self.failures.append(error)
            return False
        true = self._is_true(inputs, answer)
        with self._lock:
            self.answers[answer.version] += 1
            self.backwards += answer.version < newest
            self._newest = max(self._newest, answer.version)
            if not true:
                self.wrong.append(f"version {answer.version} answered {answer.outputs} to {inputs}")
        return True
