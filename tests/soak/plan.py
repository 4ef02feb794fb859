"""Which steps are done, in rounds: a function of the seed alone, so that any step can be done again.

The steps of a round are for different models and are done at the same time, beside at most one change of the config
file and one restart of the server. What a round leaves broken is mended in one of the next ones, most of the time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from artefacts import BAD, EXPORTED, ONNX, PYTHON
from world import (
    ALL,
    CONFIG_FILE,
    HOME,
    REPOSITORY,
    Content,
    Model,
    Place,
    Policy,
    Quality,
    Step,
    good_versions,
    phases,
)

PUSHES = ("cp", "cp", "slow", "rsync", "tar", "mv", "publish", "publish")
AGAIN = ("rm_cp", "rm_rsync", "two_mv", "exchange", "inplace", "rename_over", "cp_over")
MOST_VERSIONS = 6


_Option: TypeAlias = tuple[int, Callable[[Model], Step | None]]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What can be done on this machine."""

    kinds: tuple[str, ...] = (EXPORTED,)
    hang: bool = False
    small_disks: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """``mode`` is the one that a restart leads to."""

    number: int
    steps: tuple[Step, ...]
    mode: str
    restart: str = ""
    """``SIGTERM`` or ``SIGKILL``; empty: none."""

    @property
    def ids(self) -> list[str]:
        return [f"{self.number}.{index}" for index in range(len(self.steps))]


class Plan:
    """``models`` are those of the start. ``rounds`` goes on for as long as it is asked. ``owners``: the model and
    the version of each serial."""

    def __init__(self, seed: int, count: int, able: Abilities, mode: str = "") -> None:
        self._random = random.Random(seed)
        self._able = able
        self._serials = itertools.count(1)
        self.owners: dict[int, tuple[str, int]] = {}
        self.mode = mode or self._random.choice((REPOSITORY, CONFIG_FILE))
        self._forced_mode = mode
        self._models = {model.name: model for model in self._first_models(count)}
        self.models = dict(self._models)
        self._now = self.mode
        self._busy: dict[str, int] = {}  # until which round nobody touches what is broken
        self._hung = ""

    def _first_models(self, count: int) -> Iterator[Model]:
        for number in range(count):
            kind = self._kind(number, count)
            name = f"{'code' if kind == PYTHON else 'model'}_{number:02}"
            newest = self._random.randint(1, 4)
            first = max(1, newest - self._random.randint(0, 2))
            versions = {version: self._content(name, version) for version in range(first, newest + 1)}
            yield Model(name, kind, {HOME: Place(versions)})

    def _kind(self, number: int, count: int) -> str:
        every = (
            {2: PYTHON, 5: f"{EXPORTED}+link", 7: f"{EXPORTED}+small", 8: ONNX}
            if count >= 10
            else {1: PYTHON, 2: f"{EXPORTED}+link", 3: f"{EXPORTED}+small", 4: ONNX}
        )
        kind = every.get(number % 12 if count >= 10 else number, EXPORTED)
        if kind.split("+")[0] not in self._able.kinds or (kind.endswith("small") and not self._able.small_disks):
            return EXPORTED
        return kind

    def _content(self, model: str, version: int, quality: Quality = Quality.GOOD) -> Content:
        serial = next(self._serials)
        self.owners[serial] = (model, version)
        return Content(serial, quality)

    # Rounds.

    def rounds(self) -> Iterator[Round]:
        for number in itertools.count():
            yield self._round(number)

    def _round(self, number: int) -> Round:
        choose = self._random
        free = [name for name, until in self._busy.items() if until <= number]
        for name in free:
            del self._busy[name]
        names = [name for name in self._models if name not in self._busy]
        choose.shuffle(names)
        due = [name for name in free if self._models[name].hanging or self._models[name].config_broken]
        names = [name for name in names if name not in due]
        count = max(3, min(10, len(self._models) // 5))
        steps = [step for name in names[:count] if (step := self._step(self._models[name], number)) is not None]
        steps += [self._mend(self._models[name]) for name in due]
        if self._now == CONFIG_FILE:
            touched = {step.model for step in steps}
            steps += self._config_steps([name for name in names if name not in touched])
        for step in steps:
            self._apply(step)
        restart = ""
        if number and choose.random() < 0.13:
            restart = choose.choice(("SIGTERM", "SIGTERM", "SIGKILL"))
            if not self._forced_mode and choose.random() < 0.5:
                self._now = REPOSITORY if self._now == CONFIG_FILE else CONFIG_FILE
        if restart:  # a config that is being written or is wrong keeps a server from its start, and may
            steps = [replace(step, how="") if step.kind == "write_file" else step for step in steps]
            steps = [step for step in steps if step.kind != "break_file"]
        return Round(number, tuple(steps), self._now, restart)

    def _apply(self, step: Step) -> None:
        for one in step.changes or (step,):
            if one.model:
                self._models[one.model] = phases(one, self._models[one.model])[-1]

    # One model.

    def _step(self, model: Model, number: int) -> Step | None:
        """None where nothing fits."""
        place = self._models[model.name].place(self._now)
        if not model.is_served(self._now):
            return self._return(model)
        if place.versions is None:
            return self._return(model) if model.path == HOME else None
        if model.unmounted is not None:
            return Step("mount", model.name)
        if (trouble := self._trouble(model)) is not None and self._random.random() < 0.7:
            return trouble
        options = self._options(model)
        weights = [weight for weight, _ in options]
        step = self._random.choices([make for _, make in options], weights)[0](model)
        if step is not None and step.kind in ("hang", "break_config"):
            self._busy[model.name] = number + self._random.randint(2, 3)
        return step

    def _options(self, model: Model) -> list[_Option]:
        """What can be done to it now, with weights."""
        options: list[_Option] = [
            (8, self._push),
            (3, self._half),
            (4, self._bad),
            (6, self._again),
            (2, self._again_bad),
            (3, self._rm),
            (2, self._litter),
            (1, self._touch),
        ]
        if self._now == REPOSITORY:
            options += [(1, self._odd)]
            options += [(4, self._policy), (2, self._break_config), (1, self._remove)]
        if "link" in model.kind and self._now == REPOSITORY:
            options = [(10, self._link), (4, self._push), (2, self._half), (2, self._again)]
        if model.kind == PYTHON:
            options += [(8, self._kill)]
        if "small" in model.kind and not self._where(model):
            options += [(8, self._fill), (5, self._unmount)]
        if self._now == CONFIG_FILE and model.path == HOME:
            options += [(1, self._remove)]
        if self._able.hang and not self._hung and model.kind == EXPORTED:
            options += [(1, self._hang)]
        return options

    def _mend(self, model: Model) -> Step:
        """What was broken on purpose, and is due."""
        if model.hanging:
            self._hung = ""
            return Step("unhang", model.name)
        return Step("mend_config", model.name)

    def _where(self, model: Model) -> str:
        """The place that steps write to, as a part of ``how``."""
        name = HOME if self._now == REPOSITORY else model.path
        return "" if name == HOME else f"@{name}"

    def _versions(self, model: Model) -> Mapping[int, Content]:
        return model.place(self._now).versions or {}

    def _next(self, model: Model) -> int:
        return max(self._versions(model), default=0) + 1

    def _make(self, kind: str, model: Model, version: int, how: str = "") -> Step:
        serial = self._content(model.name, version).serial
        return Step(kind, model.name, version, how + self._where(model), serial)

    def _push(self, model: Model) -> Step | None:
        if len(self._versions(model)) >= MOST_VERSIONS:
            return self._rm(model)
        hows = [how for how in PUSHES if how != "mv" or "small" not in model.kind]
        return self._make("push", model, self._next(model), self._random.choice(hows))

    def _half(self, model: Model) -> Step:
        return self._make("half", model, self._next(model))

    def _bad(self, model: Model) -> Step:
        ways = [how for how in BAD if (how != "code") or model.kind != PYTHON]
        return self._make("bad", model, self._next(model), self._random.choice(ways))

    def _again(self, model: Model) -> Step | None:
        good = sorted(good_versions(model, self._now))
        if not good:
            return None
        version = good[-1] if self._random.random() < 0.7 else self._random.choice(good)
        return self._make("again", model, version, self._random.choice(AGAIN))

    def _again_bad(self, model: Model) -> Step | None:
        good = sorted(good_versions(model, self._now))
        if len(good) < 2:
            return None
        return self._make("again_bad", model, good[-1], self._random.choice(("inplace", "rm_cp", "exchange")))

    def _rm(self, model: Model) -> Step | None:
        versions = sorted(self._versions(model))
        if len(good_versions(model, self._now)) < 2:
            return None
        version = versions[-1] if self._random.random() < 0.4 else self._random.choice(versions)
        return Step("rm", model.name, version, self._where(model))

    def _litter(self, model: Model) -> Step:
        return Step("litter", model.name, how=self._where(model))

    def _touch(self, model: Model) -> Step:
        return Step("touch", model.name, how=self._where(model))

    def _odd(self, model: Model) -> Step:
        return Step("odd", model.name)

    def _unmount(self, model: Model) -> Step:
        return Step("unmount", model.name)

    def _some_policy(self, model: Model) -> Policy:
        good = sorted(good_versions(model, self._now))
        some = tuple(sorted(self._random.sample(good, min(len(good), self._random.randint(1, 2)))))
        ahead = (*some[:1], self._next(model)) if self._random.random() < 0.2 else ()
        options = [Policy(), Policy(2), Policy(3), ALL, Policy(versions=some) if some else Policy()]
        if ahead and some:
            options.append(Policy(versions=(self._next(model),)))
        return self._random.choice(options)

    def _policy(self, model: Model) -> Step:
        how = self._random.choice(("", "slow"))
        return Step("policy", model.name, how=how, policy=self._some_policy(model))

    def _break_config(self, model: Model) -> Step:
        return Step("break_config", model.name, how=self._random.choice(("field", "syntax")))

    def _remove(self, model: Model) -> Step | None:
        if "+" in model.kind:
            return None
        return Step("remove", model.name, how=self._random.choice(("rm", "mv")))

    def _return(self, model: Model) -> Step | None:
        """A model that has gone from the repository comes back, with other versions."""
        if "+" in model.kind or (self._now == CONFIG_FILE and not model.listed):
            return None
        first = self._random.randint(1, 5)
        files = tuple((number, self._content(model.name, number)) for number in range(first, first + 2))
        return Step("add", model.name, how=self._random.choice(("cp", "mv")), files=files)

    def _link(self, model: Model) -> Step:
        return Step("link", model.name, serial=next(self._serials), files=self._release(model))

    def _release(self, model: Model) -> tuple[tuple[int, Content], ...]:
        """The versions of another directory: the same number, a higher one, half of one, none."""
        newest = max(good_versions(model, self._now), default=0)
        kind = self._random.choice(("same", "same", "higher", "half", "older", "none"))
        if kind == "none":
            return ()
        if kind == "half":
            return ((newest + 1, self._content(model.name, newest + 1, Quality.PARTIAL)),)
        number = {"same": max(1, newest), "higher": newest + 1, "older": max(1, newest - 1)}[kind]
        return ((number, self._content(model.name, number)),)

    def _kill(self, model: Model) -> Step:
        return Step("kill", model.name)

    def _fill(self, model: Model) -> Step:
        return self._make("fill", model, self._next(model))

    def _hang(self, model: Model) -> Step:
        self._hung = model.name
        return Step("hang", model.name, how=self._where(model))

    def _trouble(self, model: Model) -> Step | None:
        """The remedy of what stands: the copy is finished, the files are replaced, removed, or followed by others."""
        worse = [(number, found) for number, found in self._versions(model).items() if not found.is_good]
        if not worse:
            return None
        version, content = worse[-1]
        if content.quality is Quality.PARTIAL and self._random.random() < 0.5:
            return Step("finish", model.name, version, self._where(model), content.serial)
        way = self._random.choice(("again", "rm", "push", "inplace"))
        if way == "rm" and len(self._versions(model)) > 1:
            return Step("rm", model.name, version, self._where(model))
        if way == "push":
            return self._push(model)
        how = "inplace" if way == "inplace" and content.quality is Quality.PARTIAL else "rm_cp"
        return self._make("again", model, version, how)

    # The config file.

    def _config_steps(self, names: list[str]) -> list[Step]:
        chance = self._random.random()
        if chance < 0.12:
            return [Step("break_file", how=self._random.choice(("syntax", "field", "double", "empty")))]
        if chance > 0.75:
            return []
        changes = [self._change(self._models[name]) for name in names[: self._random.randint(1, 4)]]
        found = tuple(change for change in changes if change is not None)
        return [Step("write_file", how=self._random.choice(("", "slow")), changes=found)] if found else []

    def _change(self, model: Model) -> Step | None:
        if not model.listed:
            return Step("list", model.name) if model.place(CONFIG_FILE).versions else None
        kind = self._random.choices(("policy", "labels", "move", "unlist"), (4, 3, 3, 1))[0]
        if kind == "unlist":
            return Step("unlist", model.name)
        if kind == "move":
            how = self._random.choice(("", "", "", "missing"))
            files = self._release(model) if not how else ()
            return Step("move", model.name, how=how, serial=next(self._serials), files=files)
        policy = model.file_policy if kind == "labels" else self._some_policy(model)
        return Step("file_policy", model.name, policy=policy, labels=self._some_labels(model, policy))

    def _some_labels(self, model: Model, policy: Policy) -> tuple[tuple[str, int], ...]:
        """Only of versions that answer before the change and after it."""
        good = good_versions(model, CONFIG_FILE)
        steady = sorted(policy.takes(good) & model.file_policy.takes(good))
        if not steady or model.hanging:
            return ()
        return tuple((name, self._random.choice(steady)) for name in ("stable", "canary")[: self._random.randint(0, 2)])
