"""The callers of ``soak_world.py``, and the judge of every answer that they get.

:class:`Judge` keeps, for each model, the stretches of time with their :class:`~world.Rights`. A request is judged when
it has ended, by all stretches that it touches: an answer has to be right in one of them; a failure is a fault if every
one of them says that there must be an answer, and the server was not down in that time.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from world import Right, Rights

from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode

TIMEOUT = 20.0
"""Seconds; far longer than any request takes."""
WIDTH = 3
GAP = 5.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller asks for: neither version nor label: the newest version."""

    model: str
    version: int | None = None
    label: str | None = None
    protocol: str = "grpc"

    def __str__(self) -> str:
        which = f"@{self.version}" if self.version is not None else f"@{self.label}" if self.label else ""
        return f"{self.model}{which} by {self.protocol}"


@dataclass(slots=True)
class Stretch:
    """One stretch of time of one model; ``since`` in seconds of ``monotonic``. ``replaced``: when the first answer
    with new content had ended, by the version that gave it."""

    since: float
    rights: Rights
    round: int
    moving: bool
    strict: bool = True
    """Whether old content may not answer after new content has."""
    replaced: dict[int | None, float] = field(default_factory=dict)


@dataclass(slots=True)
class Fault:
    """Requests for one model that were answered wrongly, or not at all, with at most :data:`GAP` seconds between them.
    ``round`` is that of the first one; ``texts`` counts what came."""

    kind: str
    model: str
    round: int
    first: float
    last: float
    texts: Counter[str] = field(default_factory=Counter)


class Judge:
    """Any thread."""

    def __init__(self, owners: Mapping[int, tuple[str, int]]) -> None:
        self._owners = owners
        self._lock = threading.Lock()  # guards all below
        self._stretches: dict[str, list[Stretch]] = {}
        self._down: list[list[float]] = []
        self.faults: list[Fault] = []
        self.round = 0
        """The round that is being done."""
        self.outcomes: Counter[str] = Counter()

    # The world says:

    def allow(self, model: str, rights: Rights, number: int, moving: bool, strict: bool = True) -> None:
        """From now on."""
        with self._lock:
            self._stretches.setdefault(model, []).append(Stretch(time.monotonic(), rights, number, moving, strict))

    def rights(self, model: str) -> Rights:
        with self._lock:
            found = self._stretches.get(model)
            return found[-1].rights if found else Rights()

    def server_goes(self) -> None:
        with self._lock:
            self._down.append([time.monotonic(), float("inf")])

    def server_is_back(self) -> None:
        with self._lock:
            if self._down:
                self._down[-1][1] = time.monotonic()

    @property
    def life(self) -> int:
        """How often the server has gone."""
        with self._lock:
            return len(self._down)

    @property
    def is_down(self) -> bool:
        with self._lock:
            return bool(self._down) and self._down[-1][1] == float("inf")

    # The callers say:

    def answered(self, question: Question, serial: int, version: int | None, started: float) -> None:
        ended = time.monotonic()
        with self._lock:
            self.outcomes["answered"] += 1
            owner = self._owners.get(serial)
            touched = self._touched(question.model, started, ended)
            if owner is None or owner[0] != question.model:
                self._add("wrong", question, f"answered by {owner or serial}", ended)
            elif (version is not None and owner[1] != version) or question.version not in (None, owner[1]):
                text = f"content {serial} is of version {owner[1]}, the answer names {version}"
                self._add("wrong", question, text, ended)
            elif not any(_is_right(question, serial, stretch.rights) for stretch in touched):
                right = sorted({one for stretch in touched for one in _right(question, stretch.rights).serials})
                text = f"content {self._named(serial)} answered, right is {list(map(self._named, right))}"
                self._add("wrong", question, text, ended)
            else:
                self._check_order(question, serial, owner[1], touched, started, ended)

    def failed(self, question: Question, text: str, started: float) -> None:
        ended = time.monotonic()
        with self._lock:
            if any(start <= ended and started <= end for start, end in self._down):
                self.outcomes["while the server was down"] += 1
                return
            touched = self._touched(question.model, started, ended)
            if touched and all(_right(question, stretch.rights).must for stretch in touched):
                self.outcomes["failed"] += 1
                self._add("failed", question, text, ended)
            else:
                self.outcomes["refused as expected"] += 1

    def _touched(self, model: str, started: float, ended: float) -> list[Stretch]:
        found = self._stretches.get(model, [])
        first = max((number for number, one in enumerate(found) if one.since <= started), default=0)
        return [one for one in found[first:] if one.since <= ended]

    def _check_order(
        self, question: Question, serial: int, version: int, touched: Sequence[Stretch], started: float, ended: float
    ) -> None:
        """While the content of a version is replaced, old content may not answer after new content has."""
        if len(touched) != 1 or not touched[0].moving or not touched[0].strict or question.version is None:
            return
        stretch = touched[0]
        if serial in stretch.rights.leaving:
            since = stretch.replaced.get(version)
            if since is not None and started > since:
                text = f"content {self._named(serial)} answered after its successor had"
                self._add("wrong", question, text, ended)
        elif _right(question, stretch.rights).serials & stretch.rights.leaving:
            stretch.replaced.setdefault(version, ended)

    def _named(self, serial: int) -> str:
        model, version = self._owners.get(serial, ("?", 0))
        return f"{model}@{version}#{serial}"

    def _add(self, kind: str, question: Question, text: str, ended: float) -> None:
        old = (fault for fault in reversed(self.faults) if (fault.kind, fault.model) == (kind, question.model))
        fault = next(old, None)
        if fault is None or ended - fault.last > GAP:
            fault = Fault(kind, question.model, self.round, ended, ended)
            self.faults.append(fault)
        fault.last = ended
        fault.texts[f"{text[:200]} ({question})"] += 1


def _right(question: Question, rights: Rights) -> Right:
    if question.version is not None:
        return rights.versions.get(question.version, Right())
    if question.label is not None:
        return rights.labels.get(question.label, Right())
    return rights.unversioned


def _is_right(question: Question, serial: int, rights: Rights) -> bool:
    return serial in _right(question, rights).serials


# Clients.


@dataclass(frozen=True, slots=True)
class Answer:
    serial: int
    version: int | None = None


class Refused(Exception):
    """The request was not answered."""


class Connection:
    """One client of each kind. One thread. Reconnects after each error."""

    def __init__(self, grpc_port: int, http_port: int) -> None:
        self._grpc_port, self._http_port = grpc_port, http_port
        self._client: Client | None = None
        self._http: http.client.HTTPConnection | None = None

    def ask(self, question: Question, row: Sequence[float]) -> Answer:
        """Refused with a text."""
        how = {"grpc": self._ask_grpc, "rest": self._ask_rest, "v2": self._ask_v2}[question.protocol]
        try:
            return how(question, row)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Refused(f"{type(error).__name__}: {error}") from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._http is not None:
            self._http.close()
        self._client = self._http = None

    def _ask_grpc(self, question: Question, row: Sequence[float]) -> Answer:
        if self._client is None:
            self._client = Client(f"127.0.0.1:{self._grpc_port}", timeout=TIMEOUT)
        x = np.array([row], np.float32)
        try:
            answer = self._client.predict(question.model, {"x": x}, version=question.version, label=question.label)
        except ServingError as error:
            if error.code is StatusCode.UNAVAILABLE:
                self.close()  # its channel may wait before it connects again
            raise Refused(f"{error.code.name}: {error}") from None
        return Answer(_serial(answer.outputs["y"][0], row), answer.version)

    def _ask_rest(self, question: Question, row: Sequence[float]) -> Answer:
        which = ""
        if question.version is not None:
            which = f"/versions/{question.version}"
        elif question.label is not None:
            which = f"/labels/{question.label}"
        found = self._post(f"/v1/models/{question.model}{which}:predict", {"inputs": {"x": [row]}})
        return Answer(_serial(found["outputs"]["y"][0], row))

    def _ask_v2(self, question: Question, row: Sequence[float]) -> Answer:
        which = f"/versions/{question.version}" if question.version is not None else ""
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": list(row)}
        found = self._post(f"/v2/models/{question.model}{which}/infer", {"inputs": [tensor]})
        y = next(one["data"] for one in found["outputs"] if one["name"] == "y")
        return Answer(_serial(y, row), int(found["model_version"]))

    def _post(self, path: str, body: object) -> dict:
        if self._http is None:
            self._http = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=TIMEOUT)
        self._http.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        data = answer.read()
        if answer.headers.get("Connection") == "close":
            self._http.close()
        if answer.status != 200:
            raise Refused(f"{answer.status}: {data[:300].decode(errors='replace')}")
        return json.loads(data)


def _serial(y: Sequence[float], row: Sequence[float]) -> int:
    """What the model has added; -1 if it is not the same everywhere."""
    added = {round(float(after) - before) for after, before in zip(y, row, strict=True)}
    return added.pop() if len(added) == 1 else -1


class Crowd:
    """Callers in threads of their own, from the start of the block to its end. ``focus`` holds the models that are
    asked more often, because something is done to them."""

    def __init__(
        self, judge: Judge, ports: tuple[int, int], models: Sequence[str], callers: int, seed: int, pause: float
    ) -> None:
        self._judge = judge
        self._ports = ports
        self._models = models
        self._pause = pause
        self.focus: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number, random.Random(f"{seed}/{number}")), daemon=True)
            for number in range(callers)
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT)

    @property
    def stuck(self) -> int:
        """Callers that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def _call(self, number: int, choose: random.Random) -> None:
        connection, life = Connection(*self._ports), 0
        protocol = ("grpc", "grpc", "grpc", "rest", "v2")[number % 5]
        while not self._stop.is_set():
            if self._judge.is_down:
                self._stop.wait(0.05)
                continue
            if life != self._judge.life:
                life = self._judge.life
                connection.close()
            question = self._question(protocol, choose)
            row = [float(choose.randrange(1000)) for _ in range(WIDTH)]
            self._ask(connection, question, row)
            self._stop.wait(self._pause * choose.random() * 2)
        connection.close()

    def _ask(self, connection: Connection, question: Question, row: Sequence[float]) -> None:
        started = time.monotonic()
        try:
            answer = connection.ask(question, row)
        except Refused as error:
            self._judge.failed(question, str(error), started)
        else:
            self._judge.answered(question, answer.serial, answer.version, started)

    def _question(self, protocol: str, choose: random.Random) -> Question:
        focus = self.focus
        model = choose.choice(focus if focus and choose.random() < 0.7 else self._models)
        rights = self._judge.rights(model)
        chance = choose.random()
        if chance < 0.3 and rights.versions:
            return Question(model, choose.choice(sorted(rights.versions)), None, protocol)
        if chance < 0.5 and rights.labels and protocol != "v2":
            return Question(model, None, choose.choice(sorted(rights.labels)), protocol)
        return Question(model, None, None, protocol)


def observe(
    ports: tuple[int, int], model: str, labels: Mapping[str, int], ask: Callable[[str], dict]
) -> frozenset[tuple[int, int]] | None:
    """Which versions answer now, with the serial numbers of their content; None while that changes, or while one of the
    ``labels`` is not answered by its version. ``ask`` gets a path of the HTTP port."""
    try:
        states = ask(f"/v1/models/{model}")
    except KeyError:
        return frozenset()
    except OSError:
        return None
    versions = [int(one["version"]) for one in states.get("model_version_status", ()) if one["state"] == "AVAILABLE"]
    connection = Connection(*ports)

    def serial(version: int | None = None, label: str | None = None) -> int:
        return connection.ask(Question(model, version, label, "rest"), (1.0, 2.0, 3.0)).serial

    try:
        found = {version: serial(version) for version in versions}
        if versions and serial() != found[max(versions)]:
            return None
        if any(serial(label=label) != found.get(version) for label, version in labels.items()):
            return None
    except Refused:
        return None
    finally:
        connection.close()
    return frozenset(found.items())
