"""The decision which processes of models get a sandbox: ``--worker_sandbox``, the platform, trust and the model's
config decide.

                     platform "auto"      "asked" (python)        "required" (may run code of strangers)
    auto             where it can be      if the config asks      always, unless the version is trusted
    require          always               always                  always
    off              never                never                   never: the version has to be trusted

A config asks by ``parameters { key: "worker_sandbox" value { string_value: "true" } }``, and then gets one or an error.
What "always" needs is that files, programs and network are out of reach; older kernels cannot promise it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from tfs_lite.adapters.opening import OpenRequest, Platform
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition
from tfs_lite.workers.landlock import Kernel, probe_kernel
from tfs_lite.workers.sandbox import Sandbox, linked_files, plan, status_of

PARAMETER = "worker_sandbox"
ESSENTIAL = frozenset({"files", "programs", "network"})
logger = logging.getLogger(__name__)


def asks_for_sandbox(parameters: Mapping[str, str]) -> bool:
    """Whether the config of a model says that its processes have to be in a sandbox."""
    return parameters.get(PARAMETER, "").lower() == "true"


class Sandboxes:
    """Decides for one server. Any thread."""

    def __init__(self, mode: str, probe: Callable[[], Kernel] = probe_kernel) -> None:
        """``mode``: auto, require or off."""
        self._mode = mode
        self._probe = probe
        self._said = False

    def choose(self, platform: Platform, request: OpenRequest) -> Sandbox | None:
        """The sandbox for a process with this version; None: it gets none. PERMISSION_DENIED if the version may only
        run in one or be trusted, FAILED_PRECONDITION if the server or the config ask for one that cannot be."""
        strange, asked = _is_strange(platform, request), asks_for_sandbox(request.settings.parameters)
        if self._mode == "off":
            if strange or asked:
                raise _refusal(platform, strange, asked, "this server runs with --worker_sandbox=off")
            return None
        needed = strange or asked or self._mode == "require"
        if not needed and platform.sandbox == "asked":
            return None
        kernel = self._probe()
        status = status_of(kernel)
        if needed and not ESSENTIAL.issubset(status.holds):
            missing = ", ".join(name for name in status.lacks if name in ESSENTIAL)
            raise _refusal(platform, strange, asked, f"this system cannot keep it from: {missing}")
        self._say(status.holds, status.lacks)
        if not status.holds:
            return None
        directory = request.files.directory
        links = () if strange else linked_files(directory)
        return plan(directory, links=links, gpu=request.on_gpu, kernel=kernel)

    def check_replicas(self, platform: Platform, request: OpenRequest) -> None:
        """Replicas on other machines are in no sandbox: raises as :meth:`choose` where one is needed."""
        strange, asked = _is_strange(platform, request), asks_for_sandbox(request.settings.parameters)
        if strange or asked or self._mode == "require":
            raise _refusal(platform, strange, asked, 'a replica (worker "ray") has none')

    def _say(self, holds: tuple[str, ...], lacks: tuple[str, ...]) -> None:
        """Logs once what the kernel does not offer."""
        if lacks and not self._said:
            self._said = True
            logger.warning(
                "processes of models %s; not out of their reach: %s (see docs/sandbox.md)",
                "are in a sandbox" if holds else "are in no sandbox, which this system does not offer",
                ", ".join(lacks),
            )


def _is_strange(platform: Platform, request: OpenRequest) -> bool:
    return platform.sandbox == "required" and not request.trusted


def _refusal(platform: Platform, strange: bool, asked: bool, why: str) -> ServingError:
    if strange:
        message = f"platform {platform.name} runs what the version brings, so it needs a sandbox, and {why}"
        advice = "; if you trust where it comes from, add its path to --trusted_model_base_paths"
        return ServingError(StatusCode.PERMISSION_DENIED, message + advice, Reason.NEEDS_TRUST)
    wish = "parameters: worker_sandbox is true" if asked else "this server runs with --worker_sandbox=require"
    return failed_precondition(f"{wish}, and {why}")
