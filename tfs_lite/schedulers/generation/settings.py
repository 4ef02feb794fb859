"""How the texts of one language model share its steps. Where the numbers come from is other rooms' business."""

from __future__ import annotations

from dataclasses import dataclass

POLICIES = ("fifo", "longest_first", "shortest_first")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """A value. ValueError for numbers that make no sense together."""

    places: int
    """Texts that run at once."""
    length: int
    """Tokens of one text, prompt and output together."""
    rows: int
    """The most rows of one step; not less than places, so that every running text can go on in every step."""
    chunk: int
    """The most rows of one prompt in one step."""
    max_queue: int
    """Texts that wait, those aside that could start at once."""
    max_queued_tokens: int
    """Prompt tokens of those."""
    queue_timeout: float
    """Seconds that a text may wait for its start."""
    policy: str = "fifo"
    """Who of those that wait comes next: one of ``POLICIES``."""
    prefix_reuse: bool = True
    """Whether a text begins with the cache of another one that begins alike."""
    slowdown: float = 1.8
    """How many times as long as without prompts a step may take that reads prompts beside texts that decode."""

    def __post_init__(self) -> None:
        for name in ("places", "length", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.rows < self.places:
            raise ValueError(f"rows is {self.rows}, less than the {self.places} places")
        if self.max_queue < 0 or self.max_queued_tokens < 0 or not self.queue_timeout > 0:
            raise ValueError("max_queue and max_queued_tokens are at least 0, queue_timeout is more")
        if not self.slowdown > 1:
            raise ValueError(f"slowdown is {self.slowdown}, expected more than 1")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}, expected one of {', '.join(POLICIES)}")
