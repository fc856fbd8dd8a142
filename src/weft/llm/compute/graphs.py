"""The compiled graphs of a context, all in the same arenas.

There is one for each range of batch sizes. Two more are built when they are first needed: one that
takes rows instead of tokens, and one that rotates cached keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import UsesThreads
from weft.compiler import lower_plan, plan_graph, planned_again
from weft.errors import AbortedError, OutOfMemoryError, warn
from weft.execute import (
    ArenaPool,
    Progress,
    Session,
    TensorCallback,
    WatchedSession,
    arena_bytes,
)
from weft.flags import FLAGS
from weft.graph import Graph
from weft.llm.cache.events import EventDetails
from weft.llm.cache.kv_cache import tables_of
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.counters import Counters
from weft.llm.compute.in_place import MOST_IN_PLACE, can_wait, in_place
from weft.llm.compute.inputs import Regime
from weft.llm.compute.pipeline import Pipelined, Rows, UnderWay, several_stages
from weft.llm.compute.rollback import Change, Places
from weft.llm.compute.sequences import rotate_keys
from weft.llm.planning.plan import ContextPlan
from weft.program import Program

if TYPE_CHECKING:
    from weft.execute import Profile


class Graphs:
    """Chooses the graph for a ubatch, fills its inputs and runs it."""

    def __init__(
        self, plan: ContextPlan, progress: Progress | None = None, *, repack_later: bool = False
    ) -> None:
        """`repack_later` runs the first batch on weights in place, if it is short, and repacks them
        after it. Raises OutOfMemoryError if there is not enough memory."""
        self.plan = plan
        self.cache = plan.cache
        for cells in tables_of(plan.cache):
            cells.cells_step = max(b.cells_step for b in plan.backends)
        self.counters = Counters(plan.graphs_built, reserves=plan.graphs_built)
        self.reuse = FLAGS.graph_reuse
        """True if compiled graphs are reused; False: each run compiles its graph again."""
        self._fresh: Session | None = None  # the session of the last run without reuse
        self.why: list[str] = []
        """Reasons why ubatches of the last call ran another graph than the ubatch before."""
        config = plan.model.config
        self._config = config
        self._width = config.n_embd if plan.options.embeddings else config.n_logits
        self._in_place = repack_later and can_wait([r.plan for r in plan.all_regimes])
        """True as long as weights that will be repacked are still used in place."""
        programs = self._lowered()
        self._arenas = self._aside = ArenaPool()
        self._copies: list[ArenaPool] = []
        self._callback: TensorCallback | None = None
        self._arenas.reserve(*programs)
        self._arenas.load(*programs, progress=progress)
        regimes = [
            self._regime(regime.max_tokens, program)
            for regime, program in zip(plan.all_regimes, programs, strict=True)
        ]
        self.together: Regime | None = regimes.pop(0) if plan.together else None
        """For recurrent models, the graph of several sequences at once; for others, the graph of
        what is read first (`ModelConfig.reads_first`)."""
        self.regimes = regimes
        """A graph for each range of batch sizes that devices treat differently; the largest
        last."""
        self.program: Program = programs[-1]
        self.pipelined = self._pipelined()
        """Computes several of the largest ubatches at the same time; None: there is one copy."""
        self._stages = several_stages(self.program)
        self.session = self.regimes[-1].session
        self._last: Regime = self.regimes[-1]
        self.states: NDArray[np.float32] | None = None
        """What is kept of the tokens of the last run [n_tokens, width], valid until the next one;
        None: its graph keeps nothing."""
        self._rows: Regime | None = None
        self._shift: Session | None = None
        self._stop = False
        self._profile: Profile | None = None
        self._is_far = any(session.is_far for session in self._sessions())
        counted = [b for b in self.program.devices if isinstance(b, UsesThreads)]
        one = max((b.n_threads for b in counted), default=0)
        many = max((b.n_threads_batch for b in counted), default=0)
        # threads for a single token, and for more tokens; 0: all of them
        self._threads = (0, 0) if one == many else (one, many)
        self._threads_used = 0
        self._values = dict.fromkeys(("n_tokens", "n_kv", "n_outputs", "n_seqs", "n_seq_tokens"), 1)
        self._has_run = False

    # ---- weights that are repacked after the first run -------------------------------------------

    def _lowered(self) -> list[Program]:
        """The programs of all regimes, with weights in place or repacked."""
        plans = [regime.plan for regime in self.plan.all_regimes]
        return [lower_plan(in_place(p) if self._in_place else p) for p in plans]

    def repack(self) -> None:
        """Repacks weights that were left in place, if there are any; results stay the same.

        Without the memory for it, they stay in place, which is a warning."""
        if not self._in_place:
            return
        self._in_place = False
        programs = self._lowered()
        try:
            self._arenas.reserve(*programs)
            self._arenas.load(*programs)
        except OutOfMemoryError as error:
            warn(f"weights stay as the file has them, slower: {error}")
            return
        before = [*([self.together] if self.together else []), *self.regimes]
        pairs = zip(before, programs, strict=True)
        self.program = programs[-1]
        self._rebind({id(regime.program): program for regime, program in pairs})

    def _repack_before(self, ubatches: Sequence[Ubatch]) -> None:
        """Repacks weights before ubatches, unless they are a short prompt that comes first."""
        if self._has_run or sum(map(len, ubatches)) > MOST_IN_PLACE:
            self.repack()
        self._has_run = True

    # ---- stopping --------------------------------------------------------------------------------

    def abort(self) -> None:
        """Stops the current run; may be called from any thread."""
        self._stop = True
        for session in self._sessions():
            session.abort()
        if self.pipelined is not None:
            self.pipelined.abort()

    def begin(self) -> None:
        """Begins a call: what other machines still do of earlier ones, `abort` leaves alone."""
        self.clear_abort()
        if self._is_far:
            for session in self._sessions():
                session.begin()

    def drop(self) -> None:
        """Stops what other machines still do of a call that failed or was interrupted."""
        if self._is_far:
            for session in self._sessions():
                session.drop()

    def clear_abort(self) -> None:
        """Cancels an `abort` that has stopped nothing."""
        if self._stop:
            self._stop = False
            for session in self._sessions():
                session.clear_abort()
            if self.pipelined is not None:
                self.pipelined.clear_abort()

    def _sessions(self) -> list[Session]:
        beside = self.pipelined.sessions[1:] if self.pipelined is not None else []
        fresh = [] if self._fresh is None else [self._fresh]
        return [*(regime.session for regime in self.all), *beside, *fresh]

    @property
    def all(self) -> list[Regime]:
        """All graphs built so far, except the one that rotates keys."""
        others = [r for r in (self.together, self._rows) if r is not None]
        return [*self.regimes, *others]

    @contextmanager
    def profile(self, into: Profile) -> Iterator[Profile]:
        """Records all runs inside the `with` block."""
        self._profile, into.calls = into, into.calls or {}
        with ExitStack() as stack:
            stack.callback(setattr, self, "_profile", None)
            for regime in self.all:
                stack.enter_context(regime.session.profile(into))
            if self.pipelined is not None:
                stack.enter_context(self.pipelined.profile(into))
            yield into

    # ---- running ---------------------------------------------------------------------------------

    def run_all(self, ubatches: Sequence[Ubatch], change: Change) -> Iterator[Rows]:
        """Takes cells for ubatches and computes them in order, the largest in a pipeline if there
        is one. Yields each ubatch with its rows; see `run`."""
        if self._in_place:
            self._repack_before(ubatches)
        largest = self.regimes[-1]
        if self._profile is not None:
            n_large = sum(1 for _ in takewhile(self._is_large, ubatches))
            if self.cache.window is not None:  # its cells are managed between ubatches
                n_large = min(n_large, 1)
            self._profile.add_call(largest.session.program, 0 if len(ubatches[0]) < 2 else n_large)
        overlap = self.pipelined is not None and self.reuse
        n = 0
        while overlap and n < len(ubatches) and self._is_large(ubatches[n]):
            n += 1
        if self.pipelined is not None and n > 1:
            self._begin_large(ubatches[0])
            yield from self.pipelined.run(ubatches[:n], change, self._sizes)
            self.session = largest.session
            self.counters.graphs_reused += n
            ubatches = ubatches[n:]
        for ubatch in ubatches:
            yield ubatch, self.run(ubatch, change.occupy(ubatch))

    @property
    def most_in_flight(self) -> int:
        """The most ubatches that `start` may have under way: several where layers are on several
        machines whose kernels compute each text by itself, so that a text does not depend on which
        ubatch it is in."""
        plan, far = self.plan, self.pipelined
        if far is None or not self.reuse or self._in_place:
            return 1
        if plan.options.states or plan.together or not plan.options.flash:
            return 1
        return plan.n_copies if self._stages else 1

    def is_pipelined(self, ubatch: Ubatch) -> bool:
        """Whether `start` takes a ubatch; else it needs `run`."""
        return self.pipelined is not None and self._is_large(ubatch)

    def start(self, ubatch: Ubatch, places: Places) -> UnderWay:
        """Begins to compute a ubatch whose cells are occupied, beside others. After an error, call
        `reset`."""
        assert self.pipelined is not None
        self._has_run = True
        self._begin_large(ubatch)
        return self.pipelined.start(ubatch, places, self._sizes)

    def result(self, oldest: UnderWay) -> NDArray[np.float32]:
        """Waits for the ubatch that was started first, and returns its rows. After an error, call
        `reset`."""
        assert self.pipelined is not None
        rows = self.pipelined.result(oldest)
        self.counters.graphs_reused += 1
        if rows is None:
            return np.empty((0, self._width), np.float32)
        return rows.copy() if rows.base is not None else rows

    def reset(self) -> None:
        """Stops and drops all ubatches that were started, on other machines, too."""
        assert self.pipelined is not None
        self.pipelined.reset()
        self.drop()

    def _begin_large(self, ubatch: Ubatch) -> None:
        self._choose(ubatch)
        self._use_threads(self._threads[1])
        self._require_go()

    def _require_go(self) -> None:
        if self._stop:
            raise AbortedError("decode was stopped by abort()")

    def _is_large(self, ubatch: Ubatch) -> bool:
        smaller = self.regimes[-2].max_tokens if len(self.regimes) > 1 else 0
        own = ubatch.is_rows or ubatch.reads_first
        return not own and ubatch.n_seqs == 1 and len(ubatch) > smaller

    def _sizes(self, ubatch: Ubatch) -> dict[str, int]:
        """The values of the symbols for a ubatch whose cells are occupied."""
        n, values, small = len(ubatch), self._values, self.cache.window
        if small is not None:
            values["n_kv_window"] = small.n_read
        for ratio, blocks in self.cache.blocks.items():
            values[f"n_blocks_{ratio}"] = blocks.n_computed(ubatch.positions)
            values[f"n_compressed_{ratio}"] = blocks.n_read
        values["n_tokens"], values["n_kv"] = n, self.cache.n_read
        values["n_outputs"] = int(np.count_nonzero(ubatch.outputs)) or 1
        values["n_seqs"], values["n_seq_tokens"] = ubatch.n_seqs, n // ubatch.n_seqs
        return values

    def run(self, ubatch: Ubatch, places: Places) -> NDArray[np.float32] | None:
        """Computes one ubatch whose cells are occupied. Returns its rows [n_outputs, width], or
        None if no output is wanted.

        The rows may be the session's own memory: they are valid until the next run."""
        out_ids = np.flatnonzero(ubatch.outputs)
        n_out = len(out_ids)
        regime = self._choose(ubatch)
        if not self.reuse:
            regime = self._anew(regime)
        session = regime.session
        regime.inputs.write(ubatch, places, out_ids)
        values = self._sizes(ubatch)
        self._use_threads(self._threads[len(ubatch) > 1])
        self._require_go()
        session.execute(values)
        self.session = session
        self.counters.graphs_reused += self.reuse
        self.states = regime.states_of(len(ubatch))
        if n_out == 0:
            return None
        if regime.rows is None:
            return session.output(regime.output, values)
        return regime.rows[: n_out * self._width].reshape(n_out, self._width)

    @property
    def takes_one(self) -> bool:
        """True if `run_one` can be used: the graph of single tokens ran last and supports it."""
        last = self._last
        return last is self.regimes[0] and last.takes_one and self.reuse and not self._in_place

    def run_one(
        self, token: int, position: int, seq: int, cell: int, slots: tuple[int, int] = (0, 0)
    ) -> NDArray[np.float32]:
        """Computes a single token whose cell is occupied; returns a copy of its row [1, width].

        `slots` are the state slots to read and to write."""
        regime, values = self._last, self._values
        session, n_kv = regime.session, self.cache.n_read
        regime.inputs.write_one(token, position, seq, cell, n_kv, slots)
        values["n_tokens"] = values["n_outputs"] = values["n_seqs"] = values["n_seq_tokens"] = 1
        values["n_kv"] = n_kv
        if self._threads_used != self._threads[0]:
            self._use_threads(self._threads[0])
        self._require_go()
        session.execute(values)
        self.session = session
        self.counters.graphs_reused += 1
        self.states = regime.states_of(1)
        assert regime.one_row is not None
        return regime.one_row.copy()

    def _choose(self, ubatch: Ubatch) -> Regime:
        """The graph for a ubatch. If the ubatch before ran another one, `why` gets the reason."""
        n = len(ubatch)
        if ubatch.is_rows or ubatch.reads_first:
            regime = self._rows or self.build_rows()
        elif ubatch.n_seqs > 1:
            assert self.together is not None
            regime = self.together
        else:
            regime = next(r for r in self.regimes if n <= r.max_tokens)
        last = self._last
        if regime is not last:
            if self._config.reads_first:
                self.why.append("what is read first has a graph of its own")
            elif ubatch.is_rows:
                self.why.append("the input is embeddings, which have a graph of their own")
            elif last is self._rows:
                self.why.append("the input is tokens again, after embeddings")
            elif ubatch.n_seqs > 1:
                self.why.append("the tokens are of several sequences, which have another graph")
            elif last is self.together:
                self.why.append("the tokens are of one sequence again, after several")
            else:
                self.why.append(
                    f"n_tokens is {n}: devices place up to {regime.max_tokens} otherwise than up "
                    f"to {last.max_tokens}"
                )
            self._last = regime
        return regime

    def _use_threads(self, n: int) -> None:
        if n != self._threads_used:
            for session in self._sessions():
                session.use_threads(n)
            self._threads_used = n

    def watch(self, callback: TensorCallback | None) -> None:
        """Runs all graphs with a callback from now on, in extra compute memory; None ends this."""
        if callback is None and self._callback is None:
            return
        self._callback = callback
        self._aside = self._arenas if callback is None else self._arenas.beside()
        self._rebind()

    def note_built(self) -> None:
        """Notes the graphs that there are among the updates of a watched cache."""
        for regime in self.all:
            what = f"the graph of up to {regime.max_tokens} tokens"
            if regime is self.together:
                of = "what is read first" if self._config.reads_first else "several texts"
                what = f"the graph of {of}"
            details = _details(regime.program, f"{what} is there")
            details.microseconds = 0.0
            with self.cache.noting("built", (), details):
                pass

    def _anew(self, regime: Regime) -> Regime:
        """Places, plans, lowers and binds a graph again, in compute memory of its own."""
        with self.cache.noting("built") as details:
            program = lower_plan(planned_again(regime.program))
            pool = self._arenas.beside()
            session = Session(program, pool)
            if self._callback is not None:
                session = WatchedSession(program, pool, self._callback)
            built = _details(program, "a graph is built again, because reuse is off")
            details.about, details.nbytes = built.about, built.nbytes
        self.counters.graphs_built += 1
        self.counters.reserves += 1
        session.use_threads(max(self._threads_used, 0))
        self._fresh = session
        return Regime(regime.max_tokens, program, pool, self.cache, self._config, session)

    def _regime(self, max_tokens: int, program: Program) -> Regime:
        session = None
        if self._callback is not None:
            session = WatchedSession(program, self._aside, self._callback)
        return Regime(max_tokens, program, self._arenas, self.cache, self._config, session)

    def _pipelined(self) -> Pipelined | None:
        """The largest graph with its copies, over the memory that copies have had so far: no more
        is planned."""
        n_more = self.plan.n_copies - 1
        if n_more == 0 or self._callback is not None:
            self._copies.clear()
            return None
        if not self._copies:
            self._copies = [self._arenas.beside() for _ in range(n_more)]
        regimes = [self.regimes[-1]]
        for pool in self._copies:
            regime = Regime(regimes[0].max_tokens, self.program, pool, self.cache, self._config)
            regimes.append(regime)
        return Pipelined(self.plan.plan.schedule, regimes, self._width)

    # ---- graphs that are built when they are needed ----------------------------------------------

    def build_rows(self) -> Regime:
        """The graph that takes rows instead of tokens, built at the first call; an encoder's, if
        there is one."""
        if self._config.reads_first and self.together is not None:
            return self.together
        if self._rows is None:
            self.repack()
            options = self.plan.options
            graph = self.plan.model.build(
                self.cache,
                n_ubatch=options.n_ubatch,
                n_outputs=options.n_outputs,
                flash=options.flash,
                embeddings=options.embeddings,
                rows_in=True,
                states=options.states,
            )
            program = self._late(graph, "embeddings are given for the first time")
            self._rows = self._regime(options.n_ubatch, program)
            self._threads_used = -1
        return self._rows

    def build_shift(self) -> Session | None:
        """The graph that rotates cached keys, built at the first call; None if the model rotates
        none."""
        if self._shift is None:
            self.repack()
            graph = self.plan.model.build_shift(self.cache)
            if graph is None:
                return None
            program = self._late(graph, "positions were moved for the first time")
            self._shift = Session(program, self._arenas)
        return self._shift

    def _late(self, graph: Graph, why: str) -> Program:
        """Compiles one more graph and makes room for it in the arenas."""
        with self.cache.noting("built") as details:
            plan = plan_graph(
                graph, self.plan.backends, rewrites=self.plan.rewrites,
                op_offload=self.plan.op_offload,
            )  # fmt: skip
            # weights stay where the other graphs have them
            layouts = {w: to for w, to in self.plan.plan.layouts.items() if w in graph.leaves}
            program = lower_plan(replace(plan, layouts=layouts))
            self.counters.graphs_built += 1
            self.counters.reserves += 1
            self.why.append(f"a graph was built: {why}")
            before = self._arenas.reallocs
            self._arenas.reserve(program)
            if self._arenas.reallocs != before:
                self._rebind()
                why += ", and memory grew"
            self.counters.reallocs = self._arenas.reallocs
            built = _details(program, f"a graph is built, because {why}")
            details.about, details.nbytes = built.about, built.nbytes
        return program

    def _rebind(self, instead: Mapping[int, Program] | None = None) -> None:
        """Binds all graphs to the arenas that have grown, so that the old ones are freed.

        `instead` has programs, by the id of that which they replace."""

        def again(regime: Regime) -> Regime:
            program = (instead or {}).get(id(regime.program), regime.program)
            return self._regime(regime.max_tokens, program)

        last = self.all.index(self._last)
        self.regimes = [again(r) for r in self.regimes]
        self.together = self.together and again(self.together)
        self._rows = self._rows and again(self._rows)
        if self._shift is not None:
            self._shift = Session(self._shift.program, self._arenas)
        self.pipelined = self._pipelined()
        self._last = self.all[last]
        self.session = self.regimes[-1].session
        self._threads_used = -1

    def rotate_keys(self) -> None:
        """Rotates cached keys to the positions of their cells; see `sequences.py`."""
        rotate_keys(self.cache, self.build_shift())


def _details(program: Program, what: str) -> EventDetails:
    """The details of a `CacheEvent` about a graph."""
    n, splits = sum(len(split.steps) for split in program.splits), len(program.splits)
    text = f"{what}: {n} steps in {splits} split{'' if splits == 1 else 's'}"
    return EventDetails(about=text, nbytes=arena_bytes(program))
