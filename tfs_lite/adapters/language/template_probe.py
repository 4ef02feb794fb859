"""Checks that a chat template ends: it is rendered once in a child process, with bounds on time and memory.

    check_end(template) -> python -m tfs_lite.adapters.language.template_probe < template

A template is a program. Its sandbox keeps it from files and from Python, and bounds neither loops nor the size of
texts: one such template could stop the server when a version is loaded."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

from tfs_lite.core.status import failed_precondition

CPU_SECONDS = 5
WALL_SECONDS = 60.0
"""A machine may be busy."""
MEMORY_BYTES = 1 << 30
MAX_RENDERED = 1 << 20
"""Characters that a template may make of the probe."""
PROBE = {"role": "user", "content": "hello"}
_TOO_MUCH = 3
"""The exit status of a probe that took too much memory, or made too long a text."""


def check_end(template: str) -> None:
    """Raises FAILED_PRECONDITION if the template does not end within the bounds for one message. A template that raises
    has ended."""
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ended = subprocess.run(
            command, input=template.encode("utf-8", "replace"), env=environment, timeout=WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise failed_precondition("the chat template of the tokenizer does not come to an end") from None
    if ended.returncode == _TOO_MUCH:
        raise failed_precondition("the chat template of the tokenizer takes too much memory, or makes too long a text")
    if ended.returncode < 0:
        raise failed_precondition("the chat template of the tokenizer does not come to an end")


def _environment() -> Any:
    """The environment of transformers, as far as it matters to whether a template ends."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag ``{% generation %}``, which marks what an assistant says, and changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: form
    return made


def _raise(message: str) -> None:
    raise ValueError(message)


def main() -> int:
    """The child process."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        text = _environment().from_string(template).render(messages=[PROBE], add_generation_prompt=True)
    except MemoryError:
        return _TOO_MUCH
    except Exception:
        return 0
    return _TOO_MUCH if len(text) > MAX_RENDERED else 0


if __name__ == "__main__":
    sys.exit(main())
