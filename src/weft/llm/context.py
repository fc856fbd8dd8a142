"""`Context`: tokens in, logits out, over one cache and one compiled graph.

A call is cut into ubatches of at most `n_ubatch` tokens. The graph is built and compiled once, for
the largest sizes; each ubatch fills the inputs and runs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.base import Backend
from weft.backends.cpu import ThreadOptions
from weft.compile import compile, lower_plan
from weft.errors import AbortedError, ContextError
from weft.execute import ArenaPool, Progress, Session
from weft.llm.config import Pooling
from weft.llm.counters import Counters, MemoryUse
from weft.llm.model import Model
from weft.llm.prepare import prepare
from weft.llm.regime import Regime
from weft.llm.state import load_state, save_state
from weft.program import Program
from weft.schedule import Policy, Profile

__all__ = ["Context", "Counters", "MemoryUse"]


class Context:
    """An inference state: cells of the cache, and the session that computes on them."""

    def __init__(
        self,
        model: Model,
        n_ctx: int | None = None,
        *,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_outputs: int | None = None,
        n_seq_max: int | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        flash: bool | None = None,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        threads: ThreadOptions | None = None,
        devices: Sequence[str | Backend] | None = None,
        activations: Literal["native", "f32", "bf16"] = "native",
        embeddings: bool = False,
        n_gpu_layers: int | None = None,
        place: Mapping[str, str] | None = None,
        plan: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        fit: bool = False,
        memory: Mapping[str, int] | None = None,
        policy: Policy = "ggml",
        profile: Profile | str | os.PathLike[str] | None = None,
        repack: bool | None = None,
        progress: Progress | None = None,
        rewrites: Sequence[str] | None = None,
    ) -> None:
        """Plans and allocates everything that `decode` will ever need.

        `n_ctx`: cells of the cache (default: the length the model was trained for). `n_batch`: most
        tokens of one `decode` (default: n_ctx). `n_ubatch`: most tokens computed together (default:
        512). `n_outputs`: most logits rows computed together (default: n_ubatch). `n_seq_max`: most
        sequences (default: 1). `type_k`, `type_v`: of the cache (default: f16). `flash`: attention
        as one op (default). `activations`: "f32" keeps them in float32 where kernels would rather
        quantize them; "bf16" computes prompts with f16 and f32 weights in bf16, faster and rounded
        to 8 bits, where the processor has bf16 dot products. `n_threads`, `n_threads_batch`:
        threads of the cpu device for single tokens, and for more (default: physical cores, and as
        many); `threads`: those and where and how they run, see `weft.ThreadOptions`. `embeddings`:
        `decode` gives the rows that logits would be made of; models without logits (BERT) always
        do.

        Where things are: `devices`, names or backends, highest priority first (default: cpu).
        `n_gpu_layers`: how many layers, from the last to the first, live on the first device with
        memory of its own; one more than there are layers takes the output too (default: all).
        `place`: glob over weight names -> device, the first match wins. `fit`: as many layers as
        fit. `memory`: device -> bytes that plans may use there. `plan`: a plan file, or what it
        holds, to follow. `policy` "cost": the least time that `profile` predicts (a
        `weft.schedule.Profile`, a file of `weft calibrate`, or the name of one that weft has).

        `repack`: weights that only matmuls read are brought into the layout that the kernels like
        best (default); False: all are used in place, mapped from the file. Contexts of one model
        share what is repacked. `progress(done, total)` is called with bytes while that goes on.
        `rewrites`: names of the fusions to use (default: see `weft.compile`).

        Raises ContextError for an argument out of range, ScheduleError for a placement that cannot
        be, FormatError for a plan of another model, OutOfMemoryError before anything large is
        allocated."""
        counts = {"n_threads": n_threads, "n_threads_batch": n_threads_batch}
        for name, value in {"n_batch": n_batch, **counts}.items():
            if value is not None and not 1 <= value < 1 << 31:
                raise ContextError(f"{name} is {value}; it must be 1 or more")
        self.plan = prepare(
            model, n_ctx=n_ctx, n_ubatch=n_ubatch, n_outputs=n_outputs, n_seq_max=n_seq_max,
            type_k=type_k, type_v=type_v, flash=flash, devices=devices, threads=threads,
            **counts, activations=activations, embeddings=embeddings, n_gpu_layers=n_gpu_layers,
            place=place, plan=plan, fit=fit, memory=memory, policy=policy, profile=profile,
            repack=repack,
            rewrites=rewrites,
        )  # fmt: skip
        """Where everything is, and why."""
        self.model = model
        self.n_ctx = self.plan.options.n_ctx
        self.n_batch = self.n_ctx if n_batch is None else n_batch
        self.n_ubatch = self.plan.options.n_ubatch
        self.n_outputs = self.plan.options.n_outputs
        self.counters = Counters(self.plan.graphs_built, reserves=self.plan.graphs_built)
        self.embeddings = self.plan.options.embeddings
        """Whether rows are embeddings instead of logits."""
        self._width = model.config.n_embd if self.embeddings else model.config.n_vocab
        self.cache = self.plan.cache
        self.cache.allocate()
        programs = [lower_plan(regime.plan) for regime in self.plan.regimes]
        self.program: Program = programs[-1]
        self._arenas = ArenaPool()
        self._arenas.reserve(*programs)
        self._arenas.load(*programs, progress=progress)
        self.regimes = [
            Regime(regime.max_tokens, program, self._arenas)
            for regime, program in zip(self.plan.regimes, programs, strict=True)
        ]
        """One for each range of batch sizes that devices treat differently; the largest last."""
        self._session = self.regimes[-1].session
        needs = self.plan.needs()
        self.memory = MemoryUse(
            weights=sum(n.weights for n in needs),
            cache=sum(n.cache for n in needs),
            compute=sum(n.compute for n in needs),
            repacked=sum(sum(n.repacked.values()) for n in needs),
            scratch=max(split.work_bytes for program in programs for split in program.splits),
        )
        self._stop = False
        counted = [b for b in self.program.devices if hasattr(b, "n_threads_batch")]
        one = max((b.n_threads for b in counted), default=0)
        many = max((b.n_threads_batch for b in counted), default=0)
        # threads for one token, and for more; 0: all that there are
        self._threads = (0, 0) if one == many else (one, many)
        self._threads_used = 0
        self._values = {"n_tokens": 1, "n_kv": 1, "n_outputs": 1}
        self._shift: Session | None = None
        self._window = model.config.window
        self._alibi = model.config.alibi_bias > 0

    def decode(
        self,
        tokens: ArrayLike,
        positions: ArrayLike | None = None,
        *,
        seqs: Sequence[Sequence[int]] | None = None,
        outputs: Literal["last", "all"] | ArrayLike = "last",
    ) -> NDArray[np.float32]:
        """Appends tokens to the cache and computes logits [rows, n_vocab], or embeddings [rows,
        n_embd].

        `tokens`: ids [n]. `positions` [n]: where in their sequences (default: after the last of
        sequence 0). `seqs`: the sequences each token belongs to (default: 0); it sees the cells of
        the first. `outputs`: which tokens' logits come back, in the order of `tokens`: the last's,
        all, or those where an array [n] is true.

        Raises ContextError for ids or positions out of range, when the cache has too few free
        cells, and for more than a ubatch where tokens see those behind them; AbortedError after
        `abort`. On any failure, Ctrl-C included, the cache is as it was."""
        self._stop = False
        for regime in self.regimes:
            regime.session.clear_abort()
        batch = self._batch(tokens, positions, seqs, outputs)
        if self.cache.has_shift:
            self._rotate_keys()
        parts = self._split(batch)
        if len(parts) > 1 and not self.model.config.causal:
            raise ContextError(
                f"{len(batch.tokens)} tokens must be computed at once, but n_ubatch is "
                f"{self.n_ubatch} and n_outputs {self.n_outputs}; make them larger"
            )
        cells = self.cache.find_free(len(batch.tokens))
        rows = np.empty((int(batch.outputs.sum()), self._width), np.float32)
        done = 0
        moved: dict[int, int] = {}  # recurrent states: sequence to its new slot
        try:
            for ubatch in parts:
                used = cells[done : done + len(ubatch.tokens)]
                done += len(used)
                self.cache.occupy(used, ubatch.positions, ubatch.members)
                logits = self._run(ubatch, used, self._slots(ubatch, moved))
                if logits is not None:
                    rows[ubatch.rows[ubatch.outputs]] = logits
        except BaseException:
            self.cache.release(cells[:done])
            raise
        if self.cache.states is not None:
            for seq, slot in moved.items():
                self.cache.states.slot[seq] = slot
        return rows

    def abort(self) -> None:
        """Stops the `decode` or `embed` that is going on, from any thread; it raises AbortedError
        there within some 10 ms (on devices other than cpu: at the end of their split). Does nothing
        between calls."""
        self._stop = True
        for regime in self.regimes:
            regime.session.abort()

    @property
    def barriers(self) -> int:
        """Times that the threads of the cpu device waited for each other in the last ubatch."""
        return self._session.barriers

    def _slots(self, ubatch: _Batch, moved: dict[int, int]) -> tuple[int, int] | None:
        """The state slots that a ubatch, of one sequence then, reads and writes."""
        states = self.cache.states
        if states is None:
            return None
        first = int(ubatch.first[0])
        source = moved.get(first, int(states.slot[first]))
        seqs = [int(s) for s in np.flatnonzero(ubatch.members[:, 0])]
        others = {slot for seq, slot in moved.items() if seq not in seqs}
        own = source in moved.values() and source not in others
        target = source if own else states.free_slot(set(moved.values()))
        moved.update(dict.fromkeys(seqs, target))
        return source, target

    def embed(self, tokens: ArrayLike, pooling: Pooling | None = None) -> NDArray[np.float32]:
        """The embedding of a text: [n_embd], or of each token [n, n_embd] with pooling "none".

        `pooling`: of the tokens' embeddings all, their "mean", the first ("cls") or the "last";
        default: the model's. Nothing is normalised. The cache is emptied. Raises ContextError
        where the context was made for logits, and as `decode`."""
        if not self.embeddings:
            raise ContextError("this context gives logits; create it with embeddings=True")
        pooling = self.model.config.pooling if pooling is None else pooling
        if pooling not in get_args(Pooling):
            raise ContextError(
                f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))}"
            )
        self.cache.clear()
        try:
            rows = self.decode(tokens, outputs="last" if pooling == "last" else "all")
        finally:
            self.cache.clear()
        if pooling == "mean":
            return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
        return rows if pooling == "none" else np.asarray(rows[0])

    def save_state(self, seq: int | None = None) -> bytes:
        """What the cache holds, of all sequences or of one; see `weft.llm.state`."""
        if self.cache.has_shift:
            self._rotate_keys()
        return save_state(self.model.config, self.cache, seq)

    def load_state(self, data: bytes, seq: int | None = None) -> None:
        """Puts back what `save_state` gave; a sequence may come back under another number.

        Raises FormatError for data that is damaged or of another model, ContextError when it does
        not fit; the cache is as it was then."""
        load_state(self.model.config, self.cache, data, seq)

    def _rotate_keys(self) -> None:
        """Brings cached keys to the positions that `seq_add` and `seq_div` gave their cells.

        Its graph is built and compiled once, when it is first needed. Keys half rotated are of no
        use: a failure empties the cache."""
        if self._shift is None:
            graph = self.plan.model.build_shift(self.cache)
            if graph is None:
                self.cache.shifted()
                return
            self._shift = Session(compile(graph, self.program.devices))
            self.counters.graphs_built += 1
            self.counters.reserves += 1
        n_kv = self.cache.n_seen
        try:
            if n_kv:
                self._shift.input_view("shift")[:n_kv] = self.cache.shift[:n_kv]
                self._shift.upload("shift")
                self._shift.execute({"n_kv": n_kv})
        except BaseException:
            self.cache.clear()
            raise
        self.cache.shifted()

    def _batch(
        self,
        tokens: ArrayLike,
        positions: ArrayLike | None,
        seqs: Sequence[Sequence[int]] | None,
        outputs: Literal["last", "all"] | ArrayLike,
    ) -> _Batch:
        """The arguments of `decode`, checked."""
        ids = np.atleast_1d(np.asarray(tokens))
        n = len(ids)
        if ids.ndim != 1 or n == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise ContextError("tokens must be a list of at least one token id")
        if n > self.n_batch:
            raise ContextError(f"{n} tokens in one call, but n_batch is {self.n_batch}")
        if ids.min() < 0 or ids.max() >= self.model.config.n_vocab:
            raise ContextError(
                f"token ids are 0..{self.model.config.n_vocab - 1}, got {ids.min()}..{ids.max()}"
            )
        members = np.zeros((self.cache.n_seq_max, n), np.bool_)
        first = np.zeros(n, np.int32)
        if seqs is None:
            members[0] = True
        else:
            if len(seqs) != n or not all(seqs):
                raise ContextError(f"seqs must name at least one sequence for each of {n} tokens")
            for i, names in enumerate(seqs):
                if min(names) < 0 or max(names) >= self.cache.n_seq_max:
                    raise ContextError(
                        f"sequences {list(names)} of token {i} are not in "
                        f"0..{self.cache.n_seq_max - 1}; make n_seq_max larger"
                    )
                members[list(names), i] = True
                first[i] = names[0]
        if positions is None:
            start = self.cache.pos_max(0) + 1
            pos = np.arange(start, start + n, dtype=np.int32)
        else:
            pos = np.atleast_1d(np.asarray(positions, np.int32))
            if pos.shape != (n,) or pos.min() < 0:
                raise ContextError(f"positions must be {n} numbers from 0, one for each token")
        known = self.model.config.n_positions
        if known and pos.max() >= known:
            raise ContextError(
                f"position {pos.max()}, but the model has learned 0..{known - 1} only; use shorter "
                "texts"
            )
        wanted = np.zeros(n, np.bool_)
        if isinstance(outputs, str):
            if outputs not in ("last", "all"):
                raise ContextError(f'outputs is {outputs!r}; it must be "last", "all" or an array')
            wanted[-1 if outputs == "last" else slice(None)] = True
        else:
            wanted[:] = np.asarray(outputs, np.bool_)
        return _Batch(ids.astype(np.int32), pos, first, members, wanted, np.cumsum(wanted) - 1)

    def _split(self, batch: _Batch) -> list[_Batch]:
        """The ubatches. Tokens go in order of position, since those of a later ubatch are not in
        the cache yet; within one, order does not matter. Recurrent models take one sequence at a
        time, in order."""
        if self.cache.states is not None:
            # Tokens of several sequences go with the lowest one, so before what is its own.
            order = np.lexsort((batch.positions, batch.members.argmax(axis=0)))
            members = batch.members[:, order]
            cuts = np.flatnonzero((members[:, 1:] != members[:, :-1]).any(axis=0)) + 1
            parts = [batch.take(part) for part in np.split(order, cuts)]
            return [small for part in parts for small in self._split_sizes(part)]
        return self._split_sizes(batch)

    def _split_sizes(self, batch: _Batch) -> list[_Batch]:
        n = len(batch.tokens)
        if n <= self.n_ubatch and (n <= self.n_outputs or batch.outputs.sum() <= self.n_outputs):
            return [batch]
        order = np.argsort(batch.positions, kind="stable")
        parts, start = [], 0
        while start < n:
            part = order[start : start + self.n_ubatch]
            over = np.flatnonzero(np.cumsum(batch.outputs[part]) > self.n_outputs)
            part = part[: over[0]] if len(over) else part
            parts.append(batch.take(part))
            start += len(part)
        return parts

    def _run(
        self, ubatch: _Batch, cells: NDArray[np.int64], slots: tuple[int, int] | None
    ) -> NDArray[np.float32] | None:
        """Computes one ubatch whose cells are occupied; None when no output is wanted.

        The rows are the session's own memory where that can be: valid until the next run."""
        n, n_kv = len(ubatch.tokens), self.cache.n_seen
        out_ids = np.flatnonzero(ubatch.outputs)
        n_out = len(out_ids)
        regime = next(r for r in self.regimes if n <= r.max_tokens)
        session, inputs = regime.session, regime.inputs
        inputs["tokens"][:n] = ubatch.tokens
        if "cells" in inputs:
            inputs["cells"][:n] = cells
        if slots is not None:
            inputs["state_in"][0], inputs["state_out"][0] = slots
        if "positions" in inputs:  # a model without rotation has no use for them
            inputs["positions"][:n] = ubatch.positions
        # The graph computes at least one row; it is not used when none is wanted.
        inputs["out_ids"][: n_out or 1] = out_ids if n_out else 0
        if "mask" in inputs:
            self._fill_mask(inputs["mask"], ubatch, n_kv, 0)
        if "window_mask" in inputs:
            self._fill_mask(inputs["window_mask"], ubatch, n_kv, self._window)
        values = self._values
        values["n_tokens"], values["n_kv"], values["n_outputs"] = n, n_kv, n_out or 1
        for name in inputs:
            session.upload(name)
        threads = self._threads[n > 1]
        if threads != self._threads_used:
            for other in self.regimes:
                other.session.use_threads(threads)
            self._threads_used = threads
        if self._stop:
            raise AbortedError("decode was stopped by abort()")
        session.execute(values)
        self._session = session
        self.counters.graphs_reused += 1
        self.counters.reallocs = self._arenas.reallocs
        if n_out == 0:
            return None
        if not regime.on_host:
            return session.output(regime.output, values)
        flat: NDArray[np.float32] = session.output_view(regime.output)
        return flat[: n_out * self._width].reshape(n_out, self._width)

    def _fill_mask(self, view: NDArray[Any], ubatch: _Batch, n_kv: int, window: int) -> None:
        n = len(ubatch.tokens)
        out = view[: n * n_kv].reshape(n, n_kv)
        self.cache.fill_mask(
            out,
            ubatch.positions,
            ubatch.first,
            window,
            distances=self._alibi,
            causal=self.model.config.causal,
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Tokens of a call or of one ubatch, all arrays [n]."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    first: NDArray[np.int32]
    """First sequence."""
    members: NDArray[np.bool_]
    """[n_seq_max, n]"""
    outputs: NDArray[np.bool_]
    rows: NDArray[np.intp]
    """Row of the result, where `outputs`."""

    def take(self, part: NDArray[np.intp]) -> _Batch:
        return _Batch(
            self.tokens[part],
            self.positions[part],
            self.first[part],
            self.members[:, part],
            self.outputs[part],
            self.rows[part],
        )
