"""Models that are lent to somebody who closes what he has: a servable that is there for their first requests only."""

from __future__ import annotations

from typing import Any, cast

from tfs_lite.adapters.contract import OpenedModel


class _Lent:
    """The model, but for ``close``, which leaves it open."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def close(self) -> None:
        """Its owner does that."""


def lent(model: OpenedModel) -> OpenedModel:
    return cast(OpenedModel, _Lent(model))
