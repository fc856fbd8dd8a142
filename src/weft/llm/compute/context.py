"""`Context`: tokens in, logits out, over one cache and one compiled graph.

A call is cut into ubatches of at most `n_ubatch` tokens. The graph is built and compiled once, for
the largest sizes; each ubatch fills the inputs and runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.base import Backend
from weft.errors import ContextError, DeviceError
from weft.execute import Profile, Progress, Session, TensorCallback
from weft.llm.cache.rollback import Change, OneChange
from weft.llm.cache.sequences import Sequences
from weft.llm.cache.state import load_state, save_state
from weft.llm.compute.batch import Batch, Outputs, Ubatch, checked, one_token
from weft.llm.compute.counters import Counters, MemoryUse
from weft.llm.compute.fallback import Held, Loaded, decode_anew, load, load_without_failed, remember
from weft.llm.compute.ubatches import split, together_sizes
from weft.llm.config import Pooling
from weft.llm.model import Model
from weft.llm.planning.options import PlanArguments
from weft.llm.planning.regime import Regime
from weft.program import Program

__all__ = ["Context", "Counters", "MemoryUse"]

_LAST = np.iinfo(np.int32).max


class Context(Sequences):
    """An inference state: cells of the cache, and the graphs that compute on them."""

    def __init__(
        self,
        model: Model,
        n_ctx: int | None = None,
        *,
        kv_unified: bool = True,
        pooling: Pooling | None = None,
        warm_up: bool = False,
        progress: Progress | None = None,
        eval_callback: TensorCallback | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Plans and allocates everything that `decode` will ever need.

        `n_ctx`: cells of the cache (default: the length the model was trained for). `n_batch`: most
        tokens of one `decode` (default: n_ctx). `n_ubatch`: most tokens computed together (default:
        512, at most n_batch). `n_copies`: ubatches that are under way at the same time where a
        model is on several devices, so that all have work (default: 1); each takes compute memory
        of its own. `n_outputs`: most logits rows computed together (default: n_ubatch).
        `n_seq_max`: most sequences (default: 1). `kv_unified`: sequences share all cells (default);
        False: none has more than n_ctx / n_seq_max, so that none can take another's room. `type_k`,
        `type_v`: of the cache (default: f16). `swa_full`: layers with a sliding window have as many
        cells as the others (default), so that tokens can be taken back at will; False: as many as
        they can see. `flash`: attention as one op (default).
        `activations`: "f32" keeps them in float32 where kernels would rather quantize them; "bf16"
        computes prompts with f16 and f32 weights in bf16, faster and rounded to 8 bits, where the
        processor has bf16 dot products. `n_threads`, `n_threads_batch`: threads of the cpu device
        for single tokens, and for more (default: physical cores, and as many); `threads`: those and
        where and how they run, see `weft.ThreadOptions`. `embeddings`: `decode` gives the rows that
        logits would be made of; models without logits (BERT) always do. `pooling`: what `embed`
        does where it is not told (default: what the model says). `warm_up`: see `Context.warm_up`.

        Where things are: `devices`, names or backends, highest priority first (default: cpu; behind
        a last name that is no cpu stands the cpu). `fallback`: devices to go on with, placed as by
        default, when one of these fails; see `decode`.
        `n_gpu_layers`: how many layers, from the last to the first, live on the first device with
        memory of its own; one more than there are layers takes the output too (default: all).
        `offload_kv`: the cache of a layer lives with the layer (default), or in host memory.
        `place`: glob over weight names -> device, the first match wins. `fit`: as many layers as
        fit. `memory`: device -> bytes that plans may use there. `plan`: a plan file, or what it
        holds, to follow. `policy` "cost": the least time that `profile` predicts (a
        `weft.schedule.Profile`, a file of `weft calibrate`, or the name of one that weft has).

        `repack`: weights that only matmuls read are brought into the layout that the kernels like
        best (default); False: all are used in place, mapped from the file. Contexts of one model
        share what is repacked. `progress(done, total)` is called with bytes while that goes on.
        `rewrites`: names of the fusions to use (default: see `weft.compile`). `eval_callback`: see
        `set_eval_callback`.

        Raises ContextError for an argument out of range or two that contradict each other,
        ArgumentError for an option that there is not, ScheduleError for a placement that cannot
        be, FormatError for a plan of another model, OutOfMemoryError before anything large is
        allocated."""
        if pooling is not None:
            _require_pooling(pooling)
        made = load(model, n_ctx, options, progress)
        chosen = made.plan.options
        if pooling is not None and not chosen.embeddings:
            raise ContextError("pooling is of embeddings; create the context with embeddings=True")
        self.model = model
        self.n_ctx = chosen.n_ctx
        n_batch = options.get("n_batch")
        self.n_batch = self.n_ctx if n_batch is None else n_batch
        self.n_ubatch = chosen.n_ubatch
        self.n_outputs = chosen.n_outputs
        self.n_ctx_seq = self.n_ctx if kv_unified else self.n_ctx // chosen.n_seq_max
        """Most cells of one sequence."""
        if self.n_ctx_seq < 1:
            raise ContextError(
                f"{self.n_ctx} cells are not enough for {chosen.n_seq_max} sequences with cells of "
                "their own; make n_ctx larger, n_seq_max smaller, or leave kv_unified on"
            )
        self.embeddings = chosen.embeddings
        """Whether rows are embeddings instead of logits."""
        self.pooling: Pooling = model.config.pooling if pooling is None else pooling
        """What `embed` does where it is not told."""
        self._width = model.config.n_embd if self.embeddings else model.config.n_vocab
        self._eval: TensorCallback | None = None
        self._use(made)
        if eval_callback is not None:
            self.set_eval_callback(eval_callback)
        if warm_up:
            self.warm_up()

    def _use(self, made: Loaded) -> None:
        self.plan, self._graphs, self._options = made.plan, made.graphs, made.options
        """Where everything is, and why."""
        self.fell_back = made.fell_back
        """What failed and which devices go on; empty: nothing has."""
        self.cache = self.plan.cache
        self._reads_all = not self.plan.options.flash
        if self._eval is not None:
            self._graphs.watch(self._eval)
        self._together = together_sizes(self.n_ubatch, self.cache.n_seq_max)
        self.counters = self._graphs.counters
        needs = self.plan.needs()
        programs = [regime.program for regime in self._graphs.all]
        self.memory = MemoryUse(
            weights=sum(n.weights for n in needs),
            cache=sum(n.cache for n in needs),
            compute=sum(n.compute + n.copies for n in needs),
            repacked=sum(sum(n.repacked.values()) for n in needs),
            scratch=max(split.work_bytes for program in programs for split in program.splits),
        )

    def _go_on(self, error: DeviceError, held: Held, batch: Batch) -> NDArray[np.float32]:
        """`decode` of `batch` on the fallback, after what was in the cache (`held`)."""
        self._use(load_without_failed(self.model, self.n_ctx, self._options, error))
        try:
            lost = decode_anew(self, held)
        except BaseException:
            self.cache.clear()
            raise
        if lost:
            which = ", ".join(map(str, lost))
            raise DeviceError(
                f"sequence {which} cannot be computed anew from its tokens (its beginning was "
                f"dropped, or it was made of rows); decode it from its start: {error}"
            ) from error
        return self.decode(batch)

    @property
    def regimes(self) -> list[Regime]:
        """One for each range of batch sizes that devices treat differently; the largest last."""
        return self._graphs.regimes

    @property
    def n_step(self) -> int:
        """Tokens of one `decode` of a long prompt: a ubatch, so that little is lost when it is
        stopped; where ubatches overlap, so many that devices seldom run empty."""
        overlapping = 4 * self.plan.n_copies if self.plan.n_copies > 1 else 1
        return min(overlapping * self.n_ubatch, self.n_batch)

    @property
    def program(self) -> Program:
        """That of the largest batches."""
        return self._graphs.program

    @property
    def _session(self) -> Session:
        return self._graphs.session

    def devices_beside(self) -> list[str | Backend]:
        """`devices` of a context beside this one: those with memory of their own are the same
        objects, so that weights are there once; others that were named are made anew, so that each
        context has threads of its own."""
        host = self.plan.backends[-1].buffer_type
        given = [*(self._options.get("devices") or ())]
        return [
            backend.name
            if backend.buffer_type is host and (i >= len(given) or isinstance(given[i], str))
            else backend
            for i, backend in enumerate(self.plan.backends)
        ]

    def __repr__(self) -> str:
        devices = ", ".join(backend.name for backend in self.plan.backends)
        return (
            f"<Context of {self.model.file.path.name}: {self.cache.n_used} of {self.n_ctx} cells "
            f"used, {self.cache.n_seq_max} sequences, on {devices}>"
        )

    def decode(
        self,
        tokens: ArrayLike | Batch,
        positions: ArrayLike | None = None,
        *,
        seqs: Sequence[Sequence[int]] | None = None,
        outputs: Outputs = "last",
    ) -> NDArray[np.float32]:
        """Appends tokens to the cache and computes logits [rows, n_vocab], or embeddings [rows,
        n_embd].

        `tokens`: ids [n], or a `Batch` that says everything (rows instead of tokens, too).
        `positions` [n]: where in their sequences (default: after the last of
        sequence 0). `seqs`: the sequences each token belongs to (default: 0); it sees the cells of
        the first. `outputs`: which tokens' logits come back, in the order of `tokens`: the last's,
        all, or those where an array [n] is true.

        Raises ContextError for ids or positions out of range, when the cache has too few free
        cells, where a sliding window has dropped what tokens would see, and for more than a ubatch
        where tokens see those behind them; AbortedError after `abort`. On any failure, Ctrl-C
        included, the cache is as it was (empty when a device failed to rotate keys).

        Where there is a `fallback`, a device that fails is left: what was in the cache is computed
        anew from its tokens, then this call. DeviceError then says which sequences could not be had
        from their tokens; they are empty, the others as they were."""
        graphs = self._graphs
        graphs.clear_abort()
        if self._reads_all and self.cache.freed:
            self._compact_where_it_pays()
        if graphs.why:
            graphs.why.clear()
        if graphs.takes_one and not self.cache.has_shift:
            one = one_token(tokens, positions, seqs, outputs)
            if one is not None:
                try:
                    row = self._decode_one(*one)
                except DeviceError as error:
                    batch = Batch([one[0]], positions, seqs, outputs)
                    return self._go_on(error, remember(self.cache), batch)
                if row is not None:
                    return row
        if not isinstance(tokens, Batch):
            tokens = Batch(tokens, positions, seqs, outputs)
        elif (
            positions is not None
            or seqs is not None
            or not (isinstance(outputs, str) and outputs == "last")
        ):
            raise ContextError("a Batch has its positions, seqs and outputs itself")
        if not self._options.get("fallback"):
            return self._decode(tokens)
        held = remember(self.cache)  # now: a failure in moving tokens empties the cache
        try:
            return self._decode(tokens)
        except DeviceError as error:
            return self._go_on(error, held, tokens)

    def _decode(self, tokens: Batch) -> NDArray[np.float32]:
        batch = checked(tokens, self.model.config, self.cache, self.n_batch)
        self._require_share(batch)
        self._require_window(batch)
        parts = split(
            batch,
            self.n_ubatch,
            self.n_outputs,
            by_sequence=self.cache.states is not None,
            together=self._together,
        )
        if len(parts) > 1 and not self.model.config.causal:
            raise ContextError(
                f"{len(batch)} tokens must be computed at once, but n_ubatch is "
                f"{self.n_ubatch} and n_outputs {self.n_outputs}; make them larger"
            )
        if self.cache.has_shift:
            self._graphs.rotate_keys()
        rows = np.empty((int(batch.outputs.sum()), self._width), np.float32)
        change = Change(self.cache, len(batch))
        try:
            for ubatch, logits in self._graphs.run_all(parts, change):
                if logits is not None:
                    rows[ubatch.rows[ubatch.outputs]] = logits
            change.finish()
            return rows
        except BaseException:
            change.undo()
            raise

    def _decode_one(self, token: int, position: int, seq: int) -> NDArray[np.float32] | None:
        """`decode` of a single token; None where that has to see to more."""
        cache, config = self.cache, self.model.config
        if position < 0:
            position = cache.pos_max(0) + 1
        cell = cache.next_cell(seq) if 0 <= seq < cache.n_seq_max else -1
        if (
            cell < 0
            or not 0 <= token < config.n_vocab
            or position > (config.n_positions or _LAST) - 1
            or self.n_ctx_seq < self.n_ctx
        ):
            return None
        change = OneChange(cache, cell, seq)
        try:
            cache.occupy_one(cell, position, seq, token)
            row = self._graphs.run_one(token, position, seq, cell, change.slots)
            change.finish()
            return row
        except BaseException:
            change.undo()
            raise

    def _require_share(self, batch: Ubatch) -> None:
        if self.n_ctx_seq == self.n_ctx:
            return
        cells = self.cache.members.sum(axis=1) + batch.members.sum(axis=1)
        over = np.flatnonzero((cells > self.n_ctx_seq) & batch.members.any(axis=1))
        if len(over):
            raise ContextError(
                f"sequence {over[0]} would have {cells[over[0]]} tokens, but each of "
                f"{self.cache.n_seq_max} has {self.n_ctx_seq} cells of the {self.n_ctx}; make "
                "n_ctx larger, remove tokens first, or leave kv_unified on"
            )

    def _require_window(self, batch: Ubatch) -> None:
        window = self.cache.window
        if window is None:
            return
        for seq in np.unique(batch.first):
            start = int(batch.positions[batch.first == seq].min())
            if not window.has_all(self.cache, int(seq), start):
                raise ContextError(
                    f"position {start} of sequence {seq} sees tokens that sliding-window layers "
                    "have dropped; remove the sequence and decode it anew, or create the context "
                    "with swa_full=True"
                )

    def set_eval_callback(self, callback: TensorCallback | None) -> None:
        """Shows tensors of the model to `callback` while `decode` computes them; None: no more.

        `callback(tensor, True)` is asked at once for every tensor of each graph (a `WatchedTensor`:
        name, op, type, sizes, device) whether it wants to see it; graphs that are built later ask
        when they are. `callback(tensor, False)` comes in every ubatch when a wanted tensor is
        computed: it may `read()` it, and says whether to go on; otherwise `decode` raises
        AbortedError and the cache is as it was. Everything runs where it ran, but for fusions that
        would hide a wanted tensor, and for ubatches that overlap. Takes compute memory beside that
        of the context. It must not call the context."""
        self._graphs.watch(callback)
        self._eval = callback

    @property
    def reuse_graphs(self) -> bool:
        """Whether a graph is compiled once and then run for every batch (default: unless
        WEFT_GRAPH_REUSE is 0). False: each ubatch has its graph placed, planned, lowered and bound
        anew, one after another, to find out whether reuse is at fault; results are the same."""
        return self._graphs.reuse

    @reuse_graphs.setter
    def reuse_graphs(self, reuse: bool) -> None:
        self._graphs.reuse = reuse

    def profile(self, into: Profile | None = None) -> AbstractContextManager[Profile]:
        """Records everything that is computed inside the `with`; see `Session.profile`."""
        return self._graphs.profile(Profile() if into is None else into)

    def abort(self) -> None:
        """Stops the `decode` or `embed` that is going on, from any thread; it raises AbortedError
        there within some 10 ms (on devices other than cpu: at the end of their split). Does nothing
        between calls."""
        self._graphs.abort()

    @property
    def barriers(self) -> int:
        """Times that the threads of the cpu device waited for each other in the last ubatch."""
        return self._graphs.session.barriers

    def why_not_reused(self) -> str | None:
        """What kept the last `decode` from running the graph that ran before it, one reason a
        line: a graph that had to be built, or a size or input for which there is another plan.
        None where it all ran the same graph."""
        return "\n".join(self._graphs.why) or None

    def warm_up(self, *, shift: bool = False, embeddings: bool = False) -> None:
        """Runs a prompt, a token, each plan of sizes in between, and the prompt again, so that
        memory is touched and later calls find everything in place. The cache is empty after it.

        `shift`, `embeddings`: also builds the graph that rotates keys (`seq_add`), and that for
        rows instead of tokens. Raises ContextError when the cache is not empty."""
        if self.cache.n_used:
            raise ContextError("a context is warmed up while its cache is empty; clear() it first")
        if shift:
            self._graphs.build_shift()
        if embeddings:
            self._graphs.build_rows()
        most = min(self.n_ubatch, self.n_batch, self.n_ctx_seq)
        most = min(most, self.model.config.n_positions or most)
        try:
            for n in (most, 1, *(r.max_tokens for r in self.regimes), most):
                self.decode(np.zeros(min(n, most), np.int32))
                self.clear()
            if self._graphs.together is not None:
                n = min(self._graphs.together.max_tokens, self.cache.n_seq_max, self.n_batch)
                n = min(n, self.n_ctx)
                self.decode([0] * n, [0] * n, seqs=[[seq] for seq in range(n)])
        finally:
            self.clear()

    def embed(self, tokens: ArrayLike, pooling: Pooling | None = None) -> NDArray[np.float32]:
        """The embedding of a text: [n_embd], or of each token [n, n_embd] with pooling "none".

        `pooling`: of the tokens' embeddings all, their "mean", the first ("cls") or the "last";
        default: that of the context. Nothing is normalised. The cache is emptied. Raises
        ContextError where the context was made for logits, and as `decode`."""
        if not self.embeddings:
            raise ContextError("this context gives logits; create it with embeddings=True")
        pooling = self.pooling if pooling is None else pooling
        _require_pooling(pooling)
        self.cache.clear()
        try:
            rows = self.decode(tokens, outputs="last" if pooling == "last" else "all")
        finally:
            self.cache.clear()
        if pooling == "mean":
            return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
        return rows if pooling == "none" else np.asarray(rows[0])

    def save_state(self, seq: int | None = None) -> bytes:
        """What the cache holds, of all sequences or of one; see `weft.llm.cache.state`."""
        if self.cache.has_shift:
            self._graphs.rotate_keys()
        return save_state(self.model.config, self.cache, seq)

    def load_state(self, data: bytes, seq: int | None = None) -> None:
        """Puts back what `save_state` gave; a sequence may come back under another number.

        Raises FormatError for data that is damaged or of another model, ContextError when it does
        not fit; the cache is as it was then."""
        load_state(self.model.config, self.cache, data, seq)


def _require_pooling(pooling: str) -> None:
    if pooling not in get_args(Pooling):
        raise ContextError(
            f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))}"
        )
