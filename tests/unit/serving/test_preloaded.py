"""Versions that were loaded before their turn."""

from __future__ import annotations

from tfs_lite.core.servable import ServableId
from tfs_lite.serving.preloaded import PreloadedLoader, Preloads
from tfs_lite.testing.lifecycle.loader import FakeLoader

ID = ServableId("m", 1)


def loaded(servable_id: ServableId = ID) -> FakeLoader:
    loader = FakeLoader()
    loader.load(servable_id)
    return loader


def test_what_was_preloaded_is_taken_over_and_unloaded_by_the_taker() -> None:
    early, late, preloads = loaded(), FakeLoader(), Preloads()
    preloads.put(ID, "r2", early)
    taker = PreloadedLoader(ID, "r2", late, preloads)
    taker.load(ID)
    assert (taker.servable, late.loads) == (early.servable, 0)
    preloads.drop("m")
    assert early.unloads == 0
    taker.unload()
    assert early.unloads == 1


def test_another_revision_is_loaded_as_ever() -> None:
    late, preloads = FakeLoader(), Preloads()
    preloads.put(ID, "r2", loaded())
    other = PreloadedLoader(ID, "r1", late, preloads)
    other.load(ID)
    assert late.servable is not None
    assert other.servable is late.servable


def test_what_was_not_taken_is_unloaded_for_that_model_only() -> None:
    preloads = Preloads()
    mine, other = loaded(), loaded(ServableId("n", 1))
    preloads.put(ID, "r", mine)
    preloads.put(ServableId("n", 1), "r", other)
    preloads.drop("m")
    assert (mine.unloads, other.unloads) == (1, 0)
