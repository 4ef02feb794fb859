"""Pictures of the page, of a real server with something to see. With ``--pictures=docs/images`` they are those of the
documentation, and show two minutes of traffic; without it they go into a folder that is thrown away, as soon as there
is something on the page."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import ROW, ServerFixture, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Open = Callable[..., Any]
TRAFFIC = {"ranker": 0.004, "search": 0.006, "embedder": 0.012, "fraud": 0.06, "spelling": 0.3}
"""Seconds between two requests, on average."""
TWO_MINUTES = 125.0
"""Seconds that the plots of the documentation show, and a little more."""
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "dashboard-light": ("", {"viewport": {"width": 1280, "height": 640}, "color_scheme": "light"}),
    "dashboard-dark": ("#model=ranker&range=2m", {"viewport": {"width": 1280, "height": 1180}, "color_scheme": "dark"}),
    "dashboard-phone": ("", {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"}),
}


class Traffic:
    """Requests as people send them: at random moments, to every model."""

    def __init__(self, served: ServerFixture) -> None:
        self._served = served
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=each) for each in TRAFFIC.items()]

    def _ask(self, model: str, pause: float) -> None:
        chance = random.Random(model)
        while not self._ended.wait(chance.expovariate(1 / pause)):
            try:
                self._served.client.predict(model, {"x": ROW if chance.random() > 0.002 else ROW[:, :2]})
            except ServingError:
                continue  # a wrong shape now and then

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_pictures_of_both_themes_and_of_a_phone(viewer: Open, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    wanted = pytestconfig.getoption("--pictures")
    folder, seconds = (Path(wanted), TWO_MINUTES) if wanted else (tmp_path / "pictures", 0.0)
    folder.mkdir(exist_ok=True, parents=True)
    archives, root = TaggedArchives(24), tmp_path / "models"

    def put(model: str, version: int, broken: bool = False) -> None:
        source = archives.write(version, tmp_path / f"{model}-{version}.pt2")
        if broken:
            source.write_bytes(source.read_bytes()[:-5000])
        publish(str(source), str(root / model), version)

    for number, model in enumerate((*TRAFFIC, "summaries")):
        put(model, number + 3)
    options: dict[str, Any] = {"model_repository": str(root), "enable_batching": True}
    with serving(root, **options) as served, Traffic(served):
        time.sleep(seconds * 0.35)  # as long as the pictures are to show
        put("ranker", 4)
        wait_until(lambda: served.version("ranker") == 4, "the new version answers")
        time.sleep(seconds * 0.3)
        put("embedder", 6)
        put("ranker", 5, broken=True)
        wait_until(lambda: served.version("embedder") == 6, "the new version answers")
        time.sleep(seconds * 0.35)
        for name, (place, context) in PICTURES.items():
            with viewer(served.url, device_scale_factor=1.5 if "phone" in name else 1, **context) as seen:
                seen.open(place)
                seen.wait_text("ranker", "main")
                seen.wait(lambda: seen.page.locator("svg").count() > 2, "something is drawn")
                seen.wait(lambda: seen.page.evaluate("document.fonts.status") == "loaded", "the letters are there")
                picture = folder / f"{name}.png"
                picture.write_bytes(seen.page.screenshot())
                assert picture.stat().st_size > 10_000
