"""The metrics of all loaded models, each with the name of its model as a label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from starlette.types import ASGIApp, Message

from weft.serve.many.fleet import Fleet

__all__ = ["about_fleet", "asked", "joined"]

OF_SERVER = "weft_http_"
"""Beginning of the metrics of requests, which the server counts and not its models."""
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.*)")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


async def asked(app: ASGIApp, path: str) -> str:
    """The body that an application answers a GET with, asked from inside of this process."""
    parts: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(b"host", b"localhost")], "client": None, "server": None,
        "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return b"".join(parts).decode()


def joined(texts: Mapping[str, str], kind: str = "model") -> str:
    """The metrics of several models, by their names, as one text: every metric once, with a label
    `kind` in each line."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in texts.items():
        label = f'{kind}="{_escaped(model)}"'
        for row in text.splitlines():
            if OF_SERVER in row:
                continue
            if row.startswith("#"):
                name = row.split(" ")[2]
                if row not in heads.setdefault(name, []):
                    heads[name].append(row)
            elif match := _SAMPLE.fullmatch(row):
                name, labels, value = match[1], match[2], match[3]
                family = name if name in heads else _SUFFIX.sub("", name)
                both = f"{label},{labels}" if labels else label
                samples.setdefault(family, []).append(f"{name}{{{both}}} {value}")
    lines = [line for name, rows in samples.items() for line in (*heads.get(name, ()), *rows)]
    return "\n".join(lines) + "\n" if lines else ""


def about_fleet(fleet: Fleet) -> str:
    """The metrics of the fleet itself."""
    return "\n".join(_lines(_metrics(fleet))) + "\n"


def _metrics(fleet: Fleet) -> Iterator[tuple[str, str, str, float]]:
    loaded = [p for p in fleet.places.values() if p.state == "loaded"]
    yield "models", "gauge", "Models that can be loaded.", len(fleet.places)
    yield "models_loaded", "gauge", "Models that are loaded.", len(loaded)
    yield "models_bytes", "gauge", "Planned bytes of loaded models.", fleet.nbytes
    if fleet.budget is not None:
        yield "models_bytes_limit", "gauge", "Most bytes of loaded models.", fleet.budget
    yield "models_waiting", "gauge", "Requests that wait for a model.", fleet.n_waiting
    yield "model_loads_total", "counter", "Models loaded.", fleet.n_loads
    yield "model_unloads_total", "counter", "Models unloaded.", fleet.n_unloads


def _lines(metrics: Iterable[tuple[str, str, str, float]]) -> Iterator[str]:
    for name, kind, meaning, value in metrics:
        yield f"# HELP weft_{name} {meaning}"
        yield f"# TYPE weft_{name} {kind}"
        yield f"weft_{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
