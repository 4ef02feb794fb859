"""Models from source, as a server opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from tfs_lite.adapters.opening import OpenedModel, OpenRequest
    from tfs_lite.config.model import ModelSettings


@pytest.fixture
def opened(tmp_path: Path, request_for: Callable[..., OpenRequest]) -> Iterator[Callable[..., OpenedModel]]:
    """Writes ``model.py`` and opens it as a server does; closes it in the end."""
    from tests.support.servers.platforms import write_python
    from tfs_lite.adapters.python.model import open_python

    models: list[OpenedModel] = []

    def open_source(
        source: str, settings: ModelSettings | None = None, weights: Mapping[str, torch.Tensor] | None = None
    ) -> OpenedModel:
        models.append(open_python(request_for(write_python(tmp_path, source, weights), settings, trusted=True)))
        return models[-1]

    yield open_source
    for model in models:
        model.close()
