"""The site of docs/ (`make site`), opened from disk as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.part("pages"),
    pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs (`make site`)"),
]
ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>"
)
BROKEN = """() => {
  const words = [];
  let lines = 0;
  for (const code of document.querySelectorAll("article :not(pre) > code")) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    let before = "", top = null;
    for (let text; (text = texts.nextNode());) {
      for (let i = 0; i < text.data.length; ++i) {
        range.setStart(text, i);
        range.setEnd(text, i + 1);
        const [box] = range.getClientRects();
        if (box && box.width) {
          if (top !== null && box.top > top + 4) {
            ++lines;
            if (/[a-z0-9]/i.test(before) && /\\w/.test(text.data[i])) words.push(code.textContent);
          }
          top = box.top;
        }
        before = text.data[i];
      }
    }
  }
  return {lines, words};
}"""
"""Counts the lines that begin within code, and lists code whose line ends within a word."""
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; mkdocs is strict, so that a link to nothing ends it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 60
    assert [found for page in pages for found in LOADED.findall(page.read_text("utf-8"))] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_every_page_of_docs_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()
    for page in site.rglob("*.html"):
        assert "](" not in re.sub(r"<(code|pre)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.S)


def too_wide(page: Any, paths: list[Path], width: int) -> list[str]:
    """The pages that would have to be moved sideways."""
    wide = []
    for path in paths:
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(path.name)
    return wide


def test_no_page_is_wider_than_a_phone(site: Path, open_page: Open) -> None:
    assert not too_wide(open_page(width=360), sorted(site.rglob("*.html")), 360)


def test_code_breaks_behind_the_parts_of_a_name(site: Path, open_page: Open) -> None:
    page = open_page(width=360)
    for name in ("add-a-model", "apis", "cuda", "good-first-issues", "sampling"):
        page.goto((site / f"{name}.html").as_uri())
        broken = page.evaluate(BROKEN)
        assert broken["lines"] > 0 and broken["words"] == [], name


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1440])
def test_pages_of_each_kind_fit(
    site: Path, open_page: Open, picture: Callable[..., Path], width: int, dark: bool
) -> None:
    page = open_page(width=width, dark=dark)
    for name in ("devices", "cpu-graphs", "cli", "tutorials/backend", "index"):
        assert not too_wide(page, [site / f"{name}.html"], width)
        picture(page, f"site-{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}")
    scheme = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
    assert scheme == ("slate" if dark else "default")


def test_the_search_finds_pages(site: Path, open_page: Open) -> None:
    page = open_page(site / "tutorials" / "index.html", width=1440)
    page.locator("[data-md-component=search-query]").click()
    page.keyboard.type("barriers")
    found = page.locator(".md-search-result__item a").first
    found.wait_for()
    found.click()
    page.wait_for_url(re.compile(r"threads\.html|cpu-graphs\.html"))


def test_the_front_page_has_three_ways_in(site: Path, open_page: Open) -> None:
    page = open_page(site / "index.html", width=1440)
    ways = page.locator(".grid.cards > ul > li")
    assert ways.count() == 3 and page.locator("article img").count() == 1
    for number, name in enumerate(("chat", "agent", "pytorch")):
        assert f"tutorials/{name}.html" in ways.nth(number).locator("a").first.get_attribute("href")


def test_the_theme_can_be_chosen(site: Path, open_page: Open) -> None:
    page = open_page(site / "index.html", width=1440)
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.get_by_title("Dark colours").click()
    assert page.evaluate(scheme) == "slate"
