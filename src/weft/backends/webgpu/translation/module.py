"""A kernel with all that it calls, as a module of WGSL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.webgpu.translation.function import Function
from weft.backends.webgpu.translation.source import STORED, Source
from weft.backends.webgpu.translation.types import LETTERS, TranslationError, Type, wgsl


def translate(
    source: str,
    defines: Sequence[str],
    kernel: str,
    group: Sequence[int],
    local_bytes: int,
    *,
    wide: bool = False,
    stored: Mapping[str, int] | None = None,
) -> str:
    """A kernel of a file as a module of WGSL with the function `main`.

    `group` are the numbers of items of a group, `local_bytes` is the size of its memory. Binding 0
    has the arguments that are not buffers, as words: the first item along each dimension, and then
    in order the bytes of numbers and structs, and the offset of each local memory. Binding i has
    buffer i - 1. Along the first dimension, get_group_id counts the groups before the first item,
    too, since only this device cuts that dimension. With `wide`, numbers of 64 bits are computed as
    such; otherwise numbers in buffers become the nearest number of 32 bits.

    `stored` has the names of constant arrays of unsigned numbers that the source uses and does not
    declare, with the word at which each begins in the last binding, behind the buffers.

    Raises TranslationError for what is not known, with file and line."""
    read = Source(source, defines, tuple(group), wide=wide, stored=stored or {})
    return Translation(read).kernel(kernel, local_bytes)


_SUBGROUPS = ("subgroup_id", "subgroup_invocation_id", "subgroup_size", "num_subgroups")
"""The built-in values that a kernel with subgroups takes; its groups have one dimension."""


class Translation:
    """Translates a kernel of a source and the functions that it calls."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._translated: dict[tuple[str, tuple[Type, ...]], tuple[str, Type]] = {}
        self._code: list[str] = []

    def call(self, name: str, types: tuple[Type, ...]) -> tuple[str, Type]:
        """The name and the type of a function of the source for arguments of these types."""
        key = name, types
        found = self._translated.get(key)
        if found is None:
            unique = f"{name}_{len(self._translated)}"
            self._translated[key] = unique, None  # it does not call itself
            function = self._source.functions[name]
            code, result = Function(self._source, self.call).function(function, types, unique)
            self._code.append(code)
            found = self._translated[key] = unique, result
        return found

    def kernel(self, name: str, local_bytes: int) -> str:
        """The module with a kernel as `main`."""
        source = self._source
        if name not in source.functions:
            raise TranslationError(f"there is no kernel {name}")
        body, n = Function(source, self.call).kernel(source.functions[name])
        x, y, z = source.group
        size = f"vec3<u32>({x}u, {y}u, {z}u)"
        given, kept = "", ""
        if source.uses_subgroups:
            given = "".join(f",\n  @builtin({name}) {name}: u32" for name in _SUBGROUPS)
            kept = "".join(f"  {name}_here = {name};\n" for name in _SUBGROUPS)
        main = f"""@compute @workgroup_size({x}, {y}, {z})
fn main(@builtin(local_invocation_id) item: vec3<u32>,
  @builtin(workgroup_id) group: vec3<u32>{given}) {{
{kept}  local_id = item;
  group_id = group + vec3<u32>(arguments[0] / {x}u, 0u, 0u);
  global_id = vec3<u32>(arguments[0], arguments[1], arguments[2]) + group * {size} + item;
{body}
}}"""
        parts = [
            "@group(0) @binding(0) var<storage, read> arguments: array<u32>;",
            *(self._buffer(f"b{i}", i + 1) for i in range(n)),
            *([self._buffer(STORED, n + 1)] if source.stored else []),
            "var<private> infinite_bits: u32 = 0x7f800000u;",
            *(f"var<private> {name}_id: vec3<u32>;" for name in ("local", "group", "global")),
            *(
                f"alias V{n}{letter} = array<vec4<{kind}>, {n // 4}>;"
                for kind, letter in LETTERS.items()
                for n in (8, 16)
                if source.wide or kind not in ("i64", "u64")
            ),
        ]
        if source.uses_subgroups:
            parts += [f"var<private> {name}_here: u32;" for name in _SUBGROUPS]
        if source.uses_local:
            n_words = max(local_bytes // 4, 1)
            parts += [
                f"var<workgroup> shared_words: array<u32, {n_words}>;",
                "fn shared_get(w: i32) -> u32 { return shared_words[w]; }",
                "fn shared_put(w: i32, v: u32) { shared_words[w] = v; }",
            ]
        for struct in source.structs.values():
            fields = ", ".join(f"{field}_: {wgsl(t)}" for field, t in struct.fields)
            parts.append(f"struct {struct.name} {{ {fields} }}")
        return "\n".join([*parts, *source.helpers.values(), *self._code, main])

    def _buffer(self, b: str, binding: int) -> str:
        """A buffer with the functions that read and write its words. Where parts of words are
        written, words are atomic: items write to the same one."""
        declared = f"@group(0) @binding({binding}) var<storage, read_write> {b}"
        if b in self._source.quads:
            return "\n".join(
                (f"{declared}: array<vec4<u32>>;", _get(b, f"{b}[w >> 2u][w & 3]"), _word(b))
            )
        atomic = b in self._source.bytewise
        word = "atomic<u32>" if atomic else "u32"
        get = f"atomicLoad(&{b}[w])" if atomic else f"{b}[w]"
        put = f"atomicStore(&{b}[w], v)" if atomic else f"{b}[w] = v"
        lines = [
            f"{declared}: array<{word}>;",
            _get(b, get),
            f"fn {b}_put(w: i32, v: u32) {{ {put}; }}",
            _word(b),
        ]
        if atomic:
            lines.append(
                f"fn {b}_part(at: i32, v: u32, mask: u32) {{"
                f" let w = at >> 2u; let s = u32(at & 3) * 8u;"
                f" atomicAnd(&{b}[w], ~(mask << s)); atomicOr(&{b}[w], (v & mask) << s); }}"
            )
        return "\n".join(lines)


def _get(b: str, word: str) -> str:
    """The function that reads a word of a buffer."""
    return f"fn {b}_get(w: i32) -> u32 {{ return {word}; }}"


def _word(b: str) -> str:
    """The function that reads four bytes of a buffer, which may begin anywhere."""
    return (
        f"fn {b}_word(at: i32) -> u32 {{ let w = at >> 2u; let s = u32(at & 3) * 8u;"
        f" if (s == 0u) {{ return {b}_get(w); }}"
        f" return ({b}_get(w) >> s) | ({b}_get(w + 1) << (32u - s)); }}"
    )
