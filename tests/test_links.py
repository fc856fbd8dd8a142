"""Every link of the pages leads to a file that exists, and to a heading of it."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from docs.site.markdown_links import changed, headings, links, slug

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"build", "dist", ".venv", ".git", "node_modules"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if SKIPPED.isdisjoint(path.relative_to(ROOT).parts)
)


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page. Headings of the same name have none that is sure."""
    named = Counter(map(slug, headings(path.read_text("utf-8"))))
    return {name for name, count in named.items() if count == 1}


def test_every_link_leads_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for target in links(page.read_text("utf-8")):
            if re.match(r"https?://|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            where = f"{page.relative_to(ROOT)}: {target}"
            if not path.exists():
                wrong.append(f"{where}: there is no such file")
            elif anchor and (path.suffix != ".md" or anchor not in anchors(path)):
                wrong.append(f"{where}: no heading there has this anchor alone")
    assert not wrong, "\n".join(wrong)


def test_there_are_links() -> None:
    found = [target for page in PAGES for target in links(page.read_text("utf-8"))]
    assert len(PAGES) > 50 and len(found) > 400


def test_every_page_of_docs_is_in_the_navigation() -> None:
    listed = re.findall(
        r"^ +- (?:[^:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M
    )
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Step by step", "step-by-step"),
        ("Contexts: `llm/planning/`, `llm/cache/`", "contexts-llmplanning-llmcache"),
        ("Types of [the cache](x.md)", "types-of-the-cache"),
        ("torch_models.py", "torch_modelspy"),
    ],
)
def test_anchors_are_those_of_code_hosts(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_links_in_code_are_none() -> None:
    page = (
        "[a](b.md), `[c](d.md)`\n\n    [e](f.md)\n\n```\n[g](h.md)\n# i\n```\n\n"
        "- j\n\n    o\n    [k](l.md#m)\n\n# n\n"
    )
    assert links(page) == ["b.md", "l.md#m"]
    assert headings(page) == ["n"]
    assert changed(page, str.upper).count(".MD") == 2
