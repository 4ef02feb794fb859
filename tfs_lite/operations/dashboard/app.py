"""The routes of the dashboard: the page and its files, the feed, and the overview as JSON.

No other origin is ever allowed to read them. The page does nothing that a client could not: its buttons are the routes
of predictions and of V2's repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from tfs_lite.core.servable import ServableId
from tfs_lite.operations.dashboard.counters import Counters
from tfs_lite.operations.dashboard.details import Details
from tfs_lite.operations.dashboard.feed import WRITE_TIMEOUT, Feed
from tfs_lite.operations.dashboard.overview import Overview, dumps
from tfs_lite.operations.dashboard.page import DATA_HEADERS, Page
from tfs_lite.operations.dashboard.schemas import overview_schemas
from tfs_lite.operations.dashboard.series import DashboardSeries
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.operations.explain.snapshot import FAILING_SECONDS, Pace
from tfs_lite.server.feature import Doors
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.http.message import Request, Response, StreamResponse
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.router import GET, HEAD_TOO, About, OwnPages, Route, Tree
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.table import Scope

OVERVIEW = "/v1/overview"
ROOT = "/dashboard/"
MAX_PENDING = 32
"""Questions that wait for the thread that answers; more are refused."""
FIELDS = ("model", "range")
_EVENTS = (EVENT_TYPE.partition(";")[0],)


class Dashboard(OwnPages[str]):
    """``start`` -> requests, on the event loop -> ``close_feed`` at the beginning of the server's drain -> ``close``,
    from another thread. The target is the name of a file."""

    names = {"file": r"[\w.-]+"}  # noqa: RUF012

    def __init__(self, core: ServerCore, explain: Explain, doors: Doors) -> None:
        self._doors = doors
        self._page = Page()
        self._background = BackgroundRunner("dashboard", 1, MAX_PENDING)
        self.series = DashboardSeries(Counters(core).read)
        overview = Overview(core, explain, doors.health, self.series)
        self._details = Details(core, explain, self.series, overview)
        self._feed = Feed(overview.snapshot, dumps, self._background)

    def start(self) -> None:
        self.series.start()

    def pace_of(self, servable_id: ServableId) -> Pace | None:
        """Any thread."""
        key = servable_id.name, str(servable_id.version)
        wait, run = (self.series.last_minute(key, signal) or 0.0 for signal in ("queue", "run"))
        requests, failures = (self.series.count(key, signal, FAILING_SECONDS) for signal in ("requests", "errors"))
        return Pace(wait, run, requests, failures) if run or requests else None

    def close_feed(self) -> None:
        """Ends every feed, because the server waits for the requests in flight."""
        self._feed.close()

    def close(self) -> None:
        self.series.close()
        self._background.close()

    # The routes.

    def routes(self) -> Iterator[Route[str]]:
        about = About("dashboard", "The dashboard, a page for browsers.", "Page", ("405",), media_types=("text/html",))
        yield Route("/", HEAD_TOO, self.index, about=about, scope=Scope.OPEN)
        about = About("dashboardFile", "A file of the dashboard.", "File", ("404", "405"))
        yield Route(f"{ROOT}assets/{{file}}", HEAD_TOO, self.asset, about=about, scope=Scope.OPEN)
        about = About("dashboardFeed", "What changes, once a second.", "Feed", ("405", "503"), media_types=_EVENTS)
        yield Route(f"{ROOT}feed", GET, self.feed, about=about, scope=Scope.READ, checks_models=True)
        summary = "How every model fares: verdicts, versions, numbers; with ?model=NAME&range=10m or 4h, all about one."
        about = About("overview", summary, "Overview", ("400", "405", "429"))
        yield Route(OVERVIEW, GET, self.overview, True, about, scope=Scope.READ, checks_models=True)

    def index(self, request: Request, target: str) -> Response:
        return self._page.index(request)

    def asset(self, request: Request, target: str) -> Response:
        return self._page.asset(request, target)

    async def feed(self, request: Request, target: str) -> StreamResponse:
        self._feed.admit()
        first = event(dumps({"may": self._names(request)}))
        headers = {**DATA_HEADERS, "x-accel-buffering": "no"}
        return StreamResponse(
            self._feed.watch(first, request.grant), 200, EVENT_TYPE, headers, write_timeout=WRITE_TIMEOUT
        )

    async def overview(self, request: Request, target: str) -> Response:
        fields = request.fields(FIELDS)
        may = self._names(request)
        model, span, paths = fields.get("model"), fields.get("range", "10m"), self._doors.manages(request)

        def answer() -> bytes:
            return dumps({"may": may, **self._details.answer(model, span, paths, request.grant)})

        return Response(await self._background.run(answer), 200, JSON.media_type, DATA_HEADERS)

    def _names(self, request: Request) -> list[str]:
        """The scopes of the client, for the page."""
        return sorted(scope.name.lower() for scope in self._doors.may(request) if scope is not Scope.OPEN)

    # The rest of an Api.

    def schemas(self) -> Mapping[str, Tree]:
        return overview_schemas()

    def owns(self, path: str) -> bool:
        return path in ("/", OVERVIEW) or path.startswith(ROOT)

    def target(self, names: Mapping[str, str]) -> str:
        return unquote(names.get("file", ""))
