"""`Prefixes`: what a writer keeps of texts beside the cache, and what a new text takes up again.

A text leaves the cache when another one needs its sequence or its cells. Then it is copied to host
memory (`PrefixCache`), and to a folder if there is one (`PrefixFiles`). Models whose texts cannot
go back to any of their tokens have checkpoints at some: where messages end, where the prompt ends,
where an answer ended, and after every so many tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.llm.cache.events import EventDetails
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.prefix_cache import PrefixCache, common_length
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.cache.snapshots import (
    LEAST,
    Checkpoint,
    KeptText,
    checkpoint_bytes,
    keep_text,
    needs_checkpoints,
    put_text,
    read_checkpoint,
    text_bytes,
    tokens_of,
)
from weft.llm.compute.context import Context
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.llm.cache.prefix_files import PrefixFiles, Stored
from weft.llm.engine.request import Request
from weft.tables import count_text

SPACING = 256
"""Minimum number of tokens between checkpoints at the ends of messages, except the last."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """Numbers and bytes of texts and checkpoints beside the cache, at one moment."""

    nbytes: int
    """Bytes of host memory that kept texts and checkpoints take."""
    most_bytes: int
    """Maximum number of these bytes (`cache_ram`)."""
    n_texts: int
    n_checkpoints: int
    """Number of states to which a text can go back."""
    n_evicted: int
    """Texts and checkpoints evicted since the start."""
    n_restored: int
    """Texts that came back to the cache, from host memory or the folder."""
    n_tokens_restored: int
    """Number of restored tokens, which were not computed again."""
    n_written: int = 0
    """Texts written to the folder (`cache_dir`)."""
    n_read: int = 0
    """Texts read from the folder."""
    n_refused: int = 0
    """Damaged files in the folder."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A text beside the cache that begins like a prompt."""

    n: int
    """Number of tokens that can be taken up."""
    text: KeptText | None
    """None: the text is in the folder."""
    stored: Stored | None
    checkpoint: Checkpoint | None
    """The state after `n` tokens, if the cache needs one and it is in memory."""


class Prefixes:
    """Keeps texts and checkpoints of the sequences of a context."""

    def __init__(self, context: Context, options: PrefixOptions, ends: Collection[int]) -> None:
        """`ends` are the tokens that end a message. Raises ContextError for a folder that cannot be
        used."""
        self._context = context
        self.options = options
        self._ends = np.array(sorted(ends), np.int64)
        config = context.model.config
        self._works = config.causal and not config.n_encoder and not context.embeddings
        most = options.ctx_checkpoints * context.cache.n_seq_max
        self.memory = PrefixCache(options.cache_ram if self._works else 0, most)
        self.files: PrefixFiles | None = None
        """The folder; None: there is none."""
        if options.cache_dir is not None and self._works:
            from weft.llm.compute.fingerprint import files_of

            self.files = files_of(context, options.cache_dir, options.cache_dir_size)
        self._plan = context.plan
        self.n_restored = 0
        """Texts that were taken up from host memory or the folder."""
        self.n_tokens_restored = 0
        """The tokens of these that were not computed again."""

    @property
    def use(self) -> PrefixUse:
        """The numbers and bytes now."""
        m, f = self.memory, self.files
        return PrefixUse(
            nbytes=m.nbytes, most_bytes=m.most_bytes, n_texts=m.n_texts,
            n_checkpoints=m.n_checkpoints, n_evicted=m.n_evicted, n_restored=self.n_restored,
            n_tokens_restored=self.n_tokens_restored, n_written=f.n_written if f else 0,
            n_read=f.n_read if f else 0, n_refused=f.n_refused if f else 0,
        )  # fmt: skip

    @property
    def cache(self) -> KVCache:
        """The cache whose texts are kept."""
        return self._context.cache

    @property
    def needed(self) -> bool:
        """True if a text can go back to tokens with a checkpoint alone."""
        return needs_checkpoints(self.cache)

    # ---- checkpoints ----

    def stops(self, prompt: Sequence[int], start: int) -> list[int]:
        """The numbers of tokens after which a checkpoint is wanted, while a prompt is computed from
        token `start` on; the last one is its end, which all prompts reach."""
        n, every = len(prompt), self.options.checkpoint_every
        if not self.needed or not self.memory.most_checkpoints or not self.memory.most_bytes:
            return []
        ends = np.flatnonzero(np.isin(np.asarray(prompt, np.int64), self._ends)) + 1
        ends = ends[(ends > start) & (ends < n)].tolist()
        stops = set(range(every, n, every)) if every else set()
        last = start
        for end in ends:
            if end == ends[-1] or end - last >= SPACING:
                stops.add(end)
                last = end
        if not ends and n - start > LEAST:
            stops.add(n - 1)  # the same prompt can be answered again
        else:
            stops.add(n)
        return sorted(stop for stop in stops if stop > start)

    def checkpoints(self, key: bytes, prompt: Tokens) -> list[Checkpoint]:
        """The checkpoints of the beginning of a prompt, the longest last."""
        self._follow()
        return self.memory.checkpoints(key, prompt) if self.needed else []

    def note(self, seq: int, tokens: Sequence[int] | Tokens) -> None:
        """Keeps the state of a sequence that holds exactly these tokens, as a checkpoint."""
        cache, ids = self.cache, np.asarray(tokens, np.int32)
        self._follow()
        key = self._key(seq)
        if not self.needed or self.memory.has_checkpoint(key, ids):
            return
        n = len(ids)
        whole = cache.window is None or cache.window.has_all(cache, seq, n)
        if whole and checkpoint_bytes(cache, n) <= self.memory.most_bytes:
            about = f"to a checkpoint after {n} tokens"
            details = EventDetails(nbytes=checkpoint_bytes(cache, n), about=about)
            with suppress(MemoryError):  # then it is computed again
                with cache.noting("kept", (seq,), details):
                    checkpoint = read_checkpoint(cache, seq)
                self.memory.add_checkpoint(key, ids, checkpoint)

    # ---- texts ----

    def keep(self, seq: int) -> None:
        """Copies the text of a sequence that is about to lose tokens to where they are kept."""
        self._follow()
        cache, key = self.cache, self._key(seq)
        if not self.memory.most_bytes and self.files is None:
            return
        tokens = tokens_of(cache, seq)
        n = len(tokens)
        if n < LEAST:
            return
        if n == cache.pos_max(seq) + 1:
            self.note(seq, tokens)
        at = self.memory.checkpoints(key, tokens)
        for checkpoint in at:
            self.memory.has_checkpoint(key, tokens[: checkpoint.n])
        if self.needed and not at:
            return  # nothing could take it up
        known = self.memory.covers(key, tokens)
        if known and self.files is None:
            return
        nbytes = text_bytes(cache, n)
        if nbytes > self.memory.most_bytes and self.files is None:
            return
        folder = " and the folder" if self.files is not None else ""
        where = f"to host memory{folder} ({n} tokens)"
        try:
            with cache.noting("kept", (seq,), EventDetails(nbytes=nbytes, about=where)):
                text = keep_text(cache, seq, key, n)
        except MemoryError:  # then it is computed again
            return
        if not known:
            self.memory.add_text(text)
        if self.files is not None and int(tokens.max()) < self._context.model.config.n_vocab:
            self.files.write_soon(text, at, self._made_with(key))

    def find(self, key: bytes, prompt: Tokens, more_than: int) -> tuple[Found | None, int]:
        """The text beside the cache that can give a prompt most of its tokens, if more than so
        many; and the length of the longest beginning that one has in common with it."""
        self._follow()
        checkpoints = self.checkpoints(key, prompt)
        text, same = self.memory.longest(key, prompt)
        best: Found | None = None
        if text is not None:
            checkpoint = _last(checkpoints, same)
            n = (checkpoint.n if checkpoint else 0) if self.needed else same
            if n > more_than:
                best = Found(n, text, None, checkpoint)
        for stored in self.files.texts(self._made_with(key)) if self.files is not None else ():
            n = common_length(stored.tokens, prompt)
            same = max(same, n)
            if self.needed:
                n = max((at for at in stored.checkpoints if at <= n), default=0)
            # what is read must be worth it
            if n > more_than and n >= (best.n if best else more_than) + n // 32 + 1:
                best = Found(n, None, stored, None)
        return best, same

    def restore(self, found: Found, seq: int, key: bytes) -> int:
        """Puts a text into an empty sequence, for which there must be free cells; returns the
        number of tokens, 0 if its file turns out to be damaged."""
        where = "from host memory" if found.stored is None else "from the folder"
        with self.cache.noting("restored", (seq,), EventDetails(about=where)):
            n = self._restore(found, seq, key)
        self.n_restored += n > 0
        self.n_tokens_restored += n
        return n

    def _restore(self, found: Found, seq: int, key: bytes) -> int:
        n, text, checkpoint = found.n, found.text, found.checkpoint
        if found.stored is not None and self.files is not None:
            read = self.files.read(found.stored, key)
            if read is None:
                return 0
            text, checkpoints = read
            checkpoint = _last(checkpoints, n)
            if self.needed:
                n = checkpoint.n if checkpoint else 0
            for one in checkpoints:
                self.memory.add_checkpoint(key, text.tokens[: one.n], one)
            self.memory.add_text(text)
        if text is None or not n:
            return 0
        put_text(self.cache, seq, text, n, checkpoint)
        if found.text is not None:
            self.memory.covers(key, text.tokens)
        if checkpoint is not None:
            self.memory.has_checkpoint(key, text.tokens[:n])
        return n

    def close(self) -> None:
        """Waits until all texts are in the folder."""
        if self.files is not None:
            self.files.close()

    def _key(self, seq: int) -> bytes:
        """Tells the adapters and control vectors of a sequence from others; empty: no such."""
        return self.cache.scale_key(seq)

    def _made_with(self, key: bytes) -> str:
        """Tells the adapters and control vectors `key` from others in files; empty: there are
        none."""
        own, left = {}, np.frombuffer(key, np.float32)
        for name, rows in self.cache.scales.items():
            own[name], left = np.split(left, [rows.shape[1]])
        return " ".join(self._context.model.scale_prints(own).values())

    def _follow(self) -> None:
        """Forgets everything if the context has changed to other devices, which round otherwise."""
        if self._context.plan is not self._plan:
            self._plan = self._context.plan
            self.memory.clear()
            self.close()
            self.files = None


def _last(checkpoints: Sequence[Checkpoint], most: int) -> Checkpoint | None:
    """The longest checkpoint of at most `most` tokens."""
    return next((c for c in reversed(checkpoints) if c.n <= most), None)


def why_not_reused(request: Request, context: Context, n: int, same: int) -> str:
    """Says why only `n` tokens of a prompt are taken over; empty if those are all that it has in
    common with a text that is kept. `same` is the number of tokens that it has in common."""
    if not request.reuse:
        return "cache_prompt is False"
    if request.prompt_logprobs is not None:
        return "log-probabilities of the prompt are wanted, so all of it is computed"
    if n and n >= same:
        return ""
    config = context.model.config
    if config.n_encoder or not config.causal:
        return "each token sees those behind it, so the prompt is computed as a whole"
    if not same:
        others = (
            " and was computed with the same adapters and control vectors"
            if context.cache.scales
            else ""
        )
        return f"no text that is kept begins like it{others}"
    what = "recurrent states" if context.cache.states is not None else "small sliding windows"
    at = f"the last one before that is at token {n}" if n else "there is none before that"
    return (
        f"it begins with {count_text(same, 'token')} of a text that is kept, but {what} "
        f"go back to checkpoints only, and {at}"
    )
