import pytest

from tfs_lite.adapters.loader import AdapterSettings
from tfs_lite.adapters.platforms import make_source_adapter
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import Status, StatusCode


@pytest.fixture
def adapter():
    return make_source_adapter(None, AdapterSettings(lambda models, request: models[0], "cpu"))


def test_every_path_becomes_a_loader_without_touching_a_file(adapter):
    item = ServableData.ok(ServableId("m", 3), "/no/such/place/3", "rev")
    adapted = adapter.adapt("m", [item])[0]
    assert adapted.status.ok
    assert adapted.revision == "rev"
    assert adapted.payload.servable is None


def test_errored_item_passes_through(adapter):
    item = ServableData.error(ServableId("m", 3), Status(StatusCode.NOT_FOUND, "gone"))
    assert adapter.adapt("m", [item])[0].status == Status(StatusCode.NOT_FOUND, "gone")


def test_versions_loaded_by_one_adapter_serve_side_by_side(adapter, exported_once):
    loaders = [
        adapter.adapt("m", [ServableData.ok(ServableId("m", version), str(exported_once))])[0].payload
        for version in (1, 2)
    ]
    for version, loader in enumerate(loaders, 1):
        loader.load(ServableId("m", version))
    assert loaders[0].servable is not loaders[1].servable
    for loader in loaders:
        loader.unload()
