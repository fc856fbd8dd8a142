"""Constrains text to a grammar, a JSON schema or a regular expression, with llguidance.

llguidance computes which tokens may come next, from the bytes of the vocabulary's tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.sampling.params import SamplingParams
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import TokenType

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Constraint", "check_constraint"]

# White space between the parts of JSON: one space, or a line break and an indent. Models that may
# write any amount of white space sometimes never stop.
_WHITE_SPACE = r" |\n[ \t]{0,20}"
_KINDS = ("grammar", "json_schema", "regex")
_FUEL = 400_000
"""Most expressions that llguidance may build for a constraint, about a second of work."""
_SHORT = 600
"""Most characters of a library's message that are passed on."""

_tokenizers: WeakKeyDictionary[Tokenizer, LLTokenizer] = WeakKeyDictionary()


class Constraint:
    """Knows which tokens may come next in one text."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        """Raises ContextError if llguidance is not installed, and for a constraint that is
        malformed or that no text can satisfy."""
        guidance = _llguidance()
        self._what = _kind(params)
        self._n_vocab = tokenizer.n_vocab
        self._matcher = guidance.LLMatcher(
            _shared_tokenizer(tokenizer),
            _source(params, guidance),
            log_level=0,
            limits=guidance.LLParserLimits(initial_lexer_fuel=_FUEL),
        )
        if self._matcher.is_error():
            raise ContextError(f"{self._what}: {_reason(self._matcher.get_error())}")
        self._has_end = bool(tokenizer.vocab.eog)
        self.done = False
        """True if the text is complete and only an end token can follow."""
        self._note_end()
        self._begin(self.allowed())  # raises ContextError if no token can come first

    def _begin(self, ids: NDArray[np.intp]) -> None:
        """Tries a first token; raises ContextError if the constraint is too large for that."""
        trial = self._matcher.deep_copy()
        if len(ids) and not trial.consume_token(int(ids[0])) and trial.is_error():
            raise self._failed(trial.get_error())

    def _failed(self, message: str) -> ContextError:
        """An error with the library's message, and advice if it is about the library's limits."""
        reason = _reason(message)
        if "too many" in reason or "fuel" in reason or "limit" in reason:
            reason = (
                f"it is too large to follow ({reason}); make its repetitions and lengths smaller"
            )
        return ContextError(f"{self._what}: {reason}")

    def allowed(self) -> NDArray[np.intp]:
        """The ids that may come next, ascending, end tokens included if the text may end here.

        Raises ContextError if there is none, and if the constraint exceeds llguidance's limits."""
        matcher = self._matcher
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        error = matcher.get_error() if matcher.is_error() else ""
        stuck = error.startswith("NoExtension")
        if error and not stuck:
            raise self._failed(error)
        ids = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: self._n_vocab])
        if (stuck and not matcher.is_accepting()) or not (len(ids) or self.done):
            raise ContextError(
                f"{self._what}: no token of this vocabulary can go on to a text that satisfies it"
            )
        return ids

    def accept(self, id_: int) -> None:
        """Appends token `id_`; raises ContextError if it may not come here."""
        if not 0 <= id_ < self._n_vocab or not self._matcher.consume_token(id_):
            if "lexer error" in self._matcher.get_error():
                raise self._failed(self._matcher.get_error())
            raise ContextError(f"{self._what}: token {id_} does not satisfy it here")
        self._note_end()

    def _note_end(self) -> None:
        matcher = self._matcher
        if not self._has_end and matcher.is_accepting() and not matcher.is_stopped():
            matcher.compute_bitmask()  # the matcher notices some ends only then
        self.done = matcher.is_stopped() and not matcher.is_error()


def check_constraint(params: SamplingParams) -> None:
    """Checks a constraint without a vocabulary. Raises ContextError if it is malformed or
    llguidance is not installed."""
    if params.constrained:
        guidance = _llguidance()
        wrong = guidance.LLMatcher.validate_grammar(_source(params, guidance))
        if wrong:
            raise ContextError(f"{_kind(params)}: {_reason(wrong)}")


def _kind(params: SamplingParams) -> str:
    return next(name for name in _KINDS if getattr(params, name) is not None)


def _source(params: SamplingParams, guidance: Any) -> str:
    """The constraint as a grammar for llguidance."""
    try:
        if params.regex is not None:
            source: str = guidance.LLMatcher.grammar_from_regex(params.regex)
        elif params.grammar is not None:
            source = guidance.grammar_from("grammar", params.grammar)
        else:
            schema = params.json_schema
            text = schema if isinstance(schema, str) else json.dumps(schema)
            parsed = json.loads(text)  # its errors name the position
            if not isinstance(parsed, dict):
                raise ValueError(f"a schema is an object, not {text:.40}")
            source = guidance.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_pattern": _WHITE_SPACE}
            )
        return source
    except (TypeError, ValueError) as e:
        raise ContextError(f"{_kind(params)}: {_reason(str(e))}") from None


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ContextError(
            "grammar, json_schema and regex need llguidance; install it with "
            "pip install 'weft[grammar]'"
        ) from None
    return llguidance


class _Wrapped:
    """A tokenizer with the attributes that llguidance expects."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocab, n = tokenizer.vocab, tokenizer.n_vocab
        hidden = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED)
        special = set(np.flatnonzero(np.isin(vocab.types, hidden)).tolist()) | vocab.eog
        # llguidance needs an end token: if the model has none, one is added behind the last token
        self.ends = sorted(vocab.eog) or [n]
        self.eos_token_id = vocab.eos if vocab.eos in vocab.eog else self.ends[0]
        self.bos_token_id = vocab.bos
        self.tokens = [
            vocab.tokens[id_] if id_ in special else tokenizer.piece(id_) for id_ in range(n)
        ]
        if not vocab.eog:
            self.tokens.append(b"<end>")
            special.add(n)
        self.special_token_ids = sorted(special)
        self._longest = max(map(len, self.tokens))
        self._by_bytes = {
            token: id_ for id_, token in enumerate(self.tokens) if token and id_ not in special
        }
        self._tokenizer = ref(tokenizer)  # weak, because `_tokenizers` has it as a key

    def __call__(self, data: bytes) -> list[int]:
        """Tokens for text that the constraint leaves no choice about; their bytes are `data`."""
        tokenizer = self._tokenizer()
        try:
            assert tokenizer is not None
            ids = tokenizer.encode(data.decode(), add_special=False, continues=True)
        except UnicodeDecodeError:
            ids = []
        if b"".join([self.tokens[id_] for id_ in ids]) == data:
            return ids
        return self._greedy(data)  # the tokenizer has normalized the text

    def _greedy(self, data: bytes) -> list[int]:
        """Takes the longest token each time, until there is none."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is None:
                break
            ids.append(self._by_bytes[data[at:end]])
            at = end
        return ids


def _shared_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """The trie of a vocabulary, which takes a moment to build and is shared by all texts."""
    trie = _tokenizers.get(tokenizer)
    if trie is None:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = _Wrapped(tokenizer)
        trie = LLTokenizer(TokenizerWrapper(wrapped), eos_token=wrapped.ends)
        _tokenizers[tokenizer] = trie
    return trie


def _reason(message: str) -> str:
    """A library's message without the dump of its state."""
    text = message.split("\n<state>")[0].strip()
    return text if len(text) <= _SHORT else text[:_SHORT] + " ..."
