from __future__ import annotations

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.server.grpc.admission import HEALTH, REFLECTION, AdmissionControl

PATH = "/test.Service/echo"
UNCOUNTED = (f"{HEALTH}Check", f"{HEALTH}Watch", f"{REFLECTION}v1.ServerReflection/ServerReflectionInfo")


def test_after_close_health_and_reflection_are_admitted_only() -> None:
    admission = AdmissionControl()
    assert admission.acquire(PATH)
    admission.close()
    refusal(admission.acquire, PATH, code=StatusCode.UNAVAILABLE)
    assert not any(map(admission.acquire, UNCOUNTED))


def test_one_call_more_than_the_bound_is_refused_until_one_is_released() -> None:
    admission = AdmissionControl(2)
    assert admission.acquire(PATH)
    assert not any(map(admission.acquire, UNCOUNTED)), "they are admitted and not counted"
    assert admission.acquire(PATH)
    for _ in range(2):
        message = refusal(admission.acquire, PATH, code=StatusCode.RESOURCE_EXHAUSTED)
        assert "2 calls inside, the most it takes at a time (--grpc_max_threads)" in message
    assert not any(map(admission.acquire, UNCOUNTED)), "they are admitted beyond the bound"
    admission.release()
    assert admission.acquire(PATH)


def test_without_a_bound_every_call_is_admitted() -> None:
    admission = AdmissionControl()
    assert all(admission.acquire(PATH) for _ in range(1000))
