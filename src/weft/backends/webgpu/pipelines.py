"""Pipelines, which threads compile while other work goes on.

wgpu-native compiles in the calling thread, which does not hold the interpreter's lock meanwhile; it
has no function that returns before. Its cache of pipelines (the feature `pipeline-cache`) has no
function in the library's interface, so that drivers alone keep what they compiled; the modules of
WGSL are on disk (`builds`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.backends.kernels.compiling import Compiled, Compiling
from weft.backends.webgpu.builds import translated
from weft.backends.webgpu.devices import Found
from weft.backends.webgpu.edges import CODE as EDGE
from weft.backends.webgpu.library import guarded
from weft.backends.webgpu.translation import TranslationError
from weft.errors import DeviceError


class Key(NamedTuple):
    """The kernel of a pipeline, and the sizes that are constants in it."""

    file: str
    defines: tuple[str, ...]
    kernel: str
    group: tuple[int, ...]
    """Items of a group."""
    local: int
    """Bytes of a group's memory."""


class Pipelines:
    """The pipelines of a device."""

    def __init__(self, compiling: Compiling, device: Any, found: Found, stage: int) -> None:
        """`device` is wgpu's, `stage` its number of compute shaders."""
        self._compiling = compiling
        self._device = device
        self._found = found
        self._stage = stage
        self._layouts: dict[int, tuple[Any, Any]] = {}

    def get(self, key: Key, n_buffers: int) -> Compiled:
        """A kernel's pipeline, which a thread begins to compile on first use."""
        return self._compiling.asked(key, lambda: self._compile(key, n_buffers), early=True)

    @property
    def edge(self) -> Compiled:
        """The pipeline that writes parts of words."""
        return self._compiling.asked("edge", lambda: self.made(EDGE, self.layout(1)[1]))

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

    def made(self, code: str, layout: Any) -> Any:
        """The pipeline of a module of WGSL, whose kernel is `main`."""
        module = self._device.create_shader_module(code=code)
        compute = {"module": module, "entry_point": "main"}
        return self._device.create_compute_pipeline(layout=layout, compute=compute)

    def _compile(self, key: Key, n_buffers: int) -> Any:
        found = self._found
        where = f"{self._compiling.device}: kernel {key.kernel} of {key.file}"
        what = f"{where} does not build on {found.name}"
        try:
            code = translated(*key, found.has_wide)
        except TranslationError as error:
            raise DeviceError(f"{what}: {error}") from error
        with guarded(what):
            return self.made(code, self.layout(n_buffers)[1])
