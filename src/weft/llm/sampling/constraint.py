"""Constrains text to a grammar, a JSON schema or a regular expression, with llguidance.

llguidance computes which tokens may come next, from the bytes of the vocabulary's tokens. It
compiles a constraint in another process first (`weft.llm.sampling.trial`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from weft.bounds import CONSTRAINT_BYTES
from weft.errors import ContextError
from weft.extras import how_to_install
from weft.llm.sampling.compile_constraint import LIMITS
from weft.llm.sampling.gbnf import token_names
from weft.llm.sampling.params import SamplingParams
from weft.llm.sampling.schema import held_schema
from weft.llm.sampling.trial import NoCompilerError, short_reason, tried
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import TokenType

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KINDS = ("grammar", "json_schema", "regex")

_MAX_NAMES = 10_000
"""Maximum number of tokens that a grammar names; looking each up takes a few microseconds."""
_COMPILED = 4
"""Maximum number of compiled constraints kept for a vocabulary: the choices of a request share
one."""

_shared: WeakKeyDictionary[Tokenizer, _Shared] = WeakKeyDictionary()


class Constraint:
    """Knows which tokens may come next in one text."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        """Raises ContextError if llguidance is not installed, and for a constraint that is
        malformed, exceeds a bound of `weft.bounds` or that no text can satisfy; BusyError if too
        many others are being compiled."""
        _require_llguidance()
        self._what = _kind(params)
        self._n_vocab = tokenizer.n_vocab
        shared = _shared.get(tokenizer)
        if shared is None:
            shared = _shared[tokenizer] = _Shared(tokenizer)
        self._matcher = shared.matcher(_source(params, shared.about, tokenizer))
        if self._matcher.is_error():
            raise ContextError(f": {short_reason(self._matcher.get_error())}", argument=self._what)
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
        reason = short_reason(message)
        if "too many" in reason or "fuel" in reason or "limit" in reason:
            reason = (
                f"it is too large to follow ({reason}); make its repetitions and lengths smaller"
            )
        return ContextError(f": {reason}", argument=self._what)

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
                ": no token of this vocabulary can go on to a text that satisfies it",
                argument=self._what,
            )
        return ids

    def accept(self, id_: int) -> None:
        """Appends token `id_`; raises ContextError if it may not come here."""
        if not 0 <= id_ < self._n_vocab or not self._matcher.consume_token(id_):
            if "lexer error" in self._matcher.get_error():
                raise self._failed(self._matcher.get_error())
            raise ContextError(f": token {id_} does not satisfy it here", argument=self._what)
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
        _require_llguidance()
        _source(params, None, None)


def _kind(params: SamplingParams) -> str:
    return next(name for name in _KINDS if getattr(params, name) is not None)


def _source(
    params: SamplingParams, about: dict[str, Any] | None, tokenizer: Tokenizer | None
) -> str:
    """The constraint as a grammar for llguidance, which another process could compile."""
    kind = _kind(params)
    text = getattr(params, kind)
    try:
        text = text if isinstance(text, str) else json.dumps(text)
    except RecursionError:
        raise ContextError(": it is nested too deeply", argument=kind) from None
    except (TypeError, ValueError) as error:
        raise ContextError(f": {short_reason(str(error))}", argument=kind) from None
    if kind == "json_schema" and len(text) <= CONSTRAINT_BYTES:
        text = _held(text)
    tokens = _named_tokens(text, tokenizer) if kind == "grammar" else {}
    return tried(kind, text, about, tokens)


def _named_tokens(text: str, tokenizer: Tokenizer | None) -> dict[str, int]:
    """The ids of the tokens that a grammar in llama.cpp's notation names, as `<think>`; without a
    tokenizer, any id stands for them. A name that is not exactly one token is left out."""
    found = {}
    names = token_names(text)
    if len(names) > _MAX_NAMES:
        raise ContextError(
            f": it has {len(names)} names of tokens; {_MAX_NAMES} are allowed", argument="grammar"
        )
    for name in names:
        ids = [0]
        if tokenizer is not None:
            ids = tokenizer.encode(name, add_special=False, parse_special=True, continues=True)
        if len(ids) == 1:
            found[name] = int(ids[0])
    return found


def _held(text: str) -> str:
    """The text of a schema as `held_schema` makes it; a text that is not an object stays as it is,
    since the compiler says what is wrong with it."""
    try:
        try:
            schema = json.loads(text)
        except ValueError:
            return text
        return json.dumps(held_schema(schema)) if isinstance(schema, dict) else text
    except RecursionError:
        raise ContextError(": it is nested too deeply", argument="json_schema") from None
    except ContextError as error:
        raise ContextError(f": {error}", argument="json_schema") from None


def _require_llguidance() -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError:
        raise NoCompilerError(
            f"`grammar`, `json_schema` and `regex` need llguidance; {how_to_install('grammar')}"
        ) from None


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


class _Shared:
    """The state that the constraints of a vocabulary share: its trie, which takes a moment to
    build, and the latest constraints, compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = _Wrapped(tokenizer)
        self._trie: LLTokenizer = LLTokenizer(TokenizerWrapper(wrapped), eos_token=wrapped.ends)
        special = {str(id_): wrapped.tokens[id_] for id_ in wrapped.special_token_ids}
        self.about: dict[str, Any] = {
            "n_vocab": len(wrapped.tokens),
            "end": wrapped.ends,
            "special": {id_: token.decode("latin-1") for id_, token in special.items()},
        }
        """The vocabulary in the form for the process that tries constraints."""
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def matcher(self, source: str) -> LLMatcher:
        """A matcher at the start of a text."""
        with self._lock:
            known = self._compiled.get(source)
            if known is not None:
                self._compiled.move_to_end(source)
                return known.deep_copy()
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**LIMITS)
        made = LLMatcher(self._trie, source, log_level=0, limits=limits)
        if made.is_error():
            return made
        with self._lock:
            self._compiled[source] = made
            if len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
            return made.deep_copy()
