"""`weft ps` shows the models that a server has loaded."""

from __future__ import annotations

from weft.cli.console import say
from weft.cli.running import Key, Url, ask
from weft.tables import size_text, text_table


def ps(url: Url = "http://127.0.0.1:8080", api_key: Key = None) -> None:
    """Show the models that a server has loaded. The sizes are those that their plans have."""
    models = ask(url, api_key, "/api/ps").get("models") or []
    if not models:
        say("no model is loaded; the next request for one loads it")
        return
    cells = []
    for model in models:
        size, on_devices = int(model.get("size") or 0), int(model.get("size_vram") or 0)
        until = str(model.get("expires_at") or "")
        cells.append((
            str(model.get("name")).removesuffix(":latest"), size_text(size), size_text(on_devices),
            str(model.get("context_length") or ""),
            "always" if until > "2200" else until[:16].replace("T", " "),
        ))  # fmt: skip
    columns = ("name", "size", "on devices", "context", "until")
    for line in text_table(columns, cells, ("size", "on devices", "context")):
        print(line.rstrip())
