"""`Batch`, the tokens of one call, and its checks. `decoding.py` cuts it into ubatches."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import ContextError
from weft.llm.cache.cells import Cells
from weft.llm.config import ModelConfig
from weft.records import dataclass

Outputs = Literal["last", "all"] | ArrayLike
"""The tokens whose rows are returned: the last one, all, or those where an array [n] is true."""


@dataclass(slots=True, eq=False)
class Batch:
    """The arguments of `Context.decode` as one object, with rows in place of tokens if wanted."""

    tokens: ArrayLike | None = None
    """Ids [n]."""
    positions: ArrayLike | None = None
    """Positions in their sequences [n]; None: each after the last token of its first sequence."""
    seqs: Sequence[Sequence[int]] | None = None
    """The sequences of each token; None: sequence 0."""
    outputs: Outputs = "last"
    embeddings: ArrayLike | None = None
    """Float rows [n, n_embd] instead of tokens. The first layer reads them in place of (scaled)
    token embeddings; they come from an image encoder or a learned prompt, for example."""
    types: ArrayLike | None = None
    states: ArrayLike | None = None
    """For a model that drafts, states that it reads beside the tokens, f32 [n, width]: its own, or
    its target's."""


@dataclass(slots=True, eq=False)
class Ubatch:
    """The checked tokens of a call, or a part that is computed together; all arrays are [n]."""

    tokens: NDArray[Any]
    """Ids i32 [n], or rows f32 [n, n_embd]."""
    positions: NDArray[np.int32]
    first: NDArray[np.int32]
    """The first sequence of each token."""
    members: NDArray[np.bool_]
    """members[s, i]: whether sequence s has token i; [n_seq_max, n]."""
    outputs: NDArray[np.bool_]
    """Whether the row of each token is wanted."""
    rows: NDArray[np.intp]
    """Row of the result for each token whose `outputs` is true."""
    types: NDArray[np.int32]
    """The type of each token."""
    n_seqs: int = 1
    """For recurrent models: the number of sequences, which have the same number of tokens each and
    follow one another."""
    ids: NDArray[np.int32] | None = None
    """Ids of the tokens, if `tokens` are rows of an image; see `InputRows`."""
    planes: NDArray[np.int32] | None = None
    """Rotary positions [n, 4], where they differ from `positions`; see `InputRows.planes`."""
    together: bool = False
    """True if these rows all see one another, whatever their positions."""
    at: NDArray[np.intp] | None = None
    """The places of the tokens in the call; None: they are in order."""
    states: NDArray[np.float32] | None = None
    """For a model that drafts, the states that it reads beside the tokens [n, width]."""
    reads_first: bool = False
    """True if these tokens have the graph of what is read first."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_rows(self) -> bool:
        """True if `tokens` are rows instead of ids."""
        return self.tokens.ndim == 2

    def take(self, part: NDArray[np.intp]) -> Ubatch:
        """The tokens with the numbers `part`."""
        return Ubatch(
            self.tokens[part],
            self.positions[part],
            self.first[part],
            self.members[:, part],
            self.outputs[part],
            self.rows[part],
            self.types[part],
            ids=None if self.ids is None else self.ids[part],
            planes=None if self.planes is None else self.planes[part],
            at=part if self.at is None else self.at[part],
            states=None if self.states is None else self.states[part],
            reads_first=self.reads_first,
        )


def one_token(batch: Batch) -> tuple[int, int | None, int] | None:
    """The token, position (None: not given) and sequence of a batch with a single token of one
    sequence whose row is wanted; None for any other batch, which goes through `checked`."""
    tokens: Any = batch.tokens
    positions: Any = batch.positions
    seqs: Any = batch.seqs
    match tokens, positions, seqs, batch.outputs:
        case [_], None | [_], None | [[_]], "last" | "all" | [True]:
            token, position = tokens[0], None if positions is None else positions[0]
            seq = 0 if seqs is None else seqs[0][0]
        case _:
            return None
    if type(token) is not int or type(seq) is not int:
        return None
    if position is not None and (type(position) is not int or not 0 <= position < 1 << 30):
        return None
    return (token, position, seq) if batch.types is batch.states is None else None


def checked(
    batch: Batch, config: ModelConfig, cells: Cells, n_batch: int, known: Container[int] = ()
) -> Ubatch:
    """Converts a batch to arrays; raises ContextError for values that cannot be computed.

    `known` are ids beyond the vocabulary that stand for rows."""
    tokens = _tokens(batch, config, known)
    n = len(tokens)
    if n > n_batch:
        raise ContextError(f"{n} tokens in one call, but `n_batch` is {n_batch}")
    first, members = _sequences(batch.seqs, n, cells.n_seq_max)
    positions = _positions(batch.positions, first, members, cells)
    n_learned = config.n_positions
    if n_learned and positions.max() >= n_learned:
        raise ContextError(
            f"position {positions.max()}, but the model has learned 0..{n_learned - 1} only; use "
            "shorter texts"
        )
    wanted = _wanted(batch.outputs, n)
    types = _types(batch.types, n, config)
    rows = np.cumsum(wanted) - 1
    states, fused = _states(batch.states, config, n)
    return Ubatch(
        tokens, positions, first, members, wanted, rows, types, states=states, reads_first=fused
    )


def _states(
    given: ArrayLike | None, config: ModelConfig, n: int
) -> tuple[NDArray[np.float32] | None, bool]:
    """The states that a model that drafts reads, and whether they are its target's, where these
    have a graph of their own."""
    drafts = config.drafts
    if given is None or drafts is None:
        return None, False
    fused = drafts.fuses and np.ndim(given) == 2 and np.shape(given)[1] == drafts.n_read
    states = _rows(given, drafts.n_in(fused=fused) or drafts.n_read)
    if len(states) != n:
        raise ContextError(f"there are {len(states)} states for {n} tokens; give one for each")
    return states, fused


def require_encoded(batch: Ubatch, cells: Cells, n_vocab: int) -> None:
    """Raises ContextError for tokens of a decoder without a prompt that the encoder has read, and
    for logits of a prompt. Ids from `n_vocab` on are of prompts."""
    if batch.is_rows:
        raise ContextError("an encoder reads tokens; rows cannot stand in place of them")
    prompt = batch.tokens >= n_vocab
    if batch.outputs[prompt].any():
        raise ContextError("an encoder gives no logits of its prompt; ask for those of the answer")
    for seq in np.unique(batch.first[~prompt]):
        held = (cells.members[seq] & (cells.tokens >= n_vocab)).any()
        if not held and not (prompt & (batch.first == seq)).any():
            raise ContextError(
                f"sequence {seq} has no prompt for the encoder to read; begin it with the ids that "
                "`Context.beginning` gives"
            )


def _tokens(batch: Batch, config: ModelConfig, known: Container[int]) -> NDArray[Any]:
    if batch.embeddings is not None:
        if batch.tokens is not None:
            raise ContextError("a batch has tokens or embeddings, not both")
        rows = _rows(batch.embeddings, config.n_embd)
        return np.pad(rows, ((0, 0), (0, config.row_width - config.n_embd)))
    ids = np.atleast_1d(np.asarray(batch.tokens))
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise ContextError("tokens must be a list of at least one token id")
    low, high = ids.min(), ids.max()
    odd = ids[ids >= config.n_vocab].tolist() if high >= config.n_vocab else ()
    if low < 0 or not all(id_ in known for id_ in odd):
        raise wrong_ids(config.n_vocab, low, high)
    return ids.astype(np.int32)


def wrong_ids(n_vocab: int, low: int, high: int) -> ContextError:
    """The error for token ids from `low` to `high`, some of which are none of `n_vocab` tokens."""
    got = f"{low}" if low == high else f"{low}..{high}"
    return ContextError(f"token ids are 0..{n_vocab - 1}, got {got}")


def _rows(embeddings: ArrayLike, n_embd: int) -> NDArray[np.float32]:
    try:
        rows = np.asarray(embeddings, np.float32)
    except (TypeError, ValueError):
        rows = np.empty(0, np.float32)
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != n_embd:
        raise ContextError(
            f"embeddings must be rows of {n_embd} numbers, at least one; their shape is "
            f"{list(np.shape(embeddings)) if rows.size else 'none'}"
        )
    return rows


def _sequences(
    seqs: Sequence[Sequence[int]] | None, n: int, n_seq_max: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    members = np.zeros((n_seq_max, n), np.bool_)
    first = np.zeros(n, np.int32)
    if seqs is None:
        members[0] = True
        return first, members
    if len(seqs) != n or not all(seqs):
        raise ContextError(f"seqs must name at least one sequence for each of {n} tokens")
    if all(len(names) == 1 for names in seqs):
        own = np.array([names[0] for names in seqs])
        if own.dtype.kind == "i" and own.min() >= 0 and own.max() < n_seq_max:
            first[:] = own
            members[own, np.arange(n)] = True
            return first, members
    for i, names in enumerate(seqs):
        if min(names) < 0 or max(names) >= n_seq_max:
            raise ContextError(
                f"sequences {list(names)} of token {i} are not in 0..{n_seq_max - 1}; make "
                "`n_seq_max` larger"
            )
        members[list(names), i] = True
        first[i] = names[0]
    return first, members


def _positions(
    numbers: ArrayLike | None, first: NDArray[np.int32], members: NDArray[np.bool_], cells: Cells
) -> NDArray[np.int32]:
    """The positions of tokens, those that nobody gave behind the last of their first sequence."""
    n = len(first)
    if numbers is None:
        if (first == first[0]).all():
            start = cells.pos_max(int(first[0])) + 1
            return np.arange(start, start + n, dtype=np.int32)
        named = np.flatnonzero(members.any(axis=1)).tolist()
        follows = {seq: cells.pos_max(seq) + 1 for seq in named}
        positions = np.empty(n, np.int32)
        for i, seq in enumerate(first.tolist()):
            positions[i] = follows[seq]
            for other in np.flatnonzero(members[:, i]).tolist():
                follows[other] = max(follows[other], follows[seq] + 1)
        return positions
    try:
        positions = np.atleast_1d(np.asarray(numbers, np.int32))
    except (OverflowError, ValueError, TypeError):
        positions = np.empty(0, np.int32)
    if positions.shape != (n,) or positions.min() < 0 or positions.max() >= 1 << 30:
        raise ContextError(
            f"positions must be {n} numbers from 0, one for each token, and below 2^30"
        )
    return positions


def _types(given: ArrayLike | None, n: int, config: ModelConfig) -> NDArray[np.int32]:
    if given is None:
        return np.zeros(n, np.int32)
    types = np.atleast_1d(np.asarray(given))
    most = max(config.n_token_types - 1, 0)
    if types.shape != (n,) or types.dtype.kind not in "iu" or types.min() < 0 or types.max() > most:
        raise ContextError(f"types must be {n} numbers of 0 to {most}, one for each token")
    return types.astype(np.int32)


def _wanted(outputs: Outputs, n: int) -> NDArray[np.bool_]:
    wanted = np.zeros(n, np.bool_)
    if isinstance(outputs, str):
        if outputs not in ("last", "all"):
            raise ContextError(f'outputs is {outputs!r}; it must be "last", "all" or an array')
        wanted[-1 if outputs == "last" else slice(None)] = True
        return wanted
    try:
        wanted[:] = np.asarray(outputs, np.bool_)
    except ValueError:
        raise ContextError(f"outputs must be {n} truth values, one for each token") from None
    return wanted
