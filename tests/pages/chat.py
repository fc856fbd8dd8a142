"""A server for tests of the chat page, and what a user does there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.serve.server import DEMO
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
    "{% elif m.role == 'assistant' %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)


def long_demo(folder: Path) -> Path:
    """The demo model with a context that it was not trained for, so that an answer takes as long as
    a test needs."""
    file = open_gguf(DEMO)
    meta: dict[str, object] = {key: file.metadata.raw(key) for key in file.metadata}
    meta["llama.context_length"] = 1 << 20
    meta["tokenizer.chat_template"] = TEMPLATE
    rows = [(t.name, t.dtype.name, t.ne, bytes(t.data)) for t in file.tensors.values()]
    path = folder / "long-demo.gguf"
    write_gguf(path, meta, rows)
    return path


class Chat:
    """What a user does on the page."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector("html[data-ready]")

    def send(self, text: str, *, wait: bool = True) -> None:
        """Types a message and presses Enter."""
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.done()

    def done(self) -> None:
        """Waits until no answer is written."""
        self.until("document.querySelector('.message') && !document.querySelector('.writing')")

    def until(self, expression: str) -> None:
        """Waits until JavaScript is true. Playwright's own way needs `eval` in the page."""
        for _ in range(2400):
            if self.page.evaluate(f"!!({expression})"):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"not so within a minute: {expression}")

    def settings(self, **values: str) -> None:
        """Puts values into fields of the settings."""
        if not self.page.is_visible("#settings"):
            self.page.click("#sliders")
        for key, value in values.items():
            field = self.page.locator(f"#settings [data-key={key}]")
            group = field.locator("xpath=ancestor::details")
            if group.count() and group.get_attribute("open") is None:
                group.locator("summary").click()
            if field.evaluate("e => e.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#settings [aria-label='Close the settings']")

    def act(self, label: str, nth: int = -1) -> None:
        """Presses a button of a message; of the last that has it, if nothing else is said."""
        buttons = self.page.get_by_role("button", name=label, exact=True)
        buttons.nth(nth if nth >= 0 else buttons.count() + nth).click()

    def texts(self) -> list[str]:
        """The text of each message that is shown."""
        rows = self.page.locator(".message :is(.bubble, .markdown)").all()
        return [row.inner_text().strip() for row in rows]

    def kept(self) -> Any:
        """The conversation in the browser's database."""
        self.page.wait_for_timeout(100)
        return self.page.evaluate(
            """async () => {
              const { list, load } = await import("/page/js/store.js");
              return load((await list())[0].id);
            }"""
        )

    def give(self, name: str, data: bytes, kind: str, *, to: str = "#composer") -> None:
        """Chooses a file for a file field."""
        file = {"name": name, "mimeType": kind, "buffer": data}
        self.page.set_input_files(f"{to} input[type=file]", [file])


def conversation(*texts: str, title: str = "Imported") -> bytes:
    """A file for the page's import: these texts by turns, the user's first."""
    nodes = {}
    for i, text in enumerate(texts):
        nodes[str(i)] = {
            "role": "assistant" if i % 2 else "user",
            "parent": str(i - 1) if i else None,
            "content": text,
        }
    talk = {"title": title, "nodes": nodes, "settings": {}}
    file = {"format": "weft-conversations", "version": 1, "conversations": [talk]}
    return json.dumps(file).encode()


HOSTILE = r"""
<script>window.hit = 1</script> <img src=x onerror="window.hit = 2"> <svg onload="window.hit = 3">
<style>* { display: none }</style> <iframe srcdoc="<script>parent.hit = 4</script>"></iframe>
<a href="javascript:window.hit = 5" id="input">one</a> [two](javascript:window.hit=6)
[three](data:text/html;base64,PHNjcmlwdD4=) ![four](https://other.invalid/a.png?secret)
<img src="https://other.invalid/b.png"> <div style="position:fixed;inset:0" class="skip">over</div>
<form action="https://other.invalid"><input name=a><button formaction="/x">go</button></form>
<math><mtext><table><mglyph><style><!--</style><img title="--><img src=1 onerror=window.hit=7>">
$\href{javascript:window.hit=8}{x}$ $\includegraphics{https://other.invalid/c.png}$
$\htmlData{a=b}{z}$ $\style{position:fixed}{y}$ \(\url{javascript:window.hit=9}\)
<span class="tex" data-tex="\href{javascript:window.hit=10}{q}"></span>
<details open ontoggle="window.hit = 11"><summary onclick="window.hit = 12">s</summary>t</details>
<b onmouseover="window.hit = 13">bold</b> <p><s>a</p></s></div></article></main>
$$\def\a{\a\a}\a$$

<base href="https://other.invalid/"> <meta http-equiv="refresh" content="0;url=/health">

```"><img src=x onerror=window.hit=14>
</code></pre><img src=x onerror=window.hit=15>
```

| <img src=x onerror=window.hit=16> | b |
|---|---|
| `<script>window.hit = 17</script>` | [x](vbscript:window.hit=18) |

<a href="https://example.org/" target="_self" onclick="window.hit = 19">five</a>
[six](https://example.org/ "a\" onclick=\"window.hit=20")
"""
"""Everything that should not work."""

MARKDOWN = r"""# Least squares

The **normal equations** give $\hat\beta = (X^\top X)^{-1} X^\top y$. It costs $5 or $10.

$$\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}$$

```python
def fit(x, y):
    return x @ y  # fast
```

| method | cost |
|---|---:|
| QR | \(2np^2\) |

- [x] done
"""
