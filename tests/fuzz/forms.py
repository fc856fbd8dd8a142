"""Forms with files, damaged: the server keeps the file or says why not."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

from tests.fuzz.mutate import mutate_bytes, mutate_text
from tests.fuzz.requests import BODIES, MODEL, TEXT, call, check, unspoilt
from tests.fuzz.rounds import Round
from weft.serve import ServeOptions, Service, create_app

NATIVE = False

PIECES = ("--x", "--", "\r\n", "\r", "\n\n", "; ", 'name="', 'filename="', "filename*=utf-8''%ff",
          "../", "\\", "\0", "boundary=", "=" * 300, "Content-Type: text/html\r\n")  # fmt: skip
HEAD = 'Content-Disposition: form-data; name="{}"'


def form(rng: random.Random) -> tuple[bytes, bytes]:
    """A body and its type."""
    boundary = rng.choice(("x", "-" * 60, "b" * 70, "é"))
    fields = [("purpose", "batch"), ("file", '{"a": 1}\n'), ("model", "m"), ("a", "b")]
    parts = []
    for name, value in rng.sample(fields, rng.randrange(1, 5)) * rng.choice((1, 1, 1, 20)):
        head = HEAD.format(name) + ('; filename="f.jsonl"' if name == "file" else "")
        parts.append(f"--{boundary}\r\n{head}\r\n\r\n{value * rng.choice((1, 1, 3000))}\r\n")
    text = "".join(parts) + f"--{boundary}--\r\n"
    kind = f"multipart/form-data; boundary={boundary}"
    if rng.randrange(3):
        text = mutate_text(text, rng, (*PIECES, f"\r\n--{boundary}"))
    if rng.randrange(6) == 0:
        kind = "multipart/form-data" + mutate_text(kind[19:], rng, PIECES)
    data = bytearray(text.encode())
    if data and rng.randrange(3) == 0:
        mutate_bytes(data, rng)
    return bytes(data), kind.encode("latin-1", "replace")


def prepare(folder: Path) -> Round:
    """A server that keeps files."""
    options = ServeOptions(files_dir=folder / "files", max_body=1 << 18)
    app = create_app(Service(MODEL, options, n_threads=1))
    loop = asyncio.Runner()
    number = 0

    def one(rng: random.Random) -> str:
        nonlocal number
        body, kind = form(rng)
        path = rng.choice(("/v1/files", "/v1/files", "/v1/audio/transcriptions", TEXT))
        status, headers, answer = loop.run(call(app, path, body, rng.choice((1, 2, 50)), kind))
        number += 1
        if number % 32 == 0:
            unspoilt(loop.run(call(app, TEXT, json.dumps(BODIES[0][1]).encode())))
        assert {p.suffix for p in (folder / "files").glob("file-*")} <= {""}
        return "unsupported" if status == 501 else check(status, headers, answer)

    return one
