"""Failures run again on both versions: real models behind real schedulers and handles, in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.schedulers.ensembles import settings_of, step, tensor
from tests.support.servers.platforms import WIDTH, write_python
from tests.support.servers.process import wait_until
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.python.model import open_python
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.core.trial import Ending, TrialEnding
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.operations.guard.evidence import Pair, Ran, TrialEvidence
from tfs_lite.operations.guard.reruns import AT_ONCE, Reruns
from tfs_lite.protocols.runs import Run
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings
from tfs_lite.schedulers.ensemble.servable import EnsembleServable
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.servables import OwnClockServable

NEW, OLD = 8, 7
SOURCE = """
import pathlib
import time

import torch

PLACE = pathlib.Path({place!r})


class Model:
    def __init__(self, context):
        self.layer = torch.nn.Linear({width}, {width})

    @torch.inference_mode()
    def predict(self, inputs):
        with open(PLACE / "runs", "a") as file:
            file.write("{version}\\n")
        x = inputs["{input}"]
        y = self.layer(x)
        {body}
        return {{"y": y}}
"""
RAISES = "raise ValueError('it cannot take this')"
RAISES_BELOW_0 = "if bool((x < 0).any()): raise ValueError('it cannot take this')"
NAN = "y = y / 0 * 0"
HANGS = "while not (PLACE / 'open').exists(): time.sleep(0.005)"


class Told(TrialEvidence):
    """Remembers what it is told of pairs."""

    def __init__(self, id: ServableId, old: int, clock: VirtualClock, order: list[str]) -> None:
        super().__init__(id, old, clock.monotonic)
        self.pairs: list[tuple[Ran | None, Ran | None]] = []
        self.order = order

    def on_pair(self, pair: Pair, new: Ran | None, old: Ran | None) -> None:
        super().on_pair(pair, new, old)
        self.order.append(self.id.name)
        self.pairs.append((new, old))


class Trials:
    """Versions of models that serve, and the thread that runs failures again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.clock = VirtualClock()
        self.serving = ServingMap()
        self.reruns = Reruns(self.serving.lookup, self.clock, Random(1))
        self.order: list[str] = []
        """The models of the pairs that have run."""
        self._servables: list[Any] = []

    def serve(
        self, version: int, body: str = "", name: str = "m", input: str = "x", settings: BatchSettings = ALONE
    ) -> OwnClockServable:
        """A version whose model does ``body`` before it answers."""
        source = SOURCE.format(place=str(self.place), width=WIDTH, version=version, body=body or "pass", input=input)
        config = ModelSettings(
            max_batch_size=4,
            input=(ModelTensor(name=input, data_type=DataType.FLOAT, dims=(WIDTH,)),),
            output=(ModelTensor(name="y", data_type=DataType.FLOAT, dims=(WIDTH,)),),
        )
        files = read_version(str(write_python(self.place / name / str(version), source)))
        model = open_python(OpenRequest(ServableId(name, version), files, "cpu", True, config))
        servable = OwnClockServable([model], ServableId(name, version), settings)
        self._servables.append(servable)
        self.serving.add(ServableId(name, version), servable)
        return servable

    def ensemble(self) -> ServableId:
        """An ensemble whose one step is the model ``m``."""
        settings = settings_of(
            [tensor("IN", (-1, WIDTH))], [tensor("OUT", (-1, WIDTH))], [step("m", {"x": "IN"}, {"y": "OUT"})]
        )
        id = ServableId("e", 3)
        made = EnsembleServable(
            id,
            ModelSettings.model_validate(settings),
            lambda name, version: self.serving.lookup(ModelRef(name, version)),
        )
        self._servables.append(made)
        self.serving.add(id, made)
        return id

    def trial(self, new: str = "", old: str = "", name: str = "m") -> Told:
        """A trial of two versions, which is watched."""
        self.serve(NEW, new, name)
        self.serve(OLD, old, name)
        return self.watch(name)

    def watch(self, name: str = "m") -> Told:
        evidence = Told(ServableId(name, NEW), OLD, self.clock, self.order)
        self.reruns.watch(evidence)
        return evidence

    def fail(
        self, evidence: TrialEvidence, *values: float, times: int = 1, input: str = "x", asked: ServableId | None = None
    ) -> None:
        rows = [np.full((1, WIDTH), value, np.float32) for value in values or (1.0,)]
        runs = tuple(Run("serving_default", {input: row}) for row in rows)
        status = Status(StatusCode.INTERNAL, "it broke")
        for _ in range(times):
            evidence.on_end(TrialEnding(Ending.FAULT, status, shielded=True, runs=runs, asked=asked))

    def outcome(self, evidence: Told, number: int = 1) -> tuple[Ran | None, Ran | None]:
        """The outcome of one of the pairs of a trial, once it is there."""
        self.wait(lambda: len(evidence.pairs) >= number, f"{number} pairs have run")
        return evidence.pairs[number - 1]

    def votes_against(self, evidence: TrialEvidence) -> int:
        """The votes against the new version, once this span is over."""
        self.clock.advance(10.0)
        return evidence.judgement(self.clock.monotonic()).against

    def wait(self, ready: Callable[[], Any], what: str) -> None:
        wait_until(ready, what, 20.0, 0.002)

    @property
    def ran(self) -> list[int]:
        """The versions in the order in which their models were run."""
        path = self.place / "runs"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def all_released(self) -> bool:
        return not any(self.serving.users().values())

    def close(self) -> None:
        (self.place / "open").touch()
        self.reruns.close()
        self.wait(self.all_released, "every handle is released")
        for servable in self._servables:
            servable.close()


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    found = Trials(tmp_path)
    yield found
    found.close()


def thread_of_pairs() -> bool:
    return any(thread.name == "tfs-guard-runs" for thread in threading.enumerate())


def test_a_failure_of_the_new_version_alone_is_told_after_ten_seconds(trials):
    evidence = trials.trial(new=RAISES)
    trials.fail(evidence)
    trials.clock.advance(9.5)
    assert not trials.ran
    trials.clock.advance(0.5)
    new, old = trials.outcome(evidence)
    assert new is not None
    assert old is not None
    assert (new.failed, old.failed) == (True, False)
    assert (new.ended, old.ended, new.nonfinite, old.nonfinite) == (True, True, False, False)
    assert sorted(trials.ran) == [OLD, NEW]
    trials.wait(trials.all_released, "both versions are free")


def test_both_versions_get_the_inputs_of_the_failure(trials):
    evidence = trials.trial(new=RAISES_BELOW_0, old=RAISES_BELOW_0)
    trials.fail(evidence, -1.0)
    trials.fail(evidence, 1.0)
    trials.clock.advance(10.0)
    pairs = [trials.outcome(evidence, number) for number in (1, 2)]
    assert [tuple(side.failed for side in pair) for pair in pairs] == [(True, True), (False, False)]


def test_a_request_of_several_runs_fails_with_one_of_them(trials):
    evidence = trials.trial(new=RAISES_BELOW_0)
    trials.fail(evidence, 1.0, -1.0, 1.0)
    trials.clock.advance(10.0)
    new, old = trials.outcome(evidence)
    assert (new.failed, old.failed) == (True, False)
    assert sorted(trials.ran) == [OLD] * 3 + [NEW] * 3


def test_values_that_are_not_finite_are_told(trials):
    evidence = trials.trial(new=NAN)
    trials.fail(evidence)
    trials.clock.advance(10.0)
    new, old = trials.outcome(evidence)
    assert (new.nonfinite, new.failed, old.nonfinite) == (True, False, False)


def test_inputs_that_a_version_does_not_have_are_its_failure(trials):
    trials.serve(OLD)
    trials.serve(NEW, input="renamed")
    evidence = trials.watch()
    trials.fail(evidence)
    trials.clock.advance(10.0)
    new, old = trials.outcome(evidence)
    assert (new.failed, old.failed) == (True, False)
    assert trials.ran == [OLD]
    trials.wait(trials.all_released, "both versions are free")


def test_either_side_may_be_the_first(trials):
    evidence = trials.trial()
    for number in range(1, 13):
        trials.fail(evidence)
        trials.clock.advance(10.0)
        trials.outcome(evidence, number)
    first = trials.ran[::2]
    assert set(first) == {OLD, NEW}
    assert trials.ran[1::2] == [OLD + NEW - version for version in first]


def test_one_pair_of_a_trial_runs_at_a_time(trials):
    evidence = trials.trial(new=HANGS, old=HANGS)
    trials.fail(evidence, times=6)
    trials.clock.advance(10.0)
    trials.wait(lambda: trials.ran, "the first side of the first pair runs")
    trials.clock.advance(5.0)
    assert len(trials.ran) == 1
    (trials.place / "open").touch()
    trials.outcome(evidence)


def test_a_side_that_hangs_fails_once_the_other_has_answered_and_ten_seconds_are_over(trials):
    evidence = trials.trial(new=HANGS)
    trials.fail(evidence)
    trials.clock.advance(10.0)
    trials.wait(lambda: NEW in trials.ran, "the new version runs")
    trials.clock.advance(10.01)
    new, old = trials.outcome(evidence)
    assert (new.ended, old.ended) == (False, True)
    assert trials.votes_against(evidence) == 1
    trials.wait(lambda: trials.serving.users() == {ServableId("m", OLD): 0, ServableId("m", NEW): 1}, "one is free")
    (trials.place / "open").touch()
    trials.wait(trials.all_released, "the new version is free when its model has ended")


@pytest.mark.parametrize(("answered", "says_something"), [(False, True), (True, False)])
def test_a_long_wait_in_a_queue_fails_only_if_the_queue_stands_still(trials, answered, says_something):
    evidence = trials.trial(new=HANGS)
    handle = trials.serving.lookup(ModelRef("m", NEW))
    ended = threading.Event()
    inputs = {"x": np.zeros((1, WIDTH), np.float32)}
    handle.servable.submit(PredictCall("serving_default", inputs, (), None, lambda answer: ended.set()))
    trials.wait(lambda: NEW in trials.ran, "the only instance of the new version is taken")
    trials.fail(evidence)
    trials.clock.advance(10.0)
    trials.wait(lambda: handle.servable.pending, "the pair waits for the new version")
    if answered:
        evidence.on_end(TrialEnding(Ending.WELL))
    trials.clock.advance(10.01)
    new, old = trials.outcome(evidence)
    assert (new is not None and not new.ended, old.ended) == (says_something, True)
    (trials.place / "open").touch()
    assert ended.wait(20)
    handle.release()


def test_two_sides_that_hang_are_given_up_after_a_minute_and_say_nothing(trials):
    evidence = trials.trial(new=HANGS, old=HANGS)
    trials.fail(evidence)
    trials.clock.advance(10.0)
    trials.wait(lambda: trials.ran, "the first side runs")
    trials.clock.advance(10.01)
    trials.wait(lambda: len(trials.ran) == 2, "the second side runs")
    trials.clock.advance(60.0)
    new, old = trials.outcome(evidence)
    assert (new.ended, old.ended) == (False, False)
    assert trials.votes_against(evidence) == 0


def test_a_version_that_is_gone_gives_no_outcome_and_holds_nothing(trials):
    evidence = trials.trial(new=RAISES)
    trials.serving.withdraw(ServableId("m", OLD), lambda: None)
    trials.fail(evidence)
    trials.clock.advance(10.0)
    assert trials.outcome(evidence) == (None, None)
    assert trials.serving.users() == {ServableId("m", NEW): 0}
    assert not trials.ran


def test_a_request_of_an_ensemble_runs_again_with_each_version_of_the_step(trials):
    evidence, ensemble = trials.trial(new=RAISES), trials.ensemble()
    trials.fail(evidence, input="IN", asked=ensemble)
    trials.clock.advance(10.0)
    new, old = trials.outcome(evidence)
    assert (new.failed, old.failed) == (True, False)
    assert sorted(trials.ran) == [OLD, NEW]
    trials.wait(trials.all_released, "both versions and the ensemble are free")


def test_without_the_ensemble_or_the_version_of_its_step_there_is_no_outcome(trials):
    evidence, ensemble = trials.trial(new=RAISES), trials.ensemble()
    trials.fail(evidence, input="IN", asked=ServableId("e", 4))
    trials.clock.advance(10.0)
    assert trials.outcome(evidence) == (None, None)
    trials.serving.withdraw(ServableId("m", OLD), lambda: None)
    trials.fail(evidence, input="IN", asked=ensemble)
    trials.clock.advance(10.0)
    assert trials.outcome(evidence, 2) == (None, None)
    assert trials.all_released()


def hang(trials: Trials, count: int) -> None:
    """Lets so many trials have a pair that runs for a minute."""
    for number in range(count):
        trials.fail(trials.trial(new=HANGS, old=HANGS, name=f"hangs{number}"))
    trials.clock.advance(10.0)
    trials.wait(lambda: len(trials.ran) == count, "every one of them hangs")


def test_a_version_that_hangs_keeps_no_other_trial_waiting(trials):
    hang(trials, AT_ONCE - 1)
    evidence = trials.trial(new=RAISES)
    trials.fail(evidence)
    trials.clock.advance(10.0)
    new, old = trials.outcome(evidence)
    assert (new.failed, old.failed) == (True, False)


def test_trials_take_turns(trials):
    first, second = trials.trial(name="m"), trials.trial(name="n")
    hang(trials, AT_ONCE - 1)
    trials.fail(first, times=3)
    trials.fail(second)
    trials.clock.advance(10.0)
    trials.outcome(first, 3)
    trials.outcome(second)
    assert trials.order == ["m", "n", "m", "m"]


def test_a_trial_that_is_over_gives_up_its_pair_at_once(trials):
    evidence = trials.trial(new=HANGS, old=HANGS)
    trials.fail(evidence, times=2)
    trials.clock.advance(10.0)
    trials.wait(lambda: trials.ran, "the first side runs")
    trials.reruns.forget(evidence)
    assert trials.outcome(evidence) == (None, None)
    trials.clock.advance(100.0)
    assert len(trials.ran) == len(evidence.pairs) == 1


def test_no_thread_before_the_first_trial_and_none_after_the_end(trials):
    assert not thread_of_pairs()
    evidence = trials.trial(new=HANGS)
    assert thread_of_pairs()
    trials.fail(evidence)
    trials.clock.advance(10.0)
    trials.wait(lambda: NEW in trials.ran, "the new version runs")
    trials.reruns.close()
    assert not thread_of_pairs()
    assert trials.outcome(evidence) == (None, None)
    trials.watch()
    assert not thread_of_pairs()


def test_a_busy_version_gives_no_outcome(trials):
    trials.serve(OLD)
    trials.serve(NEW, HANGS, settings=BatchSettings(max_queued_calls=1))
    evidence = trials.watch()
    trials.fail(evidence, 1.0, 1.0, 1.0)
    trials.clock.advance(10.0)
    trials.wait(lambda: NEW in trials.ran, "the new version runs, and has refused the third run")
    (trials.place / "open").touch()
    new, old = trials.outcome(evidence)
    assert (new, old.failed) == (None, False)
