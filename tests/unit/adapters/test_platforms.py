import logging
from importlib.metadata import EntryPoint

from tfs_lite.adapters.opening import Platform
from tfs_lite.adapters.platforms import BUILT_IN, GROUP, PLATFORMS, known_platforms

JAX = Platform("jax", "model.jax", lambda files: False, None)
PYTHON_AGAIN = Platform("python", "other.py", lambda files: False, None)


def entry(name, value="tests_of_platforms:missing"):
    return EntryPoint(name, value, GROUP)


class Loaded:
    """Stands for an entry point whose object is at hand."""

    def __init__(self, name, platform):
        self.name = name
        self.value = f"{name}:PLATFORM"
        self._platform = platform

    def load(self):
        if isinstance(self._platform, BaseException):
            raise self._platform
        return self._platform


def test_built_in_platforms_are_known():
    assert set(PLATFORMS) >= {"pytorch_export", "pytorch_libtorch", "python", "pytorch_aoti", "ensemble"}
    assert [platform.name for platform in BUILT_IN if platform.needs_trust] == ["python", "pytorch_aoti"]


def test_platform_that_cannot_be_served_says_why():
    assert all(platform.missing for platform in BUILT_IN if platform.open is None)


def test_other_distributions_add_platforms():
    assert known_platforms(BUILT_IN, [Loaded("jax", JAX)])["jax"] is JAX


def test_bad_registration_is_logged_and_left_out(caplog):
    with caplog.at_level(logging.ERROR):
        found = known_platforms(BUILT_IN, [entry("broken"), Loaded("x", 7), Loaded("python", PYTHON_AGAIN)])
    assert set(found) == {platform.name for platform in BUILT_IN}
    assert found["python"] is not PYTHON_AGAIN
    assert "platform broken cannot be imported" in caplog.text
    assert "platform x is left out: x:PLATFORM is of type int, no Platform" in caplog.text
    assert "platform python:PLATFORM is left out: another one has the name python" in caplog.text


def test_platform_that_ends_the_process_as_it_is_imported_is_left_out(caplog):
    assert set(known_platforms([], [Loaded("exits", SystemExit(5)), Loaded("jax", JAX)])) == {"jax"}
    assert "platform exits cannot be imported" in caplog.text
