"""The program that compiles constraints in a `weft.worker.Worker`, before this process does.

llguidance recurses into what a constraint nests, so that a deep one ends the process, and some
short ones take hours. The worker has a small stack. The program imports nothing of weft but
`gbnf.py` beside it. It is asked with

    {"kind", "text", "vocabulary": {"n_vocab", "end": [...], "special": {id: text}} or null,
     "tokens": {name: id}, the tokens that a grammar in llama.cpp's notation names}

and answers with the grammar for llguidance.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 400_000,
    "max_items_in_row": 20_000,
    "step_max_items": 50_000,
}
"""The maximum numbers of llguidance: expressions built for a constraint (about a second of work),
alternatives at one place of a text, and places looked at for the next token (about a third of a
second)."""
# White space between the parts of JSON: one space, or a line break and an indent. Models that may
# write any amount of white space sometimes never stop.
WHITE_SPACE = r" |\n[ \t]{0,20}"
_STEPS = 16
"""Number of tokens for which a constraint is followed."""
_VOCABULARIES = 4
"""Maximum number of vocabularies kept."""


class _Bytes:
    """A vocabulary that has a token for every byte, and the special tokens of the model's."""

    def __init__(self, about: dict[str, Any]) -> None:
        n_vocab, special = about["n_vocab"], about["special"]
        self.tokens = [b""] * max(n_vocab, 512)
        for id_, text in special.items():
            self.tokens[int(id_)] = text.encode("latin-1")
        free = (id_ for id_ in range(len(self.tokens)) if str(id_) not in special)
        self._ids = dict(zip(range(256), free, strict=False))
        for byte, id_ in self._ids.items():
            self.tokens[id_] = bytes([byte])
        self.special_token_ids = sorted(map(int, special))
        self.eos_token_id = about["end"][0]
        self.bos_token_id = None

    def __call__(self, data: bytes) -> list[int]:
        return [self._ids[byte] for byte in data if byte in self._ids]


class Compiler:
    """Compiles constraints, one after another."""

    def __init__(self, guidance: Any, gbnf: Any) -> None:
        self._guidance = guidance
        self._gbnf = gbnf
        self._tokenizers: dict[str, Any] = {}

    def answer(self, message: dict[str, Any]) -> str:
        """The grammar for llguidance of a constraint. Raises ValueError if it is malformed."""
        try:
            source = self._source(message["kind"], message["text"], message)
            wrong = self._tried(source, message["vocabulary"])
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if wrong:
            raise ValueError(wrong)
        return source

    def _source(self, kind: str, text: str, message: dict[str, Any]) -> str:
        """The constraint as a grammar for llguidance."""
        guidance = self._guidance
        if kind == "regex":
            source: str = guidance.LLMatcher.grammar_from_regex(text)
        elif kind == "grammar":
            if self._gbnf.is_gbnf(text):
                ends = (message["vocabulary"] or {"end": ()})["end"]
                text = self._gbnf.lark_of(text, message["tokens"], ends)
            source = guidance.LLMatcher.grammar_from_lark(text)
        else:
            schema = json.loads(text)  # its errors name the position
            if not isinstance(schema, dict):
                raise ValueError(f"a schema is an object, not {text:.40}")
            source = guidance.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_pattern": WHITE_SPACE}
            )
        return source

    def _tried(self, source: str, vocabulary: dict[str, Any] | None) -> str:
        """Compiles a grammar and follows it for some tokens; says what is wrong with it."""
        guidance = self._guidance
        limits = guidance.LLParserLimits(**LIMITS)
        if vocabulary is None:
            wrong: str = guidance.LLMatcher.validate_grammar(source)
            if wrong:
                return wrong
        about = vocabulary or {"n_vocab": 512, "end": [511], "special": {"511": "<end>"}}
        tokenizer = self._tokenizer(about)
        matcher = guidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            # without a vocabulary, its tokens may be those that the grammar names
            return "" if vocabulary is None else str(matcher.get_error())
        for _ in range(_STEPS):
            bits = matcher.compute_bitmask()
            first = next((i for i, byte in enumerate(bits) if byte), None)
            if first is None or matcher.is_error():
                break
            byte = bits[first]
            matcher.consume_token(8 * first + (byte & -byte).bit_length() - 1)
            matcher.deep_copy()
        return ""  # what the true vocabulary makes of its tokens is seen there

    def _tokenizer(self, about: dict[str, Any]) -> Any:
        key = json.dumps(about)
        tokenizer = self._tokenizers.pop(key, None)
        if tokenizer is None:
            wrapped = self._guidance.TokenizerWrapper(_Bytes(about))
            tokenizer = self._guidance.LLTokenizer(wrapped, eos_token=about["end"])
        self._tokenizers[key] = tokenizer
        if len(self._tokenizers) > _VOCABULARIES:
            del self._tokenizers[next(iter(self._tokenizers))]
        return tokenizer


def answerer() -> Callable[[dict[str, Any]], str]:
    """The function that answers messages."""
    import llguidance

    return Compiler(llguidance, importlib.import_module("gbnf")).answer
