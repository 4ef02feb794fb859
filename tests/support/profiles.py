"""The hypothesis profiles ``ci`` and ``soak``, and how tests that draw their cases follow them.

``ci`` tries few cases, the same in every run; ``soak`` tries many, new ones in each run. Tests say how many cases
``soak`` has; ``ci`` has a tenth of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SOAK = "soak"
EXAMPLES = 100


def register_profiles() -> None:
    """Registers both profiles and loads ``ci``; the option ``--hypothesis-profile`` loads another one later."""
    settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES // 5)
    settings.register_profile(SOAK, deadline=None, derandomize=False, max_examples=EXAMPLES)
    settings.load_profile("ci")


def is_soak() -> bool:
    return settings.get_current_profile_name() == SOAK


def scaled(count: int) -> int:
    """``count`` with the profile ``soak``, a tenth of it with ``ci``, and one at least."""
    return count if is_soak() else max(1, count // 10)


def examples(count: int) -> settings:
    """A decorator: so many cases with the profile ``soak``, a tenth of them with ``ci``."""
    return settings(max_examples=scaled(count), deadline=None)


class CountedMachine(RuleBasedStateMachine):
    """A state machine whose class counts its steps, over all its runs."""

    steps = 0

    def count_step(self) -> None:
        type(self).steps += 1


@dataclass(frozen=True)
class SeededRuns:
    """Runs a state machine in small batches; each batch is told by its seed.

    Batches are small because hypothesis, from the eleventh run on, mostly varies what it has had, and because a small
    batch is run again quickly. A batch that fails prints the command that runs it again, and its shortest failing run
    is kept in ``.hypothesis`` and tried first the next time.
    """

    machine: type[CountedMachine]
    command: str
    """The arguments for pytest that choose the test."""
    runs: int
    """In one batch."""
    steps: int
    """In one run, at most."""
    batches: tuple[int, int]
    """With the profiles ``ci`` and ``soak``."""
    min_steps: tuple[int, int]
    """That all batches together must have, with both profiles."""

    @cached_property
    def thorough(self) -> settings:
        return settings(
            max_examples=self.runs,
            stateful_step_count=self.steps,
            deadline=None,
            derandomize=False,
            print_blob=True,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
            suppress_health_check=list(HealthCheck),
        )

    @cached_property
    def quick(self) -> settings:
        """Without shrinking: for runs that are expected to fail."""
        return settings(self.thorough, phases=[Phase.generate], database=None, report_multiple_bugs=False)

    def check(self, wanted: str | None) -> int:
        """Runs the batch with the seed ``wanted``, or, if it is ``None``, as many batches as the profile has. Returns
        the number of steps that were demanded."""
        if wanted is not None:
            self.run(int(wanted), self.thorough)
            return 0
        self.machine.steps = 0
        for number in self._seeds():
            self.run(number, self.thorough)
        least = self.min_steps[is_soak()]
        assert self.machine.steps >= least
        return least

    def find_failure(self, numbers: Iterable[int]) -> None:
        """Runs the batches with these seeds until one fails."""
        for number in numbers:
            self.run(number, self.quick)

    def run(self, number: int, how: settings) -> None:
        try:
            run_state_machine_as_test(seed(number)(self.machine), settings=how)
        except BaseException:
            print(f"replay: python -m pytest {self.command} --hypothesis-seed={number}")
            raise

    def _seeds(self) -> Iterable[int]:
        if not is_soak():
            return range(self.batches[0])
        draw: Callable[[int], int] = random.SystemRandom().getrandbits
        return (draw(32) for _ in range(self.batches[1]))
