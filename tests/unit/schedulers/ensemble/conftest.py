"""A fixture of models for every test; in the end no handle is left and everything is closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.schedulers.ensembles import EnsembleFixture


@pytest.fixture
def fixture() -> Iterator[EnsembleFixture]:
    found = EnsembleFixture()
    yield found
    found.close()
