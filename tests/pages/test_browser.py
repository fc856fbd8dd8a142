"""What the fixtures of these tests notice, themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("<script>console.error('broken')</script>", "console error: broken"),
        ("<script>missing()</script>", "threw: missing is not defined"),
        ("<img alt='' src='http://other.invalid/a.png'>", "asked another host: http://other"),
        ("<p>fine</p>", None),
    ],
)
def test_problems_of_a_page_are_noticed(
    open_page: Callable[..., Any], watch: Any, tmp_path: Path, page: str, problem: str | None
) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><title>t</title>{page}", encoding="utf-8")
    open_page(file).wait_for_timeout(50)
    found, watch.problems[:] = list(watch.problems), []
    if problem is None:
        assert found == []
    else:
        assert any(line.startswith(problem) for line in found), found


def test_a_picture_is_kept(
    open_page: Callable[..., Any], picture: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html><title>t</title><p>fine</p>", encoding="utf-8")
    path = picture(open_page(file, width=360), "of-the-fixture")
    assert path.read_bytes().startswith(b"\x89PNG")
    path.unlink()


def test_barriers_are_found(
    open_page: Callable[..., Any], barriers: Callable[..., list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    start = "<!doctype html><html lang=en><title>t</title><main><h1>t</h1>"
    file.write_text(f"{start}<button></button>", encoding="utf-8")
    page = open_page(file)
    assert [line.split()[0] for line in barriers(page)] == ["button-name"]
    file.write_text(f"{start}<button>fine</button></main>", encoding="utf-8")
    page.reload()
    assert barriers(page) == []
