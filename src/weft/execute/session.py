"""`Session`: memory for a program, its executables, the run, and the states that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.base import Executable, NativeRun, StopsRuns
from weft.backends.memory import HostMemory, Memory, ReadsLater
from weft.errors import AbortedError, FormatError, ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.bound import BoundProgram, Moved, named_fault
from weft.execute.values import (
    array_in_place,
    array_reader,
    check_values,
    checked,
    checked_inputs,
    max_bytes,
    read_array,
    read_array_later,
)
from weft.graph.size import evaluate
from weft.notebook import in_notebook
from weft.program import BufferSpec, Program, TensorSpec, described

if TYPE_CHECKING:
    from weft.execute.profile import Profile
    from weft.execute.recorder import Recorder
    from weft.execute.tasks import Tasks


class Session:
    """Owns the arenas of a program (or shares a pool's), uploads weights, and runs.

    `run` is the simple interface: NumPy in, NumPy out. A caller that runs the same program many
    times writes straight into `input_view`, calls `execute`, and reads `output_view`. One thread at
    a time may use it; only `abort` may be called from others."""

    def __init__(self, program: Program, arenas: ArenaPool | None = None) -> None:
        """Raises OutOfMemoryError when an arena cannot be had, DeviceError when a device fails,
        ProgramError for a bad program."""
        self.program = program
        self.arenas = arenas if arenas is not None else ArenaPool()
        self.moved = Moved()
        """The copies between memories so far."""
        self._staging: dict[int, NDArray[np.uint8]] = {}
        self._readers: dict[str, tuple[Mapping[str, int], Callable[[], NDArray[Any]]]] = {}
        """How outputs were read last, and with which values of symbols."""
        self._stop = False
        self._threads = 0
        self._recorder: Recorder | None = None
        self._bind()

    def _bind(self) -> None:
        self._bound = BoundProgram(_with_own_states(self.program), self.arenas)
        self._readers.clear()
        self._single: Any = None
        splits = self.program.splits
        if len(splits) == 1 and not splits[0].copies:
            # a native executable takes plain numbers, so that a run costs one call
            only = self._bound.executables[0]
            if isinstance(only, NativeRun):
                self._single = (only.run_values, _getter(tuple(self.program.symbols)))
        self._native = [e for e in self._bound.executables if isinstance(e, NativeRun)]
        self._far = [e for e in self._bound.executables if isinstance(e, StopsRuns)]
        if self._threads:
            self.use_threads(self._threads)

    def reset(self) -> None:
        """Starts again after a device was lost: new arenas, weights sent again, states with their
        first values.

        Views of inputs and outputs taken before become stale."""
        self.arenas.clear()
        self._staging.clear()
        self._bind()

    # ---- the simple way --------------------------------------------------------------------------

    def run(
        self, inputs: Mapping[str, ArrayLike] | ArrayLike, symbols: Mapping[str, int] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Runs once; returns the outputs by name, in PyTorch order of sizes, as fresh arrays.

        `inputs` must name every input; for a program with one input, its array is enough. Each
        array must have the input's shape (leading ones may be left out) and element type (bf16 as
        uint16 bits, block types as uint8 rows). Symbols are read from the shapes unless given.
        Raises ProgramError naming the input and its shape."""
        program = self.program
        if not isinstance(inputs, Mapping):
            inputs = {self._only_input(inputs): inputs}
        unknown = sorted(set(inputs) - set(program.inputs))
        missing = sorted(set(program.inputs) - set(inputs))
        if unknown or missing:
            raise ProgramError(
                f"inputs do not match the program: missing {missing or 'none'}, unknown "
                f"{unknown or 'none'}; it takes {sorted(program.inputs)}"
            )
        values, raw = checked_inputs(program, inputs, symbols or {})
        self.clear_abort()
        self.begin()
        try:
            for name, data in raw.items():
                spec = program.tensors[program.inputs[name]]
                self._bound.write(name, spec, evaluate(spec.offset, values), data)
            self.execute(values)
            return {name: self.output(name, values) for name in program.outputs}
        except BaseException:
            self.drop()
            raise

    def _only_input(self, inputs: object) -> str:
        names = list(self.program.inputs)
        if len(names) != 1:
            form = ", ".join(f"{name!r}: ..." for name in names)
            raise ProgramError(
                f"run takes its inputs by name, {{{form}}}; got {type(inputs).__name__}"
            )
        return names[0]

    def explain(self, width: int | None = None) -> str:
        """The place of everything that runs or is stored, and the reasons; see
        `Program.explain`."""
        return self.program.explain(width)

    def __repr__(self) -> str:
        return self.program.summary("Session")

    def _repr_html_(self) -> str:
        return in_notebook(self, self.program.html("Session"))

    def output(self, name: str, values: Mapping[str, int]) -> NDArray[Any]:
        """A copy of an output after a run with these symbol values, in PyTorch order of sizes."""
        known = self._readers.get(name)
        if known is None or known[0] != values:
            spec = self.program.tensors[_find(self.program.outputs, name, "output")]
            reader = array_reader(spec, self._bound.memories[spec.buffer], values)
            known = self._readers[name] = dict(values), reader
        try:
            array = known[1]()
        except Exception as error:
            raise named_fault(f"output {name}", error) from error
        self._require_whole()
        return array

    def output_in_place(self, name: str, values: Mapping[str, int]) -> NDArray[Any] | None:
        """The memory from which `output` copies; None where it is not in this process, or not in
        order.

        A later run overwrites it, and `reset` replaces it."""
        spec = self.program.tensors[_find(self.program.outputs, name, "output")]
        return (
            None if self._far else array_in_place(spec, self._bound.memories[spec.buffer], values)
        )

    def reads_later(self, name: str) -> bool:
        """Whether `output_later` can be used for an output."""
        spec = self.program.tensors[_find(self.program.outputs, name, "output")]
        return isinstance(self._bound.memories[spec.buffer], ReadsLater)

    def output_later(self, name: str, values: Mapping[str, int]) -> Callable[[], NDArray[Any]]:
        """`output` as the work given to the device so far leaves it, whatever follows: a function
        that waits for it."""
        spec = self.program.tensors[_find(self.program.outputs, name, "output")]
        memory = self._bound.memories[spec.buffer]
        assert isinstance(memory, ReadsLater)
        return read_array_later(spec, memory, values)

    # ---- the fast way ----------------------------------------------------------------------------

    def input_view(self, name: str) -> NDArray[Any]:
        """A flat array of an input's storage at the symbols' maxima.

        With smaller symbols the input is contiguous at its start. Call `upload(name)` after
        writing, before `execute`."""
        return self._flat(_find(self.program.inputs, name, "input"), name)

    def needs_upload(self, name: str) -> bool:
        """Whether `upload` has work to do after a write to an `input_view`."""
        spec = self.program.tensors[_find(self.program.inputs, name, "input")]
        return self._bound.memories[spec.buffer].host() is None

    def upload(self, name: str) -> None:
        """Sends a written `input_view` to a device whose memory the host cannot address; does
        nothing for host memory."""
        index = _find(self.program.inputs, name, "input")
        if index in self._staging:
            spec = self.program.tensors[index]
            self._bound.write(name, spec, _fixed(spec, name), self._staging[index])

    def output_view(self, name: str) -> NDArray[Any]:
        """A flat array of an output's storage at the symbols' maxima, in place for host memory.

        It is valid until the next run. For other memory it is a copy made at the call. Raises
        ProgramError for an output whose first byte depends on sizes; `output` reads those."""
        index = _find(self.program.outputs, name, "output")
        view = self._flat(index, name)
        if index in self._staging:
            spec = self.program.tensors[index]
            staging = self._staging[index]
            start = _fixed(spec, name)
            try:
                staging[:] = self._bound.memories[spec.buffer].read(start, staging.nbytes)
            except Exception as error:
                raise named_fault(f"output {name}", error) from error
            self._require_whole()
        return view

    def state(self, name: str) -> State:
        """A state of the graph (`weft.state`) by name: `read()`, `write(values)`, `reset()`,
        between runs, wherever it is.

        Raises ProgramError for a name that the program does not have."""
        spec = self.program.tensors[_find(self.program.states, name, "state")]
        first = self.program.buffers[spec.buffer].data
        return State(name, spec, first, lambda: self._bound.memories[spec.buffer])

    def send_bound(self, data: NDArray[Any]) -> None:
        """Sends an array that the program uses in place again, to every device that has a copy of
        it.

        Call it after changing the values of the array."""
        for spec, memory in zip(self.program.buffers, self._bound.memories, strict=True):
            if spec.data is data and memory.host() is None:
                try:
                    memory.write(0, HostMemory(data).host())
                except Exception as error:
                    where = f"{spec.size} bytes for {spec.buffer_type.name} memory"
                    raise named_fault(where, error) from error

    def execute(self, values: Mapping[str, int]) -> None:
        """Runs every split with these symbol values over the present inputs.

        Raises ProgramError for a value outside the plan, AbortedError after `abort`, DeviceError
        naming split, device and node when a device fails, FormatError for a file from which experts
        cannot be read any more, KeyboardInterrupt when interrupted; the session can run again after
        each (after `reset`, where a device lost its memory)."""
        if self._recorder is not None:
            self._execute_recorded(values, self._recorder)
            return
        if self._single is not None:
            run_values, in_order = self._single
            try:
                finished = run_values(in_order(values))
            except OSError as error:
                raise FormatError(str(error)) from None
            except (ValueError, KeyError) as error:
                check_values(self.program, values)
                raise ProgramError(f"{self._bound.where(0)}: {error}") from error
            if finished is False:
                raise self._aborted()
            return
        check_values(self.program, values)
        bound = self._bound
        for number, split in enumerate(self.program.splits):
            if self._stop:
                raise self._aborted()
            if split.copies:
                self.moved.add(bound.copy_inputs(number, values))
            bound.run(number, values)
        self._require_whole()

    def begin(self) -> None:
        """From now on, `abort` and `drop` stop only later calls of `execute` on other machines:
        earlier calls continue."""
        for executable in self._far:
            executable.begin()

    def drop(self) -> None:
        """Stops the calls of `execute` since `begin` that other machines still run, after one
        failed or was interrupted. The memory that they were writing is undefined."""
        for executable in self._far:
            executable.abort()
            executable.clear_abort()

    def abort(self) -> None:
        """Stops the running `run` or `execute`, from any thread.

        That call raises AbortedError within some 10 ms, on devices other than cpu at the end of
        their split; the memory it was writing is undefined. Cpus of other machines stop, too, and
        drop all work since `begin`. Between runs, `abort` stops the next `execute`,
        unless `clear_abort` or `run` comes first."""
        self._stop = True
        for executable in self._native:
            executable.abort()
        for far in self._far:
            far.abort()

    def clear_abort(self) -> None:
        """Cancels an `abort` that has stopped nothing."""
        self._stop = False
        for executable in self._native:
            executable.clear_abort()
        for far in self._far:
            far.clear_abort()

    def _require_whole(self) -> None:
        """Raises AbortedError where bytes that were read from another machine may come from a run
        that was stopped."""
        if self._far and (self._stop or any(far.is_stopped for far in self._far)):
            raise self._aborted()

    def _aborted(self) -> AbortedError:
        self.clear_abort()
        return AbortedError("the run was stopped by abort()")

    def use_threads(self, n: int) -> None:
        """Sets the number of threads of later runs on the cpu device, at most as many as it has; 0:
        all."""
        self._threads = n
        for executable in self._native:
            executable.use_threads(n)

    @property
    def barriers(self) -> int:
        """The number of times that the threads of the cpu device waited for each other in the last
        run."""
        return sum(e.barriers for e in self._native)

    def tasks(self) -> Tasks:
        """How the cpu device shared the steps of the last run out to its threads."""
        from weft.execute.tasks import tasks_of  # only here, as most runs are never asked

        return tasks_of(self.program, self._bound.executables)

    @contextmanager
    def profile(self, into: Profile | None = None) -> Iterator[Profile]:
        """Records every run inside the `with`: time, bytes and operations of each step.

        Runs proceed as usual, with stages side by side; each ends when its devices have finished.
        `into` is a profile that other sessions record into, too."""
        from weft.execute.profile import Profile  # most sessions record nothing
        from weft.execute.recorder import Recorder

        profile = into if into is not None else Profile()
        recorder = Recorder(profile, self.program)
        recorder.start()
        self._recorder = recorder
        try:
            yield profile
            recorder.between()
            recorder.finish()
        finally:
            self._recorder = None
            recorder.stop()

    def _execute_recorded(self, values: Mapping[str, int], recorder: Recorder) -> None:
        check_values(self.program, values)
        recorder.between()
        begin = perf_counter_ns()
        try:
            for number, split in enumerate(self.program.splits):
                if self._stop:
                    raise self._aborted()
                for which in range(len(split.copies)):
                    self.moved.add(recorder.copy(self._bound, number, values, which))
                recorder.run(self._bound, number, values)
            self._require_whole()
        except BaseException:
            recorder.forget()
            raise
        recorder.end_run(begin)

    @property
    def is_far(self) -> bool:
        """Whether other machines run a part of it."""
        return bool(self._far)

    @property
    def bound(self) -> BoundProgram:
        """The program over its memory."""
        return self._bound

    @property
    def executables(self) -> list[Executable]:
        """The executables, one for each split."""
        return self._bound.executables

    @property
    def copied_bytes(self) -> int:
        """Bytes copied between memories so far."""
        return self.moved.nbytes

    def read_buffer(self, buffer: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of one of the program's buffers, for tests and tools."""
        return self._bound.memories[buffer].read(offset, nbytes)

    def fill_arenas(self, byte: int) -> None:
        """Sets every byte of the session's own memory, so that bytes which a run does not write
        show.

        Weights and caches stay as they are."""
        for spec, memory in zip(self.program.buffers, self._bound.memories, strict=True):
            if spec.kind == "arena" and spec.size:
                memory.write(0, np.full(spec.size, byte, np.uint8))

    # ---- memory ----------------------------------------------------------------------------------

    def _flat(self, index: int, name: str) -> NDArray[Any]:
        spec = self.program.tensors[index]
        nbytes = max_bytes(spec)
        start = _fixed(spec, name)
        host = self._bound.memories[spec.buffer].host()
        if host is None:
            if index not in self._staging:
                self._staging[index] = np.zeros(nbytes, np.uint8)
            return self._staging[index].view(spec.dtype.storage)
        return host[start : start + nbytes].view(spec.dtype.storage)


def _getter(names: tuple[str, ...]) -> Callable[[Mapping[str, int]], Sequence[int]]:
    """A function that takes the values of some symbols, in order; it raises KeyError."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: [values[name] for name in names]


def _find(names: Mapping[str, int], name: str, what: str) -> int:
    if name not in names:
        raise ProgramError(f"no {what} {name!r}; the program has {sorted(names)}")
    return names[name]


def _fixed(spec: TensorSpec, name: str) -> int:
    if not isinstance(spec.offset, int):
        raise ProgramError(
            f"{name!r} is a view that begins at byte {spec.offset!r}; use output() and run()"
        )
    return spec.offset


def _with_own_states(program: Program) -> Program:
    """The program over states of its own, which hold the first values; the program itself where it
    has none."""
    if not program.states:
        return program
    of_states = {program.tensors[index].buffer for index in program.states.values()}

    def own(number: int, spec: BufferSpec) -> BufferSpec:
        return replace(spec, data=spec.data.copy()) if number in of_states else spec

    buffers = tuple(own(number, spec) for number, spec in enumerate(program.buffers))
    return replace(program, buffers=buffers)


class State:
    """One state of a session, see `weft.state`; use it between runs."""

    def __init__(
        self, name: str, spec: TensorSpec, first: NDArray[Any], memory: Callable[[], Memory]
    ) -> None:
        """`first` are the initial values, `memory` is the place where the session has the state
        now."""
        self.name = name
        self._spec = spec
        self._first = first
        self._memory = memory

    def read(self) -> NDArray[Any]:
        """A copy of the values, in PyTorch order of sizes (bf16 as uint16
        bits, block types as uint8 rows). Raises DeviceError where the device fails."""
        try:
            return read_array(self._spec, self._memory(), {})
        except Exception as error:
            raise named_fault(f"state {self.name}", error) from error

    def write(self, values: ArrayLike) -> None:
        """Replaces the values by an array of the state's shape (leading ones may be left out) and
        element type.

        Raises ProgramError for another shape or type, DeviceError where the device fails."""
        self._put(checked(self.name, np.asarray(values), self._spec, {}, "state"))

    def reset(self) -> None:
        """Puts the first values back. Raises DeviceError where the device fails."""
        self._put(HostMemory(self._first).host())

    def _put(self, raw: NDArray[np.uint8]) -> None:
        try:
            self._memory().write(0, raw)
        except Exception as error:
            raise named_fault(f"state {self.name}", error) from error

    def __repr__(self) -> str:
        return f"<State {described(self.name, self._spec)}>"
