"""A week in ten minutes: what people do to a server of many models, all at once, while callers ask it.

    python tests/soak/soak_world.py --seed 1 --seconds 600 --models 50 --callers 20
    python tests/soak/soak_world.py --seed 1 --models 50 --steps 12.3,13.0        # some of its steps again

A real server with the default flags. In rounds, models are copied, half copied, overwritten, moved, broken and mended,
policies, labels and configs change, processes of models are killed, disks hang and fill up, and the server is
restarted, in both ways in which it learns of its models: a repository and a config file. The pure model of ``world.py``
says after each round what has to be true. The exit code is 0 when

- no request failed that had to be answered, and none was answered by a model, version or content that was not right;
- each round came to what the rules want, and stayed there;
- everything bad that stood at the end of a round was named by ``explain`` with a remedy;
- memory, threads and open files of the last life of the server are level, and SIGTERM ended it in time with code 0.

A finding names the step, what was expected, what came, and the command that does those steps again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path.append(str(Path(__file__).resolve().parent))

from artefacts import Artefacts, kinds
from callers import Crowd, Fault, Judge, observe
from effects import Disk
from plan import Abilities, Plan, Round
from world import (
    CONFIG_FILE,
    NOTHING,
    REPOSITORY,
    Course,
    Labels,
    Loading,
    Model,
    Step,
    Trouble,
    course,
    rights,
    troubles,
)

from tests.support.hang import HangingDisk
from tests.support.servers.process import default_command, free_ports

READY_SECONDS = 90.0
STOP_SECONDS = 45.0
"""``--drain_timeout_seconds`` (30) and as much again as the rest may take."""
PATIENCE_SECONDS = 10.0
"""After which the next round begins, without the models that are not right yet."""
SETTLE_SECONDS = 45.0
"""The most for a round to come to what it has to come to."""
QUIET_SECONDS = 5.0
"""After the last step of a round: the quiet period and two polls. What happens later is a fault."""
EXPLAIN_SECONDS = 15.0
"""For what stands to be named: ``--disk_timeout_seconds`` and some more."""
STEADY_SECONDS = 1.2
"""For which what was reached has to last."""
PAGES = ("/v1/models", "/v1/models:explain", "/metrics", "/monitoring/prometheus/metrics", "/livez", "/readyz")
LEFT_BEHIND = 3
"""The exit code of a server that has left something behind that hangs."""
MANY_MODELS = 5
EXPECTED = {"failed": "the request is answered", "wrong": "right answers only"}
MOST_GROWTH = 0.15
MOST_GROWTH_MIB = 60.0


@dataclass(slots=True)
class Finding:
    """Something that broke a promise. ``done`` are the steps before it that were done to the model or the server."""

    kind: str
    round: int
    model: str
    expected: str
    came: str
    done: list[str] = field(default_factory=list)
    replay: str = ""


class Server:
    """``tfs-lite serve`` on two ports that stay the same. One thread starts and ends it."""

    def __init__(self, disk: Disk, env: Mapping[str, str], flags: Sequence[str]) -> None:
        self.ports: tuple[int, int] = tuple(free_ports(2))
        self.log_path = disk.root / "server.log"
        self._disk = disk
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self._flags = flags
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, mode: str) -> None:
        source = (
            [f"--model_repository={self._disk.repository}"]
            if mode == REPOSITORY
            else [f"--model_config_file={self._disk.config_file}", "--model_config_file_poll_wait_seconds=1"]
        )
        trusted = f"{self._disk.repository}/code_*,{self._disk.root}/moved/code_*,{self._disk.root}/linked/code_*"
        command = [*default_command(), "serve", f"--port={self.ports[0]}", f"--rest_api_port={self.ports[1]}"]
        command += [*source, f"--trusted_model_base_paths={trusted}", *self._flags]
        with self.log_path.open("ab") as log:
            log.write(f"\n=== {' '.join(command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ask(self, path: str, timeout: float = 10.0) -> dict[str, Any]:
        """The JSON of a GET. KeyError for 404, OSError for any other error."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}{path}", timeout=timeout) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()[:200].decode(errors="replace")
            if error.code == 404:
                raise KeyError(text) from None
            raise OSError(f"{error.code}: {text}") from None

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}{path}", timeout=10) as answer:
            return answer.read().decode()

    def is_ready(self) -> bool:
        try:
            self.text("/readyz")
        except OSError:
            return False
        return True

    def end(self, how: signal.Signals, seconds: float) -> tuple[int | None, float]:
        """Its exit code, None if it had to be killed in the end; and how long it took."""
        assert self.process is not None
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its own session: also what it has left behind
        self.process.wait()
        return code, time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Sample:
    time: float
    life: int
    rss_mib: float
    threads: int
    files: int


class Watch:
    """Takes a sample of the server's process every two seconds."""

    def __init__(self, server: Server) -> None:
        self.samples: list[Sample] = []
        self.life = 0
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(2.0):
            try:
                process = psutil.Process(self._server.pid)
                size = process.memory_info().rss / 2**20
                sample = Sample(time.monotonic(), self.life, size, process.num_threads(), process.num_fds())
            except psutil.Error:
                continue
            self.samples.append(sample)

    def growth(self) -> list[str]:
        """What of the last life is not level: its second quarter is compared with its last."""
        last = [sample for sample in self.samples if sample.life == self.life]
        if len(last) < 24:
            return []
        quarter = len(last) // 4
        before, after = last[quarter : 2 * quarter], last[-quarter:]
        found = []
        for name, least in (("rss_mib", MOST_GROWTH_MIB), ("threads", 12.0), ("files", 24.0)):
            old, new = (median(getattr(sample, name) for sample in part) for part in (before, after))
            if new - old > max(least, MOST_GROWTH * old):
                found.append(f"{name} grew from {old:.0f} to {new:.0f} in the last life of the server")
        return found


@dataclass(slots=True)
class _Late:
    """A model that is not right yet, or not for long enough. ``seen`` is what answered at the last look."""

    round: Round
    since: float
    on_the_way: frozenset[Loading] = frozenset()
    right_since: float = 0.0
    seen: object = None


class Soak:
    """One run. ``findings`` is what it has found."""

    def __init__(self, wanted: argparse.Namespace, root: Path) -> None:
        self.wanted = wanted
        self.findings: list[Finding] = []
        self.remarks: list[str] = []
        self.done: dict[str, list[str]] = {}
        """Texts of the steps that were done, by kind."""
        self.hang = HangingDisk(root) if not HangingDisk.lacks() and not wanted.no_hang else None
        able = Abilities(tuple(kinds()), self.hang is not None, Disk.can_mount(root / "mount"))
        self.plan = Plan(wanted.seed, wanted.models, able, wanted.mode)
        self.mode = self.plan.mode
        self.models = dict(self.plan.models)
        self.disk = Disk(root, Artefacts(root / "artefacts"))
        self.judge = Judge(self.plan.owners)
        self.server = Server(self.disk, self.hang.env if self.hang else {}, wanted.flag)
        self.watch = Watch(self.server)
        self.history: dict[str, list[tuple[str, Step]]] = {}
        """What was done to each model, with the ids of the steps."""
        self.late: dict[str, _Late] = {}
        """Models that are not yet as they have to be."""
        self.off: set[str] = set()
        """Models that were found not to be as they should, and that were not right since."""
        self.rounds = 0
        self.started = time.monotonic()

    # The run.

    def run(self) -> None:
        for model in self.models.values():
            self.disk.make(model)
        self.disk.write_config(self.models)
        try:
            self._start_server(self.mode, 0)
            self.models = {name: self._first(model) for name, model in self.models.items()}
            for name, model in self.models.items():
                self.judge.allow(name, rights(model, mode=self.mode), 0, moving=False)
            pause = self.wanted.callers / self.wanted.rate
            names = list(self.models)
            with (
                self.watch,
                Crowd(self.judge, self.server.ports, names, self.wanted.callers, self.wanted.seed, pause) as crowd,
            ):
                self._rounds(crowd)
                self._finish_late()
            if crowd.stuck:
                self._find(
                    "stuck", self.rounds, "", "every request ends", f"{crowd.stuck} callers wait for their answer"
                )
            self._last_stop()
        finally:
            if self.server.process is not None:
                self.server.end(signal.SIGKILL, 5)
            self.disk.close()
        self._faults_to_findings()

    def _first(self, model: Model) -> Model:
        born = course(replace(model, loadings=frozenset({NOTHING})), (), self.mode, self.mode)
        return born.end

    def _rounds(self, crowd: Crowd) -> None:
        only = set(self.wanted.steps.split(",")) if self.wanted.steps else None
        last = max(map(_round_of, only), default=0) if only else self.wanted.rounds
        for planned in self.plan.rounds():
            if (last is not None and planned.number > last) or self._is_over():
                return
            chosen = planned if only is None else _only(planned, only, self.mode)
            if chosen is not None:
                self._round(chosen, crowd)
                self.rounds += 1

    def _is_over(self) -> bool:
        return time.monotonic() - self.started > self.wanted.seconds or (
            self.server.process is not None and self.server.process.poll() is not None
        )

    # One round.

    def _round(self, planned: Round, crowd: Crowd) -> None:
        planned = self._without_late(planned)
        if any(step.kind in ("write_file", "break_file") for step in planned.steps):
            planned = self._without_stale_labels(planned)
        steps = _by_model(planned)
        restart_in = planned.mode if planned.restart else ""
        courses = {
            name: course(self.models[name], [step for _, step in steps.get(name, [])], self.mode, restart_in)
            for name in (self.models if restart_in else steps)
        }
        self._say(planned)
        for name, way in courses.items():
            unsettled = self.late[name].on_the_way if name in self.late else frozenset()
            found = rights(way.end, way.on_the_way | unsettled, self.models[name], self.mode)
            self.judge.allow(name, found, planned.number, moving=True, strict=not restart_in and _is_plain(steps[name]))
        crowd.focus = tuple(name for name in steps if name)
        before = dict(self.models)
        self._note_shared(planned)
        for name in steps:
            self.history.setdefault(name, []).extend(steps[name])
        missed = self._do(planned, courses)
        for name in missed & courses.keys():
            courses[name] = course(before[name], (), self.mode, restart_in)
        if restart_in:
            self.mode = restart_in
        for name, way in courses.items():
            self.models[name] = way.end
        self._settle(planned, courses)
        self._explain(planned, courses)
        self._check_pages(planned)
        crowd.focus = ()

    def _without_late(self, planned: Round) -> Round:
        """Models that are not right yet are left alone, unless what hangs is freed."""
        pairs = zip(planned.ids, planned.steps, strict=True)
        kept = [(id_, self._for_others(step)) for id_, step in pairs if self._can_be_done(step)]
        kept = [(id_, step) for id_, step in kept if step.kind != "write_file" or step.changes]
        ids, steps = tuple(id_ for id_, _ in kept), tuple(step for _, step in kept)
        return _Chosen(planned.number, steps, planned.mode, planned.restart, ids)

    def _can_be_done(self, step: Step) -> bool:
        """Steps before it may have been left out. One disk hangs at a time."""
        if step.kind == "unhang":
            return self.models[step.model].hanging
        if step.kind == "mend_config" and not self.models[step.model].config_broken:
            return False
        if step.kind == "hang" and any(model.hanging for model in self.models.values()):
            return False
        return step.model not in self.late

    def _for_others(self, step: Step) -> Step:
        return replace(step, changes=tuple(change for change in step.changes if change.model not in self.late))

    def _without_stale_labels(self, planned: Round) -> Round:
        """Whoever edits the config file takes labels of versions that do not answer out: with one of them the file is
        refused, as upstream does it."""
        for name, model in self.models.items():
            if model.labels and (name in self.late or self._answering(model, model.labels) != model.labels):
                self.models[name] = model = replace(model, labels=())
                late = self.late.get(name)
                found = rights(model, late.on_the_way if late is not None else None, mode=self.mode)
                self.judge.allow(name, found, planned.number, moving=late is not None)
        steps = tuple(
            replace(step, changes=tuple(self._with_answering_labels(change) for change in step.changes))
            for step in planned.steps
        )
        return _Chosen(planned.number, steps, planned.mode, planned.restart, tuple(planned.ids))

    def _answering(self, model: Model, labels: Labels) -> Labels:
        return tuple((name, version) for name, version in labels if all(version in dict(one) for one in model.loadings))

    def _with_answering_labels(self, change: Step) -> Step:
        return replace(change, labels=self._answering(self.models[change.model], change.labels))

    def _note_shared(self, planned: Round) -> None:
        """Remembers what is done to the server and its config file."""
        self.judge.round = planned.number
        shared = [(id_, step) for id_, step in zip(planned.ids, planned.steps, strict=True) if not step.model]
        if planned.restart:
            shared.append((f"{planned.number}.{planned.restart}", Step("restart", how=planned.restart)))
        self.history.setdefault("", []).extend(shared)

    def _say(self, planned: Round) -> None:
        if self.wanted.verbose:
            passed = time.monotonic() - self.started
            what = "; ".join(f"{id_} {step}" for id_, step in zip(planned.ids, planned.steps, strict=True))
            print(f"[{passed:6.1f}] round {planned.number} {planned.restart} {what}", flush=True)

    def _do(self, planned: Round, courses: Mapping[str, Course]) -> set[str]:
        """Does all steps at once. Returns the models whose step could not be done."""
        missed: set[str] = set()
        tasks: list[Callable[[], None]] = []
        for id_, step in zip(planned.ids, planned.steps, strict=True):
            self.done.setdefault(step.kind, []).append(id_)
            pace = random.Random(f"{self.wanted.seed}/{id_}")
            tasks.append(lambda id_=id_, step=step, pace=pace: self._do_one(id_, step, pace, missed, courses))
        if planned.restart:
            tasks.append(lambda: self._restart(planned))
        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            for result in [pool.submit(task) for task in tasks]:
                result.result()
        return missed

    def _do_one(
        self, id_: str, step: Step, pace: random.Random, missed: set[str], courses: Mapping[str, Course]
    ) -> None:
        time.sleep(pace.random())
        if step.kind == "write_file":
            ends = {**self.models, **{change.model: courses[change.model].end for change in step.changes}}
            pace_of = {
                change.model: random.Random(f"{self.wanted.seed}/{id_}/{change.model}") for change in step.changes
            }
            for change in step.changes:
                if change.kind == "move":
                    self.disk.do(change, self.models[change.model], pace_of[change.model])
            self.disk.write_config(ends, step.how)
        elif step.kind == "break_file":
            self._break_file(id_, step)
        elif step.kind == "kill":
            self._kill(id_, step.model, pace)
        elif step.kind in ("hang", "unhang"):
            self._hang(step)
        elif remark := self.disk.do(step, self.models[step.model], pace):
            self.remarks.append(f"{id_} {step}: {remark}")
            if remark.startswith("not done"):
                missed.add(step.model)

    def _hang(self, step: Step) -> None:
        if self.hang is None:
            return
        if step.kind == "unhang":
            self.hang.free()
            return
        model = self.models[step.model]
        self.hang.hang(self.disk.base(step.model, model.path if self.mode == CONFIG_FILE else "home"))

    def _kill(self, id_: str, model: str, pace: random.Random) -> None:
        """kill -9 of one process of the model, by the pid that the metrics tell."""
        pids = self._workers(model)
        if not pids:
            self.remarks.append(f"{id_}: {model} has no process now")
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pace.choice(pids), signal.SIGKILL)

    def _workers(self, model: str) -> list[int]:
        try:
            text = self.server.text("/metrics")
        except OSError:
            return []
        rows = [line for line in text.splitlines() if line.startswith("tfs_lite_worker_info{")]
        lines = [line for line in rows if f'model="{model}"' in line]
        found = {int(match[1]) for line in lines if (match := re.search(r'pid="(\d+)"', line))}
        return sorted(pid for pid in found if pid > 1 and psutil.pid_exists(pid) and self._is_ours(pid))

    def _is_ours(self, pid: int) -> bool:
        with contextlib.suppress(psutil.Error):
            return self.server.pid != pid and os.getsid(pid) == os.getsid(self.server.pid)
        return False

    def _break_file(self, id_: str, step: Step) -> None:
        """A config file that makes no sense stands for some seconds; every model says so; then it is mended."""
        number = _round_of(id_)
        self.disk.break_config(self.models, step.how)
        deadline = time.monotonic() + 15
        listed = [name for name, model in self.models.items() if model.listed]
        problem = ""
        while time.monotonic() < deadline:
            problem = self._config_problem(listed[0])
            if not problem:
                break
            time.sleep(0.3)
        if problem:
            expected = f"explain says that the config file is not applied ({step.how}), and what to do"
            self._find("silent", number, listed[0], expected, problem)
        self.disk.write_config(self.models)

    def _config_problem(self, model: str) -> str:
        """Empty if explain tells of a config that is not applied."""
        try:
            answer = self.server.ask(f"/v1/models/{model}:explain")
        except (OSError, KeyError) as error:
            return f"explain: {error}"
        links = [link for link in answer["because"] if link["cause"] == "CONFIG_NOT_APPLIED"]
        if not links:
            return f"{answer['verdict']}: {answer['sentence']} {answer['because']}"
        return "" if any(link["fix"] for link in links) else f"no remedy: {links}"

    # The server.

    def _start_server(self, mode: str, number: int) -> None:
        self.server.start(mode)
        if self._is_ready_within(READY_SECONDS):
            return
        code = self.server.process.poll() if self.server.process else None
        came = f"it ended with {code}: {self._log_end()}" if code is not None else "it is not ready"
        self._find("start", number, "", f"the server is ready within {READY_SECONDS:g} s", came)
        if self.hang is not None:
            self.hang.free()
        if code is not None or not self._is_ready_within(READY_SECONDS):
            raise RuntimeError(f"the server does not start: {code}\n{self._log_end()}")

    def _is_ready_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.server.is_ready():
            if self.server.process is None or self.server.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _log_end(self, size: int = 1500) -> str:
        return self.server.log_path.read_bytes()[-size:].decode(errors="replace")

    def _restart(self, planned: Round) -> None:
        pace = random.Random(f"{self.wanted.seed}/{planned.number}/restart")
        time.sleep(pace.random() * 4)
        how = signal.Signals[planned.restart]
        self.judge.server_goes()
        self.done.setdefault(planned.restart, []).append(str(planned.number))
        hanging = any(model.hanging for model in self.models.values())
        hanging |= any(step.kind == "hang" for step in planned.steps)  # at the same time
        code, seconds = self.server.end(how, STOP_SECONDS)
        if how is signal.SIGTERM and code not in ((0, LEFT_BEHIND) if hanging else (0,)):
            came = f"it ended with {code} after {seconds:.1f} s" if code is not None else "it had to be killed"
            came += f"; the end of its log: {self._log_end(800)}"
            self._find("stop", planned.number, "", f"SIGTERM ends it within {STOP_SECONDS:g} s with 0", came)
        self._start_server(planned.mode, planned.number)
        self.watch.life += 1
        self._after_restart(planned)
        self.judge.server_is_back()

    def _after_restart(self, planned: Round) -> None:
        """From readiness on, what a server that has just started can hold is what has to answer."""
        steps = _by_model(planned)
        for name, model in self.models.items():
            way = course(model, [step for _, step in steps.get(name, [])], self.mode, planned.mode)
            born = rights(
                replace(way.end, loadings=way.after_restart or way.end.loadings), way.after_restart, None, planned.mode
            )
            self.judge.allow(name, born, planned.number, moving=True, strict=False)

    def _last_stop(self) -> None:
        if self.server.process is not None and self.server.process.poll() is not None:
            self._find("died", self.rounds, "", "the server lives", f"{self.server.process.poll()}: {self._log_end()}")
            return
        for problem in self.watch.growth():
            self._find("growth", self.rounds, "", "memory, threads and files are level", problem)
        if self.hang is not None:
            self.hang.free()
        code, seconds = self.server.end(signal.SIGTERM, STOP_SECONDS)
        self.remarks.append(f"the last SIGTERM: exit code {code} after {seconds:.1f} s")
        if code != 0:
            expected = f"SIGTERM ends it within {STOP_SECONDS:g} s with 0"
            came = f"{code} after {seconds:.1f} s; the end of its log: {self._log_end(800)}"
            self._find("stop", self.rounds, "", expected, came)

    # What has to be true.

    def _settle(self, planned: Round, courses: Mapping[str, Course]) -> None:
        """Waits until each model answers as one of its right loadings, and goes on doing so. What takes long is looked
        at again after the next rounds, and left alone until then."""
        done_at = time.monotonic()
        for name in courses:
            self.late[name] = _Late(planned, done_at, courses[name].on_the_way)
        while self.late and time.monotonic() - done_at < PATIENCE_SECONDS:
            for name, late in list(self.late.items()):
                self._look(name, late)
            time.sleep(0.15)
        for name, late in list(self.late.items()):
            if time.monotonic() - late.since > SETTLE_SECONDS:
                self._unsettled(late.round, name, late.seen)
                del self.late[name]

    def _look(self, name: str, late: _Late) -> None:
        labels = dict(self.models[name].labels) if self.mode == CONFIG_FILE else {}
        late.seen = observe(self.server.ports, name, labels, self.server.ask)
        now = time.monotonic()
        if late.seen is None or late.seen not in self.models[name].loadings:
            late.right_since = 0.0
        elif not late.right_since:
            late.right_since = now
        if late.right_since and now - late.right_since >= STEADY_SECONDS and now - late.since >= QUIET_SECONDS:
            self._rest(late.round, name, frozenset({late.seen}))
            self.off.discard(name)
            del self.late[name]

    def _finish_late(self) -> None:
        """At the end: what has not settled yet gets its time."""
        while self.late:
            for name, late in list(self.late.items()):
                self._look(name, late)
                if name in self.late and time.monotonic() - late.since > SETTLE_SECONDS:
                    self._unsettled(late.round, name, late.seen)
                    del self.late[name]
            time.sleep(0.2)

    def _rest(self, planned: Round, name: str, loadings: frozenset) -> None:
        self.models[name] = replace(self.models[name], loadings=loadings)
        self.judge.allow(name, rights(self.models[name], mode=self.mode), planned.number, moving=False)

    def _unsettled(self, planned: Round, name: str, found: object) -> None:
        model = self.models[name]
        expected = " or ".join(self._loading_text(one) for one in sorted(model.loadings, key=sorted))
        came = self._loading_text(found) if isinstance(found, frozenset) else "answers that change, or none"
        with contextlib.suppress(OSError, KeyError):
            answer = self.server.ask(f"/v1/models/{name}:explain")
            came += f"; explain: {answer['sentence']}"
        if name in self.off:
            self.remarks.append(
                f"round {planned.number}: {name} is still not as it should be: {expected}; {came}"[:300]
            )
        else:
            self._find("unsettled", planned.number, name, f"it serves {expected}", came)
        self.off.add(name)
        if isinstance(found, frozenset):
            self._rest(planned, name, frozenset({found}))
        else:
            self.judge.allow(name, rights(replace(model, loadings=frozenset({NOTHING}))), planned.number, moving=False)

    def _loading_text(self, loading: object) -> str:
        assert isinstance(loading, frozenset)
        return "{" + ", ".join(f"{version}#{serial}" for version, serial in sorted(loading)) + "}"

    def _check_pages(self, planned: Round) -> None:
        """What an operator looks at works, whatever lies on the disk."""
        for path in PAGES:
            try:
                self.server.text(path)
            except OSError as error:
                self._find("page", planned.number, "", f"GET {path} answers 200", str(error))

    def _explain(self, planned: Round, courses: Mapping[str, Course]) -> None:
        """Everything bad that stands is named, with a remedy; of one also by the command."""
        settled = [name for name in courses if name not in self.late and name not in self.off]
        standing = [trouble for name in settled for trouble in troubles(self.models[name], self.mode)]
        for trouble in standing:
            if problem := self._silence(trouble):
                version = f"@{trouble.version}" if trouble.version is not None else ""
                expected = f"explain names {trouble.model}{version} ({trouble.what}) with a remedy"
                self._find("silent", planned.number, trouble.model, expected, problem)
        if standing:
            self._ask_command(planned, standing[-1])

    def _silence(self, trouble: Trouble) -> str:
        """Empty if explain tells of the trouble, both of the model and, if it is about one, of the version."""
        which = f"/versions/{trouble.version}" if trouble.version is not None else ""
        problem = ""
        for path in dict.fromkeys(
            (f"/v1/models/{trouble.model}{which}:explain", f"/v1/models/{trouble.model}:explain")
        ):
            deadline = time.monotonic() + EXPLAIN_SECONDS
            while problem := self._problem_of(path, trouble):
                if time.monotonic() > deadline:
                    return problem
                time.sleep(0.3)
        return problem

    def _problem_of(self, path: str, trouble: Trouble) -> str:
        try:
            answer = self.server.ask(path)
        except (OSError, KeyError) as error:
            return f"{path}: {type(error).__name__} {error}"
        short = {key: answer[key] for key in ("verdict", "sentence", "because")}
        if not answer["because"]:
            return f"{path}: no cause: {short}"
        if not any(link["fix"] for link in answer["because"]):
            return f"{path}: no remedy: {short}"
        if trouble.version is not None and not re.search(rf"\b{trouble.version}\b", json.dumps(short)):
            return f"{path}: the version is not named: {short}"
        return ""

    def _ask_command(self, planned: Round, trouble: Trouble) -> None:
        what = trouble.model if trouble.version is None else f"{trouble.model}@{trouble.version}"
        address = f"127.0.0.1:{self.server.ports[1]}"
        command = [*default_command(), "explain", what, "--json", f"--server={address}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            came = f"exit code {done.returncode}: {done.stdout[:200]} {done.stderr[:300]}"
            self._find("silent", planned.number, trouble.model, f"tfs-lite explain {what} --json", came)
            return
        if not answer.get("because"):
            self._find("silent", planned.number, trouble.model, f"tfs-lite explain {what} names it", done.stdout[:300])

    # Findings.

    def _find(self, kind: str, number: int, model: str, expected: str, came: str) -> None:
        """The steps are those of the model until then, the restarts since the first, and those of the server in that
        round; of the server as a whole also what hangs."""
        past = [(id_, step) for id_, step in self.history.get(model, []) if _round_of(id_) <= number]
        if not model:
            hangs = [one for steps in self.history.values() for one in steps if one[1].kind in ("hang", "unhang")]
            past += [(id_, step) for id_, step in hangs if _round_of(id_) <= number]
        first = min((_round_of(id_) for id_, _ in past), default=number)
        all_shared = [(id_, step) for id_, step in self.history.get("", []) if first <= _round_of(id_) <= number]
        shared = [(id_, step) for id_, step in all_shared if step.kind == "restart" or _round_of(id_) == number]
        found = dict(sorted([*past, *shared], key=lambda one: _round_of(one[0])))
        done = [f"{id_} {step}" for id_, step in found.items()][-8:]
        finding = Finding(kind, number, model, expected, came, done, self._replay(list(found)))
        self.findings.append(finding)
        if self.wanted.verbose:
            print(f"FINDING {json.dumps(asdict(finding))}", flush=True)

    def _replay(self, steps: Sequence[str]) -> str:
        wanted = self.wanted
        command = f"soak_world.py --seed {wanted.seed} --models {wanted.models} --callers {wanted.callers}"
        command += f" --mode {wanted.mode}" if wanted.mode else ""
        return f"{command} --steps {','.join(steps) or '0.0'}"

    def _faults_to_findings(self) -> None:
        """What happened to many models in one round is one finding."""
        rounds = sorted({(fault.round, fault.kind) for fault in self.judge.faults})
        for number, kind in rounds:
            faults = [fault for fault in self.judge.faults if (fault.round, fault.kind) == (number, kind)]
            if len({fault.model for fault in faults}) <= MANY_MODELS:
                for fault in faults:
                    self._find(kind, number, fault.model, EXPECTED[kind], self._fault_text(fault))
                continue
            names = ", ".join(sorted({fault.model for fault in faults}))
            worst = max(faults, key=lambda fault: fault.texts.total())
            came = f"{len(faults)} times: {names}; the worst is {worst.model}: {self._fault_text(worst)}"
            self._find(kind, number, "", EXPECTED[kind], came)

    def _fault_text(self, fault: Fault) -> str:
        texts = "; ".join(f"{count} x {text}" for text, count in fault.texts.most_common(3))
        lasted, at = fault.last - fault.first, fault.first - self.started
        return f"{fault.texts.total()} requests within {lasted:.2f} s from second {at:.1f}: {texts}"


def _round_of(id_: str) -> int:
    return int(id_.partition(".")[0])


def _by_model(planned: Round) -> dict[str, list[tuple[str, Step]]]:
    """Steps and changes of the config file, with the ids of the steps; under the empty name those of the server."""
    found: dict[str, list[tuple[str, Step]]] = {}
    for id_, step in zip(planned.ids, planned.steps, strict=True):
        for one in step.changes or (step,):
            if one.model:
                found.setdefault(one.model, []).append((id_, one))
    return found


def _is_plain(steps: Sequence[tuple[str, Step]]) -> bool:
    return len(steps) == 1


@dataclass(frozen=True, slots=True)
class _Chosen(Round):
    """A round of which some steps were cut away; they keep their ids."""

    kept: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        return list(self.kept)


def _only(planned: Round, only: set[str], mode: str) -> Round | None:
    """The round with the steps of these ids; ``12.SIGTERM`` is its restart. None if nothing is left."""
    kept = [(id_, step) for id_, step in zip(planned.ids, planned.steps, strict=True) if id_ in only]
    restart = planned.restart if f"{planned.number}.{planned.restart}" in only else ""
    if not kept and not restart:
        return None
    steps = tuple(step for _, step in kept)
    ids = tuple(id_ for id_, _ in kept)
    return _Chosen(planned.number, steps, planned.mode if restart else mode, restart, ids)


@contextlib.contextmanager
def _root(kept: str) -> Iterator[Path]:
    path = Path(kept or tempfile.mkdtemp(prefix="soak-world-"))
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path.resolve()
    finally:
        if not kept:
            shutil.rmtree(path, ignore_errors=True)


def summary(soak: Soak) -> dict[str, Any]:
    samples = soak.watch.samples
    return {
        "seed": soak.wanted.seed,
        "seconds": round(time.monotonic() - soak.started, 1),
        "rounds": soak.rounds,
        "steps": {kind: len(ids) for kind, ids in sorted(soak.done.items())},
        "requests": dict(soak.judge.outcomes),
        "rss_mib": [round(sample.rss_mib) for sample in samples[:: max(1, len(samples) // 12)]],
        "threads": [sample.threads for sample in samples[:: max(1, len(samples) // 12)]],
        "remarks": soak.remarks[-30:],
        "findings": len(soak.findings),
    }


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--callers", type=int, default=20)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second of all callers, at most")
    parser.add_argument("--rounds", type=int, help="the number of the last round")
    parser.add_argument("--mode", choices=(REPOSITORY, CONFIG_FILE), default="", help="and no change of it")
    parser.add_argument("--steps", default="", help="only these: ROUND.INDEX,...; ROUND.SIGTERM is a restart")
    parser.add_argument("--no_hang", action="store_true", help="no disk hangs")
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the server")
    parser.add_argument("--directory", default="", help="where the world lies; it is kept")
    parser.add_argument("--json", default="", help="a file for the findings")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    wanted = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # the server and the small disks are taken away
    with _root(wanted.directory) as root:
        soak = Soak(wanted, root)
        try:
            soak.run()
        except RuntimeError as error:
            print(error, file=sys.stderr)
    print(json.dumps(summary(soak), indent=1))
    for finding in soak.findings:
        print(f"\n{finding.kind.upper()} in round {finding.round}: {finding.model}", file=sys.stderr)
        print(f"  expected: {finding.expected}\n  came: {finding.came}", file=sys.stderr)
        print(f"  after: {'; '.join(finding.done)}\n  again: {finding.replay}", file=sys.stderr)
    if wanted.json:
        found = {**summary(soak), "findings": [asdict(finding) for finding in soak.findings]}
        Path(wanted.json).write_text(json.dumps(found, indent=1))
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
