"""What mkdocs does besides its own work when it makes the site.

Pages link to files beside docs/, as in a checkout. The site has a page of each such file, below
`source/`, and the links lead there. Long names in code break behind their parts on narrow screens.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from markdown_links import changed, headings, links, slug
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"\[[\w/-]+\.md\]\(([^()\s#]+)(#[^()\s]*)?\)")
_BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
_CODE = re.compile(r"<code>([^<]+)</code>")
_WHOLE = 22
"""Characters of a word of code that stays in one line."""
_END_OF_PART = re.compile(r"(?<=\w[/_=:(])(?=\w)|(?<=[A-Za-z)][.,])(?=[A-Za-z]\w{3})")
_LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".toml": "toml"}


def on_config(config: Any) -> Any:
    """Gives headings the anchors that they have in a checkout."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for every file beside docs/ that a page links to."""
    waiting = [file.src_uri for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        text = _text(page)
        for path in {_path(page, target) for target in links(text)}:
            if path and not path.startswith("docs/") and (ROOT / path).exists():
                new = _page_of(path)
                if files.get_file_from_path(new) is None:
                    files.append(File.generated(config, new, content=_text(new)))
                    waiting.append(new)
    return files


def on_post_build(config: Any) -> None:
    """Leaves out the page that servers show for what they lack: its links begin at their root."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Lets long paths and names in lines of code break behind `/`, `_` and the like, and short ones
    nowhere. The search, which has read the page before, knows nothing of it."""
    blocks = _BLOCK.split(output)
    blocks[::2] = [_CODE.sub(_with_breaks, text) for text in blocks[::2]]
    return "".join(blocks)


def _with_breaks(code: re.Match[str]) -> str:
    text = html.unescape(code[1])
    if len(text) <= _WHOLE and " " not in text:
        return f'<code class="whole">{code[1]}</code>'
    return _END_OF_PART.sub("<wbr>", code[0])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files beside docs/ into links to their pages."""
    here = page.file.src_uri

    def turned(target: str) -> str:
        path = _path(here, target)
        if path is None or not (ROOT / path).exists():
            return target
        anchor = "#" + target.partition("#")[2] if "#" in target and path.endswith(".md") else ""
        return posixpath.relpath(_page_of(path), posixpath.dirname(here)) + anchor

    return _with_titles(changed(markdown, turned), here)


def _with_titles(markdown: str, here: str) -> str:
    """Links whose text is the name of a page, such as `[using.md](using.md)`, get its title."""

    def put(found: re.Match[str]) -> str:
        page = posixpath.normpath(posixpath.join(posixpath.dirname(here), found[1]))
        named = headings(_text(page)) if page.endswith(".md") else []
        return f"[{named[0]}]({found[1]}{found[2] or ''})" if named else found[0]

    return _NAMED.sub(put, markdown)


def _path(page: str, target: str) -> str | None:
    """The path in the repository of what a page of the site links to; None: it is not a file."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None
    return posixpath.normpath(posixpath.join(_folder(page), target.partition("#")[0]))


def _folder(page: str) -> str:
    """The folder in the repository of the file of a page."""
    inside = page.removeprefix("source/")
    return posixpath.dirname(inside if inside != page else f"docs/{page}")


def _page_of(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def _text(page: str) -> str:
    """The Markdown of a page, in a block of code where the file is not Markdown."""
    if not page.startswith("source/"):
        return (ROOT / "docs" / page).read_text("utf-8")
    path = page.removeprefix("source/")
    if (ROOT / path).is_file():
        return (ROOT / path).read_text("utf-8")
    path = path.removesuffix(".md")
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if each.name[0] not in "._")
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names), ""])
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text('utf-8')}````\n"
