"""`weft stop` unloads a model of a server."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.running import Key, Url, ask
from weft.errors import WeftError


def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name as weft ps shows it.")],
    url: Url = "http://127.0.0.1:8080",
    api_key: Key = None,
) -> None:
    """Unload a model of a server. The next request for it loads it again."""
    before = _loaded(url, api_key)
    ask(url, api_key, "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    left = _loaded(url, api_key)
    if name.removesuffix(":latest") in left:
        raise WeftError(
            f"the server keeps {name}: it serves this model alone; Ctrl-C there ends it"
        )
    if left and left == before:  # a server of one model answers any name
        raise WeftError(f"the server has not loaded {name}; weft ps shows {', '.join(left)}")
    say(f"{name} is unloaded")


def _loaded(url: str, api_key: str | None) -> list[str]:
    """The names of the models that the server at `url` has loaded."""
    models = ask(url, api_key, "/api/ps").get("models") or []
    return [str(model.get("name")).removesuffix(":latest") for model in models]
