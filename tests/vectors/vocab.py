"""The golden vocabularies: tokenizer-only GGUF files with cases, as FORMAT.md section 6 says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.vectors.result import Options, Result
from weft.errors import WeftError
from weft.frontends.gguf import open_gguf
from weft.llm.tokenizers.tokenizer import MODELS, Tokenizer

__all__ = ["run"]

SEPARATOR = "\n__ggml_vocab_test__\n"


def run(folder: Path, options: Options) -> Iterator[Result]:
    """Results of every case of every vocabulary in `folder`."""
    folder = Path(folder)
    for vocab, entry in json.loads((folder / "manifest.json").read_text(encoding="utf-8")).items():
        for name, body in _cases(folder, vocab, entry):
            if not options.wants(name):
                continue
            if isinstance(body, str):
                yield Result(name, "skipped", body)
                continue
            try:
                wrong = body()
            except WeftError as error:
                wrong = f"{type(error).__name__}: {error}"
            yield Result(name, "failed" if wrong else "passed", wrong)


Body = Callable[[], str] | str
"""A check that says what is wrong; or why there is none."""


def _cases(folder: Path, vocab: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, Body]]:
    path = folder / entry["gguf"]
    kind = open_gguf(path).get_str("tokenizer.ggml.model", "")
    known = kind in MODELS
    unknown = f"tokenizer model {kind} is not known"
    tokenizer = Tokenizer.from_gguf(open_gguf(path)) if known else None

    cases = folder / f"{vocab}.cases.json"
    if cases.exists():
        for i, case in enumerate(json.loads(cases.read_text(encoding="utf-8"))["cases"]):
            yield (
                f"{vocab}/cases/{i}",
                (lambda c=case: _case(tokenizer, c)) if tokenizer else unknown,
            )
    texts, ids = folder / f"{entry['gguf']}.inp", folder / f"{entry['gguf']}.out"
    if texts.exists() and ids.exists():
        lines = ids.read_bytes().decode().split("\n")
        for i, text in enumerate(texts.read_bytes().decode().split(SEPARATOR)):
            want = [int(x) for x in lines[i].split()]
            yield (
                f"{vocab}/upstream/{i}",
                (lambda t=text, w=want: _upstream(tokenizer, t, w)) if tokenizer else unknown,
            )
    pieces = folder / f"{vocab}.pieces.json"
    if pieces.exists():
        for token, special, plain in json.loads(pieces.read_text(encoding="utf-8")):
            yield (
                f"{vocab}/pieces/{token}",
                (lambda t=token, s=special, p=plain: _piece(tokenizer, t, s, p))
                if tokenizer
                else unknown,
            )


def _case(tokenizer: Tokenizer, case: Mapping[str, Any]) -> str:
    text, ids = case["text"], case["ids"]
    checks = [
        ("ids", tokenizer.encode(text, add_special=False), ids),
        ("ids_special", tokenizer.encode(text), case["ids_special"]),
        (
            "ids_parse",
            tokenizer.encode(text, add_special=False, parse_special=True),
            case["ids_parse"],
        ),
        ("detok", tokenizer.decode_bytes(ids, clean_spaces=True).hex(), case["detok_hex"]),
    ]
    if "detok_parse_hex" in case:
        got = tokenizer.decode_bytes(case["ids_parse"], special=True, clean_spaces=True).hex()
        checks.append(("detok_parse", got, case["detok_parse_hex"]))
    # The pieces of a stream, joined, are the text; only the leading space may differ.
    stream = tokenizer.stream()
    whole = "".join(map(stream.push, ids)) + stream.flush()
    checks.append(("stream", whole.strip(" "), tokenizer.decode(ids).strip(" ")))
    wrong = [f"{what}: {got}, not {want}" for what, got, want in checks if got != want]
    return "; ".join([f"{text!r}", *wrong]) if wrong else ""


def _upstream(tokenizer: Tokenizer, text: str, want: list[int]) -> str:
    got = tokenizer.encode(text, add_special=False)
    return "" if got == want else f"{text!r}: {got}, not {want}"


def _piece(tokenizer: Tokenizer, token: int, special: str, plain: str) -> str:
    got = tokenizer.piece(token, special=True).hex(), tokenizer.piece(token).hex()
    return "" if got == (special, plain) else f"{got}, not {(special, plain)}"
