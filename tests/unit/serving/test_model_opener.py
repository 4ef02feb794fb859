"""Where instances live: what a platform says comes before the server's flag."""

from __future__ import annotations

from pathlib import Path

import torch

from tfs_lite.adapters.contract import OpenRequest
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.core.generation import LanguageModel
from tfs_lite.core.servable import ServableId
from tfs_lite.serving.model_opener import ModelOpener
from tfs_lite.testing.language.language_models import Size, publish_language


def test_language_model_is_opened_here_although_workers_are_processes(tmp_path: Path) -> None:
    directory = publish_language(tmp_path / "base", 1, Size())
    request = OpenRequest(ServableId("m", 1), read_version(str(directory)), torch.device("cpu"), False)
    opener = ModelOpener("process")
    try:
        (model,) = opener(PLATFORMS["transformers"], request)
        assert isinstance(model, LanguageModel)
        assert model.worker.kind == "thread"
        model.close()
    finally:
        opener.close()
