"""Pages in Chromium.

`open_page(URL)` gives a page in a browser context of its own. A test fails at its end if the page
wrote an error to the console, threw one, or asked another host for something. Pictures of pages
stay in `build/pages`. Without Chromium these tests are skipped.

All files share one Chromium and one server of the demo model, so each names
`xdist_group("browser")`. `make test` loads each page, walks through its main functions, and tries
what strangers may do; every width and theme, and large reports, are the part "pages".
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fuzz.pages import CHROMIUM
from tests.lasting import Lasting
from tests.pages.chat import Chat, long_demo
from tests.serve.in_process import Server

sync_api = pytest.importorskip("playwright.sync_api")
Browser, Page = sync_api.Browser, sync_api.Page

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "pages"
"""Where pictures of pages stay; git ignores it."""
NAMES = CHROMIUM
LOCAL = ("data", "blob", "about", "file", "devtools")
"""Schemes of addresses that leave no machine."""


def beyond(url: str, hosts: frozenset[str]) -> bool:
    """True if a page that asks for `url` asks another host than `hosts`."""
    parts = urlsplit(url)
    return parts.scheme not in LOCAL and parts.hostname not in hosts


class Watch:
    """Notes what a page must not do."""

    def __init__(self, hosts: frozenset[str]) -> None:
        self.hosts = hosts
        self.problems: list[str] = []
        self.expected: list[str] = []
        """Parts of messages that a test expects; they are no problem."""

    def follow(self, page: Page) -> None:
        """Notes errors and requests of a page from now on."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._note(f"threw: {error}"))
        page.on("request", self._request)

    def _console(self, message: object) -> None:
        if message.type in ("error", "warning"):  # type: ignore[attr-defined]
            self._note(f"console {message.type}: {message.text}")  # type: ignore[attr-defined]

    def _request(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if beyond(url, self.hosts):
            self._note(f"asked another host: {url[:200]}")

    def _note(self, problem: str) -> None:
        if not any(part in problem for part in self.expected):
            self.problems.append(problem)


@contextmanager
def _chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium (Debian: chromium)")
    with sync_api.sync_playwright() as driver:
        # a container's root has no sandbox, and its /dev/shm may be too small for pictures
        started = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@contextmanager
def _server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        model = long_demo(Path(folder))
        with Server(model, "-c", 16384, "--parallel", 2, "--threads", 1) as started:
            yield started


_CHROMIUM = Lasting("browser", _chromium)
_SERVER = Lasting("browser", _server)


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Browser:
    """Chromium, without a window."""
    return _CHROMIUM.get(request)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """What the pages of a test must not do; fails the test at its end if one did."""
    watch = Watch(frozenset(("127.0.0.1", "localhost", "::1")))
    yield watch
    assert not watch.problems, "\n".join(watch.problems)


@pytest.fixture
def open_page(browser: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Opens a page: `open_page(url, width=1280, height=800, dark=False)`; more options are those of
    `Browser.new_context`. Requests to other hosts are refused, beside being a failure."""
    contexts = []

    def opened(
        url: str | Path | None = None, *, width: int = 1280, height: int = 800, dark: bool = False,
        **options: object,
    ) -> Page:  # fmt: skip
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            reduced_motion="reduce", **options,
        )  # fmt: skip
        context.route(lambda asked: beyond(asked, watch.hosts), lambda route: route.abort())
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        watch.follow(page)
        if url is not None:
            page.goto(url.resolve().as_uri() if isinstance(url, Path) else url)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def picture() -> Callable[[Page, str], Path]:
    """Keeps a picture of a page as `build/pages/NAME.png`."""

    def kept(page: Page, name: str, *, whole: bool = False) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        part = path.with_suffix(f".{os.getpid()}.png")  # tests run in several processes
        page.screenshot(path=part, full_page=whole)
        return part.replace(path)

    return kept


@pytest.fixture
def barriers() -> Callable[[Page], list[str]]:
    """What axe-core finds serious or critical on a page, a line each: levels A and AA of WCAG,
    and its own best practices."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def found(page: Page) -> list[str]:
        results = axe.run(page).response
        assert results["passes"]
        return [
            f"{row['id']} ({row['impact']}): {node['html'][:160]} {node['any'][:1]}"
            for row in results["violations"]
            if row["impact"] in ("serious", "critical")
            for node in row["nodes"]
        ]

    return found


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Server:
    """The demo model, with room for long answers."""
    return _SERVER.get(request)


@pytest.fixture
def chat(server: Server, open_page: Callable[..., Page]) -> Chat:
    """The chat page of `server`."""
    return Chat(open_page(server.url))
