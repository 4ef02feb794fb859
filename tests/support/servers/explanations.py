"""What a server in the test's process explains, over HTTP, and waits for what it is to explain."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import orjson

from tests.support.servers.in_process import TIMEOUT, ServerFixture
from tests.support.servers.process import wait_until
from tfs_lite.operations.explain.explanation import MAX_CHAIN, MAX_TEXT

Tree = dict[str, Any]


class Explanations:
    """``ask("m")``, ``ask("m/versions/2")`` or ``ask("m/labels/stable")``. Every answer is checked: its texts are
    short, and none names a path below the directory ``hidden``: who asks is from elsewhere, and may not manage."""

    def __init__(self, served: ServerFixture, hidden: Path) -> None:
        self._url = served.url
        self._hidden = str(hidden)

    def get(self, path: str) -> Tree:
        try:
            request = urllib.request.Request(f"{self._url}{path}", headers={"x-forwarded-for": "192.0.2.1"})
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}: {error.code} {error.read()!r}") from None
        assert self._hidden.encode() not in body
        return dict(orjson.loads(body))

    def ask(self, what: str) -> Tree:
        answer = self.get(f"/v1/models/{what}:explain")
        _check_bounds(answer)
        return answer

    def verdicts(self) -> dict[str, str]:
        """By model, worst first."""
        return {line["model"]: line["verdict"] for line in self.get("/v1/models:explain")["models"]}

    def wait(self, what: str, verdict: str, cause: str = "", text: str = "") -> Tree:
        """Until the verdict is this one, and the chain has a link of this cause, or begins with it if ``cause`` begins
        with ``!``, whose text holds ``text``. Returns that answer."""
        seen: list[Tree] = [{}]

        def holds() -> bool:
            seen[0] = answer = self.ask(what)
            return bool(answer["verdict"] == verdict and _has(answer, cause, text))

        try:
            wait_until(holds, f"{what} is {verdict} because of {cause or 'nothing'}", TIMEOUT)
        except AssertionError as error:
            raise AssertionError(f"{error}; the last answer: {seen[0]}") from None
        return seen[0]


def _has(answer: Tree, cause: str, text: str) -> bool:
    links = answer["because"][:1] if cause.startswith("!") else answer["because"]
    return not cause or any(link["cause"] == cause.lstrip("!") and text in link["text"] for link in links)


def _check_bounds(answer: Tree) -> None:
    assert len(answer["because"]) <= MAX_CHAIN
    texts = [answer["sentence"], answer["next"]["what"], *(line["sentence"] for line in answer["versions"])]
    for link in answer["because"]:
        assert link["text"]
        assert link["fix"]
        texts += [link["text"], link["fix"]]
    assert all(len(text) <= MAX_TEXT for text in texts)


def link_of(answer: Tree, cause: str) -> Tree:
    """The link of that cause."""
    return next(dict(link) for link in answer["because"] if link["cause"] == cause)
