"""Pipelines, which threads compile while other work goes on.

wgpu-native compiles in the calling thread, which does not hold the interpreter's lock meanwhile; it
has no function that returns before. Its cache of pipelines (the feature `pipeline-cache`) has no
function in the library's interface, so that drivers alone keep what they compiled; the modules of
WGSL are on disk (`builds`)."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any
from weakref import ref

from weft.backends.webgpu.builds import translated
from weft.backends.webgpu.devices import Found
from weft.backends.webgpu.library import guarded
from weft.backends.webgpu.translation import TranslationError
from weft.errors import DeviceError

Key = tuple[str, tuple[str, ...], str, tuple[int, ...], int]
"""File, defines, kernel, items of a group, bytes of local memory."""


class Pipeline:
    """A pipeline that is compiled, or will be by a thread or by the first who needs it."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build: Callable[[], Any] | None = build
        self._lock = Lock()
        self._result: Any = None

    def built(self) -> Any:
        """The pipeline, once it is compiled; raises DeviceError where the kernel does not
        build."""
        if self._build is not None:
            with self._lock:
                if self._build is not None:
                    self._result = self._build()
                    self._build = None
        return self._result

    def try_build(self) -> None:
        """Compiles it; an error is raised again for the first who needs it."""
        try:
            self.built()
        except DeviceError:
            pass


class Pipelines:
    """The pipelines of a device."""

    def __init__(self, name: str, device: Any, found: Found, stage: int) -> None:
        """`device` is wgpu's, `stage` its number of compute shaders."""
        self._name = name
        self._device = device
        self._found = found
        self._stage = stage
        self._lock = Lock()
        self._pipelines: dict[Key, Pipeline] = {}
        self._layouts: dict[int, tuple[Any, Any]] = {}

    def get(self, key: Key, n_buffers: int) -> Pipeline:
        """A kernel's pipeline, which a thread begins to compile on first use."""
        found = self._pipelines.get(key)
        if found is None:
            with self._lock:
                found = self._pipelines.get(key)
                if found is None:
                    found = Pipeline(lambda: self._compile(key, n_buffers))
                    self._pipelines[key] = found
                    _workers.add(found)
        return found

    @property
    def n_pipelines(self) -> int:
        """The number of kernels that were asked for."""
        return len(self._pipelines)

    def layout(self, n_buffers: int) -> tuple[Any, Any]:
        """The layouts of bind groups and of pipelines for kernels of this many buffers: their
        arguments first, at an offset that each launch gives."""
        found = self._layouts.get(n_buffers)
        if found is None:
            arguments = {"type": "read-only-storage", "has_dynamic_offset": True}
            kinds = [arguments, *({"type": "storage"} for _ in range(n_buffers))]
            group = self._device.create_bind_group_layout(
                entries=[
                    {"binding": i, "visibility": self._stage, "buffer": kind}
                    for i, kind in enumerate(kinds)
                ]
            )
            whole = self._device.create_pipeline_layout(bind_group_layouts=[group])
            found = self._layouts.setdefault(n_buffers, (group, whole))
        return found

    def _compile(self, key: Key, n_buffers: int) -> Any:
        file, defines, kernel, group, local = key
        what = f"{self._name}: kernel {kernel} of {file} does not build on {self._found.name}"
        try:
            code = translated(file, defines, kernel, group, local, self._found.has_wide)
        except TranslationError as error:
            raise DeviceError(f"{what}: {error}") from error
        with guarded(what):
            module = self._device.create_shader_module(code=code)
            return self._device.create_compute_pipeline(
                layout=self.layout(n_buffers)[1],
                compute={"module": module, "entry_point": "main"},
            )


class _Workers:
    """Threads that compile, started on first use; what is no longer wanted by then is left out. At
    exit each ends after what it is at."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], Pipeline | None]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._ended = Event()
        self._pid = os.getpid()

    def add(self, pipeline: Pipeline) -> None:
        if self._pid != os.getpid():  # the threads are not in a process forked from theirs
            return
        if not self._threads:
            n = max(1, min(4, (os.cpu_count() or 2) - 1))
            for i in range(n):
                thread = Thread(target=self._work, name=f"weft-webgpu-{i}", daemon=True)
                self._threads.append(thread)
                thread.start()
            atexit.register(self._end)
        self._waiting.put(ref(pipeline))

    def _work(self) -> None:
        while not self._ended.is_set():
            pipeline = self._waiting.get()()
            if pipeline is not None:
                pipeline.try_build()
            del pipeline  # its device may go while this thread waits

    def _end(self) -> None:
        self._ended.set()
        for _ in self._threads:
            self._waiting.put(lambda: None)
        for thread in self._threads:
            thread.join(10)


_workers = _Workers()
