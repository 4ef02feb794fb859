"""Versions that were loaded before their turn."""

from __future__ import annotations

from tfs_lite.core.loader import SimpleLoader
from tfs_lite.core.servable import ServableId
from tfs_lite.serving.preloaded import PreloadedLoader, Preloads

ID = ServableId("m", 1)


class Made:
    """Loaders of texts, and which of these are in memory."""

    def __init__(self) -> None:
        self.inside: list[str] = []

    def loader(self, text: str) -> SimpleLoader:
        def create(servable_id: ServableId) -> str:
            self.inside.append(text)
            return text

        return SimpleLoader(create, destroy=self.inside.remove)


def test_what_was_prepared_is_taken_over_and_unloaded_by_the_taker() -> None:
    made, prepared = Made(), Preloads()
    early = made.loader("early")
    early.load(ID)
    prepared.put(ID, "r2", early)
    taker = PreloadedLoader(ID, "r2", made.loader("late"), prepared)
    taker.load(ID)
    assert (taker.servable, made.inside) == ("early", ["early"])
    prepared.drop("m")
    assert made.inside == ["early"]
    taker.unload()
    assert made.inside == []


def test_another_revision_is_loaded_as_ever() -> None:
    made, prepared = Made(), Preloads()
    early = made.loader("early")
    early.load(ID)
    prepared.put(ID, "r2", early)
    other = PreloadedLoader(ID, "r1", made.loader("late"), prepared)
    other.load(ID)
    assert other.servable == "late"


def test_what_nobody_took_is_unloaded_for_that_model_only() -> None:
    made, prepared = Made(), Preloads()
    for name in ("m", "n"):
        loader = made.loader(name)
        loader.load(ServableId(name, 1))
        prepared.put(ServableId(name, 1), "r", loader)
    prepared.drop("m")
    assert made.inside == ["n"]
