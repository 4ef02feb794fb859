"""The distributions of a release: what the client's has, and that it says the same as the server's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "release"))
import build  # type: ignore[import-not-found]  # noqa: E402

CLIENT = ROOT / "release" / "client" / "pyproject.toml"


def project(path: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(path.read_text())["project"]
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("client")
    build.stage_client(place)
    return place


def run(place: Path, code: str) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(place)!r}); {code}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_client_alone_imports_what_it_has_and_no_torch(client: Path) -> None:
    code = "import tfs_lite; tfs_lite.Client, tfs_lite.ServingError; print(tfs_lite.__file__, 'torch' in sys.modules)"
    assert run(client, code).split() == [str(client / "tfs_lite" / "__init__.py"), "False"]


def test_what_the_client_alone_does_not_have_is_named(client: Path) -> None:
    code = "import tfs_lite\ntry:\n    tfs_lite.Server\nexcept ImportError as error:\n    print(error)"
    command = f"sys.path_importer_cache.clear(); exec({code!r})"
    assert run(client, command) == "tfs_lite.Server is not in tfs-lite-client: install tfs-lite in its place\n"


def test_the_client_bounds_its_libraries_as_the_server_does() -> None:
    server, client = project(ROOT / "pyproject.toml"), project(CLIENT)
    assert set(client["dependencies"]) <= set(server["dependencies"])  # type: ignore[call-overload]
    (retry,) = client["optional-dependencies"]["retry"]  # type: ignore[index]
    assert retry in server["dependencies"]  # type: ignore[operator]
    assert (client["license"], client["requires-python"]) == (server["license"], server["requires-python"])


def test_nothing_that_only_a_server_needs_is_in_the_client() -> None:
    rooms = {path.relative_to(ROOT / "tfs_lite").parts[0] for path in build.modules_of_client()}
    assert rooms == {"__init__.py", "client.py", "core", "protocols", "transport"}


def test_the_public_names_are_listed() -> None:
    import tfs_lite

    assert set(tfs_lite.__all__) <= set(dir(tfs_lite))
    assert {getattr(tfs_lite, name).__name__ for name in tfs_lite.__all__ if name != "__version__"} == {
        *("Client", "Server", "ServerOptions", "ServingError", "save")
    }
