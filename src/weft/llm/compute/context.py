"""`Context`: computes logits from tokens, with one cache and graphs compiled once.

A call is cut into ubatches of at most `n_ubatch` tokens. Graphs are built and compiled once, for
the largest sizes; each ubatch fills the inputs of one and runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.base import Backend
from weft.backends.registry import device_list
from weft.errors import ContextError, DeviceError
from weft.execute import Progress, Session, TensorCallback
from weft.flags import FLAGS
from weft.llm.adapters import Adapters
from weft.llm.cache.cells import Cells
from weft.llm.cache.events import EventDetails
from weft.llm.cache.state import load_state, save_state
from weft.llm.compute.batch import Batch, Outputs
from weft.llm.compute.counters import Counters, MemoryUse, memory_use
from weft.llm.compute.decoding import Decoding
from weft.llm.compute.fallback import Loaded, decode_anew, load, load_without_failed
from weft.llm.compute.input_rows import InputRows
from weft.llm.compute.inputs import Regime
from weft.llm.compute.pooling import BehindPooling, require_pooling
from weft.llm.compute.sequences import Sequences
from weft.llm.compute.steps import Step, Steps
from weft.llm.config import Pooling
from weft.llm.control_vectors import ControlVectors
from weft.llm.model import Model
from weft.llm.planning.options import PLAN_OPTIONS, PlanArguments
from weft.llm.scaled_files import Chosen
from weft.notebook import in_notebook
from weft.options import shows_options
from weft.program import Program

if TYPE_CHECKING:
    from weft.execute import Profile, Tasks
    from weft.llm.cache.events import CacheEvent, CacheLog

__all__ = ["Context", "Counters", "MemoryUse"]


class Context(Sequences):
    """The state of inference: the cells of a cache, and the graphs that compute on them.

    `decode` appends tokens to sequences and returns logits. A context is used by one thread at a
    time; only `abort` may be called from another."""

    @shows_options(PlanArguments, PLAN_OPTIONS, "Options:")
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
        repack_later: bool = False,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Plans and allocates all memory that `decode` needs.

        `n_ctx` is the number of cells of the cache (None: the length that the model was trained
        for). With `kv_unified`, sequences share all cells; without it, each has n_ctx / n_seq_max
        cells, so that none can use cells of another. `pooling` is the default of `embed` (None: the
        model's). `warm_up` calls `Context.warm_up`. `progress` is called with (bytes done, all
        bytes) while weights are repacked or sent to a device. `eval_callback` is passed to
        `set_eval_callback`. With `repack_later`, a first batch of few tokens is computed with
        weights as the file has them, and they are repacked before the second: results are the same,
        and the first comes sooner.

        Raises ContextError for an argument out of range or two that contradict each other,
        ArgumentError for an unknown option, ScheduleError for an impossible placement, FormatError
        for a plan of another model, and OutOfMemoryError before anything large is allocated."""
        if pooling is not None:
            require_pooling(pooling, model.config)
        loaded = load(model, n_ctx, options, progress, repack_later=repack_later)
        chosen = loaded.plan.options
        if pooling is not None and not chosen.embeddings:
            raise ContextError("pooling is of embeddings; create the context with embeddings=True")
        self.model = model
        self.n_ctx = chosen.n_ctx
        n_batch = options.get("n_batch")
        self.n_batch = self.n_ctx if n_batch is None else n_batch
        self.n_ubatch = chosen.n_ubatch
        self.n_outputs = chosen.n_outputs
        self.n_ctx_seq = self.n_ctx if kv_unified else self.n_ctx // chosen.n_seq_max
        """Maximum number of cells of one sequence."""
        if self.n_ctx_seq < 1:
            raise ContextError(
                f"{self.n_ctx} cells are not enough for {chosen.n_seq_max} sequences with cells of "
                "their own; make `n_ctx` larger, `n_seq_max` smaller, or leave kv_unified on"
            )
        self.embeddings = chosen.embeddings
        """True if the rows of `decode` are embeddings instead of logits."""
        self.pooling: Pooling = model.config.pooling if pooling is None else pooling
        self.input_rows = InputRows(model.config.n_vocab, model.config.row_width)
        """Rows of images, which ids beyond the vocabulary stand for, or tokens for an encoder."""
        if model.config.n_encoder:
            self.input_rows = InputRows(model.config.n_vocab, 1, 8 * self.n_ctx)
        self._eval: TensorCallback | None = None
        self._cache_log: CacheLog | None = None
        self._use(loaded)
        if eval_callback is not None:
            self.set_eval_callback(eval_callback)
        if FLAGS.cache_debug:
            self.watch_cache()
        if warm_up:
            self.warm_up()

    def _use(self, loaded: Loaded) -> None:
        self.plan, self._graphs, self._options = loaded.plan, loaded.graphs, loaded.options
        """The plan says where everything is, and why."""
        self.fell_back = loaded.fell_back
        self._serial = loaded.serial
        """Says which device failed and which ones replace it; empty if none failed."""
        if hasattr(self, "cache"):  # after a failure
            for name, rows in self.cache.scales.items():
                self.plan.cache.scales[name][:] = rows
        self.cache = self.plan.cache
        self._behind: BehindPooling | None = None
        self._reads_all = not self.plan.options.flash
        if self._eval is not None:
            self._graphs.watch(self._eval)
        self._decoding = Decoding(self.plan, self._graphs, self.input_rows, self.n_ctx_seq)
        self._goes_on = bool(self._options.get("fallback") or self._options.get("machines"))
        resume = self._go_on if self._goes_on else None
        self._in_flight = Steps(self._decoding, self._graphs, self.n_batch, resume)
        self._counters = self._graphs.counters
        if self._cache_log is not None:
            self._watch(self._cache_log)

    def _go_on(
        self, error: DeviceError, held: Cells, batches: Sequence[Batch]
    ) -> list[NDArray[np.float32]]:
        """Changes to the fallback, computes the cache `held` again, and decodes `batches`."""
        options, serial = self._options, self._serial
        self._use(
            load_without_failed(
                self.model, self.n_ctx, options, error, serial=serial, loading=False
            )
        )
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
        return [self.decode(batch) for batch in batches]

    @property
    def counters(self) -> Counters:
        """The counts of events so far."""
        return replace(self._counters)

    @property
    def cache_events(self) -> tuple[CacheEvent, ...]:
        """The last updates of the cache since `watch_cache`, the oldest first; may be read from any
        thread. Empty where the cache is not watched."""
        return () if self._cache_log is None else self._cache_log.events

    @property
    def n_cache_events(self) -> int:
        """Number of updates since `watch_cache`; `cache_events` has the last of them."""
        return 0 if self._cache_log is None else self._cache_log.n

    def watch_cache(self, most: int | None = None) -> None:
        """Notes each update of the cache from now on in `cache_events`, which has the last `most`
        (None: 4096; 0 ends it). WEFT_CACHE_DEBUG does it from the start, and prints them.

        Results stay the same. Each update takes longer, a step some 30 µs with 4,096 cells; a cache
        that is not watched takes no time for this. Raises ContextError for a number out of
        range."""
        from weft.llm.cache.events import USUAL, CacheLog
        from weft.llm.cache.watched import unwatch

        if most == 0:
            self._cache_log = None
            unwatch(self.cache)
            return
        self._cache_log = CacheLog(USUAL if most is None else most, FLAGS.cache_debug)
        self._watch(self._cache_log)

    def _watch(self, log: CacheLog) -> None:
        from weft.llm.cache.watched import watch

        watch(self.cache, log)
        self._graphs.note_built()

    @property
    def regimes(self) -> list[Regime]:
        """A graph for each range of batch sizes that devices treat differently; the largest
        last."""
        return self._graphs.regimes

    @property
    def memory(self) -> MemoryUse:
        """The bytes that the context takes."""
        return memory_use(self.plan.needs(), [regime.program for regime in self._graphs.all])

    @property
    def states(self) -> NDArray[np.float32] | None:
        """With the option `states`, what is kept of each token of the last call, [n, width], in
        their order."""
        return self._decoding.states

    @property
    def n_step(self) -> int:
        """The best number of tokens for each `decode` of a long prompt: one ubatch, so that little
        is lost if it is stopped, or several if ubatches overlap on several devices."""
        overlapping = 4 * self.plan.n_copies if self.plan.n_copies > 1 else 1
        return min(overlapping * self.n_ubatch, self.n_batch)

    @property
    def program(self) -> Program:
        """The program of the largest batches."""
        return self._graphs.program

    @property
    def _session(self) -> Session:
        return self._graphs.session

    @property
    def options(self) -> PlanArguments:
        """The options that the plan was made with: the caller's, or the options of the fallback."""
        return self._options

    @property
    def machines(self) -> Any:
        """The option `machines` for another context: the machines of this one, or None."""
        return self._options.get("machines")

    def devices_beside(self) -> list[str | Backend]:
        """The option `devices` for another context of the model. Devices with memory of their own
        are the same objects, so that weights are there only once. Others are given by name, so that
        each context has threads of its own."""
        host = self.plan.backends[-1].buffer_type
        given = self._options.get("devices")
        devices = () if given is None else device_list(given)
        return [
            backend.name
            if backend.buffer_type is host and (i >= len(devices) or isinstance(devices[i], str))
            else backend
            for i, backend in enumerate(self.plan.backends)
        ]

    def __repr__(self) -> str:
        devices = ", ".join(backend.name for backend in self.plan.backends)
        return (
            f"<Context of {self.model.file.path.name}: {self.cache.n_used} of {self.n_ctx} cells "
            f"used, {self.cache.n_seq_max} sequences, on {devices}>"
        )

    def _repr_html_(self) -> str:
        return in_notebook(self, self.plan.html(repr(self)) + self.program.html("Program"))

    def decode(
        self,
        tokens: ArrayLike | Batch,
        positions: ArrayLike | None = None,
        *,
        seqs: Sequence[Sequence[int]] | None = None,
        outputs: Outputs = "last",
    ) -> NDArray[np.float32]:
        """Appends tokens to the cache and computes logits, f32 [n_rows, n_vocab], or embeddings,
        f32 [n_rows, n_embd].

        `tokens` are ids [n], or a `Batch` with all arguments, which may have rows instead of
        tokens. `positions` [n] are positions in the sequences (None: each token follows the last
        token of its first sequence). `seqs` has the sequences of each token (None: sequence 0); a
        token sees the cells of its first sequence. `outputs` says which tokens have a row in the
        result, in the order of `tokens`: the "last", "all", or those where an array [n] is true.

        Raises ContextError for ids or positions out of range, for too few free cells, if a sliding
        window has dropped tokens that must be seen, and for more tokens than a ubatch if tokens see
        later ones; AbortedError after `abort`; DeviceError if a device fails. After any error,
        Ctrl-C included, the cache is unchanged (or empty, if a device failed to rotate keys).

        If a device fails and there is a `fallback`, the cache is computed again from its tokens on
        those devices, and then this call. DeviceError then says which sequences could not be
        computed from their tokens; these are empty, and the others unchanged."""
        graphs = self._graphs
        if self._in_flight:
            raise ContextError(f"{len(self._in_flight)} steps are in flight; collect them first")
        graphs.begin()
        if self._reads_all and self.cache.freed:
            self._compact_where_it_pays()
        if graphs.why:
            graphs.why.clear()
        if not isinstance(tokens, Batch):
            tokens = Batch(tokens, positions, seqs, outputs)
        elif (
            positions is not None
            or seqs is not None
            or not (isinstance(outputs, str) and outputs == "last")
        ):
            raise ContextError("a Batch has its positions, seqs and outputs itself")
        held: Cells | None = None
        try:
            if graphs.takes_one and not self.cache.has_shift:
                row = self._decoding.decode_one(tokens)
                if row is not None:
                    return row
            if self._goes_on:
                held = self.cache.copy()  # before the call, because some failures empty it
            return self._decoding.decode(tokens, self.n_batch)
        except DeviceError as error:
            if not self._goes_on:
                raise
            return self._go_on(error, held or self.cache.copy(), [tokens])[0]

    @property
    def most_in_flight(self) -> int:
        """The most steps that `submit` may have under way: one for each machine, where layers are
        on several whose kernels compute each text by itself; else 1."""
        return self._graphs.most_in_flight

    def submit(self, batch: Batch) -> Step | None:
        """Begins to compute a batch, and returns while it is computed; `Step.collect` gives what
        `decode` would return, with the same bits.

        At most `most_in_flight` steps are under way, of different sequences, and collected in their
        order; until then, only `submit` may be called, and sequences that are in no step may be
        changed. Returns None for a batch that `decode` has to compute, after all steps were
        collected: one larger than a ubatch, with rows, or after positions were moved. Raises
        ContextError as `decode` does, which leaves other steps as they are; other errors are those
        of `Step.collect`."""
        if not len(self._in_flight):
            self._graphs.begin()
        if len(self._in_flight) >= self.most_in_flight:
            raise ContextError(f"{len(self._in_flight)} steps are in flight; collect the oldest")
        return self._in_flight.submit(batch)

    def set_eval_callback(self, callback: TensorCallback | None) -> None:
        """Calls `callback` with tensors of the model while `decode` computes them; None ends this.

        First `callback(tensor, True)` is called for every tensor of each graph, when the graph is
        built, and returns True if it wants to see the tensor (a `WatchedTensor` with name, op,
        type, sizes and device). Then `callback(tensor, False)` is called in every ubatch when such
        a tensor has been computed; it may `read()` the tensor. If it returns False, `decode` raises
        AbortedError and the cache is unchanged.

        Ops run on the same devices as without a callback, but fusions that would hide a wanted
        tensor are left out, and ubatches do not overlap. The graphs need additional compute memory.
        The callback must not call the context."""
        self._graphs.watch(callback)
        self._eval = callback

    @property
    def eval_callback(self) -> TensorCallback | None:
        """The callback that `set_eval_callback` was given last, or None."""
        return self._eval

    @property
    def is_watched(self) -> bool:
        """True if there is an `eval_callback`."""
        return self._eval is not None

    @property
    def reuse_graphs(self) -> bool:
        """True if a graph is compiled once and run for every batch, the default unless
        WEFT_GRAPH_REUSE is 0. False places, plans, lowers and binds the graph again for each
        ubatch; results are the same. Use it to find out whether reuse causes an error."""
        return self._graphs.reuse

    @reuse_graphs.setter
    def reuse_graphs(self, reuse: bool) -> None:
        self._graphs.reuse = reuse

    def profile(self, into: Profile | None = None) -> AbstractContextManager[Profile]:
        """Records all computations inside the `with` block; see `Session.profile`."""
        if into is None:
            from weft.execute import Profile  # few contexts record anything

            into = Profile()
        return self._graphs.profile(into)

    def abort(self) -> None:
        """Stops the current `decode` or `embed`, which raises AbortedError within some 10 ms (on
        devices other than the cpu, at the end of their split). May be called from any thread; does
        nothing between calls."""
        self._graphs.abort()

    @property
    def barriers(self) -> int:
        """The number of times that the threads of the cpu device waited for each other in the last
        ubatch."""
        return self._graphs.session.barriers

    def tasks(self) -> Tasks:
        """How the cpu device shared the steps of the last ubatch out to its threads."""
        return self._graphs.session.tasks()

    def why_not_reused(self) -> str | None:
        """The reasons why the last `decode` did not run the same graph as the call before, one per
        line: a graph had to be built, or there is another plan for a size or an input. None: it ran
        the same graph."""
        return "\n".join(self._graphs.why) or None

    def repack(self) -> None:
        """Repacks weights that `repack_later` has left in place so far. The next `decode` would;
        where it must not wait, call this before it."""
        self._graphs.repack()

    def warm_up(self, *, shift: bool = False, embeddings: bool = False) -> None:
        """Runs batches of all sizes that have a plan, so that later calls find all memory touched.
        The cache is empty afterwards.

        `shift` also builds the graph that rotates keys (for `seq_add`), and `embeddings` the one
        that takes rows instead of tokens. Raises ContextError if the cache is not empty."""
        if self.cache.n_used:
            raise ContextError("a context is warmed up while its cache is empty; clear() it first")
        if shift:
            self._graphs.build_shift()
        if embeddings:
            self._graphs.build_rows()
        most = min(self.n_ubatch, self.n_batch, self.n_ctx_seq)
        most = min(most, self.model.config.n_positions or most)
        most -= self.model.config.n_encoder > 0  # the decoder's first token needs room
        try:
            for n in (most, 1, *(r.max_tokens for r in self.regimes), most):
                self.decode(self.beginning([0] * max(min(n, most), 1)))
                self.clear()
            if self._graphs.together is not None and not self.model.config.reads_first:
                n = min(self._graphs.together.max_tokens, self.cache.n_seq_max, self.n_batch)
                n = min(n, self.n_ctx)
                self.decode([0] * n, [0] * n, seqs=[[seq] for seq in range(n)])
        finally:
            self.clear()

    def embed(
        self, tokens: ArrayLike, pooling: Pooling | None = None, *, types: ArrayLike | None = None
    ) -> NDArray[np.float32]:
        """Computes the embedding of a text (token ids [n]): f32 [n_embd], or [n, n_embd] with
        pooling "none", or the scores of the model's classifier [n_scores] with "rank".

        `pooling` takes the "mean" of the tokens' embeddings, the first ("cls"), the "last" or all
        of them ("none"); None is the pooling of the context. Dense layers of the file follow.
        `types` [n] are 1 for tokens of a second sentence, if the model has such types.
        Embeddings are not normalised. The cache is emptied. Raises ContextError if the context was
        created for logits, and the errors of `decode`."""
        if not self.embeddings:
            raise ContextError("this context gives logits; create it with embeddings=True")
        pooling = self.pooling if pooling is None else pooling
        require_pooling(pooling, self.model.config)
        last = "last" in (pooling, pooling == "rank" and self.model.config.score_pooling)
        self.cache.clear()
        try:
            outputs: Outputs = "last" if last else "all"
            rows = self.decode(Batch(tokens, outputs=outputs, types=types))
        finally:
            self.cache.clear()
        return self.pool([rows], pooling)[0]

    def pool(
        self, texts: Sequence[NDArray[np.float32]], pooling: Pooling
    ) -> list[NDArray[np.float32]]:
        """The embedding or the scores of each of `texts`, given the rows of its tokens
        [n_tokens, n_embd]; see `embed`."""
        if self._behind is None:
            self._behind = BehindPooling(self.plan)
        return self._behind(texts, pooling)

    def use_adapters(self, chosen: Chosen | None = None, seq: int = 0) -> None:
        """Sets the adapters of sequence `seq`: a name, a list of names, or scales by name; None:
        all, at the scales that they were given with, as it is at first.

        Raises ContextError for an unknown name, and if the sequence has tokens that were computed
        with others."""
        self._scale(Adapters.INPUT, self.model.scale_rows(chosen), seq, "adapters")

    def use_control_vectors(self, chosen: Chosen | None = None, seq: int = 0) -> None:
        """Sets the control vectors of sequence `seq`, as `use_adapters` does adapters."""
        rows = self.model.scale_rows(control_vectors=chosen)
        self._scale(ControlVectors.INPUT, rows, seq, "control vectors")

    def _scale(self, name: str, own: dict[str, NDArray[np.float32]], seq: int, what: str) -> None:
        if name not in own:
            return
        row, rows = own[name], self.cache.scales[name]
        if not 0 <= seq < len(rows):
            raise ContextError(f"sequence {seq} is not in 0..{len(rows) - 1}")
        if (row != rows[seq]).any() and self.pos_max(seq) >= 0:
            raise ContextError(
                f"sequence {seq} has tokens that were computed with other {what}; remove them "
                f"first with seq_rm({seq})"
            )
        rows[seq] = row

    def save_state(self, seq: int | None = None) -> bytes:
        """Saves the cache, or only sequence `seq`, as bytes; see `weft.llm.cache.state`."""
        if self.cache.has_shift:
            self._graphs.rotate_keys()
        seqs = range(self.cache.n_seq_max) if seq is None else (seq,)
        with self.cache.noting("kept", seqs, EventDetails(about="as a saved state")):
            return save_state(self.model.config, self.cache, seq, self._scaled_by(seq))

    def load_state(self, data: bytes, seq: int | None = None) -> None:
        """Restores a cache, or as `seq` a single sequence, from the bytes of `save_state`. The
        sequence may have had another number.

        Raises FormatError for data that is damaged or of another model, and ContextError if it does
        not fit. The cache is unchanged then."""
        details = EventDetails(about="from a saved state")
        with self.cache.noting("restored", () if seq is None else (seq,), details):
            load_state(self.model.config, self.cache, data, seq, self._scaled_by(seq))

    def _scaled_by(self, seq: int | None) -> dict[str, str]:
        """Tells adapters and control vectors of sequence `seq` (None: all) from others."""
        own = {
            name: rows if seq is None else rows[[seq] if 0 <= seq < len(rows) else []]
            for name, rows in self.cache.scales.items()
        }
        return self.model.scale_prints(own)
