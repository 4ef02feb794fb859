"""How the texts of one language model share its steps."""

from __future__ import annotations

from dataclasses import dataclass

POLICIES = ("fifo", "longest_first", "shortest_first")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of one engine. Raises ValueError for numbers that contradict one another."""

    slots: int
    """The most texts that run at once."""
    length: int
    """The most tokens of one text, prompt and output together."""
    rows: int
    """The most rows of one step; at least ``slots``, so that every running text gets a row in every step."""
    chunk: int
    """The most rows of one prompt in one step."""
    max_queue: int
    """The most texts that wait, not counting those for which a slot is free."""
    max_queued_tokens: int
    """The most prompt tokens of the texts that wait."""
    queue_timeout: float
    """Seconds that a text may wait for its start."""
    policy: str = "fifo"
    """Which waiting text comes next: one of ``POLICIES``."""
    prefix_reuse: bool = True
    """Whether a text reuses the cache of another text with the same first tokens."""
    slowdown: float = 1.8
    """How many times as long a step of decoding texts may take when it reads prompts as well."""

    def __post_init__(self) -> None:
        for name in ("slots", "length", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.rows < self.slots:
            raise ValueError(f"rows is {self.rows}, less than the {self.slots} slots")
        if self.max_queue < 0 or self.max_queued_tokens < 0 or not self.queue_timeout > 0:
            raise ValueError("max_queue and max_queued_tokens are at least 0, queue_timeout is more")
        if not self.slowdown > 1:
            raise ValueError(f"slowdown is {self.slowdown}, expected more than 1")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}, expected one of {', '.join(POLICIES)}")
