"""The values that kernels read and write: arguments, buffers, and the memory of a group.

A buffer is an array of words; a number of bytes says where a value begins. Values of 4 bytes or
more begin at a word, except bytes that are read as vectors. A buffer that a kernel declares as
`const uint4*` is an array of vectors of four words.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.webgpu.translation.source import Source
from weft.backends.webgpu.translation.types import (
    BYTES,
    FLOAT,
    QUAD,
    Array,
    Number,
    Pointer,
    Struct,
    TranslationError,
    Type,
    Value,
)


def from_arguments(type_: Type, at: int) -> str:
    """A value of the arguments whose first word is number `at`."""
    if isinstance(type_, Number):
        kind, step = type_.kind, type_.size // type_.n // 4
        if type_.n > 4 or type_.size < 4:
            raise TranslationError(f"an argument is of type {type_}")

        def one(i: int) -> str:
            low, high = (f"arguments[{at + i * step + k}]" for k in (0, 1))
            if kind in ("i64", "u64"):
                return f"{kind}(u64({low}) | (u64({high}) << 32u))"
            return low if kind == "u32" else f"bitcast<{kind}>({low})"

        items = [one(i) for i in range(type_.n)]
        return items[0] if type_.n == 1 else f"{type_.wgsl}({', '.join(items)})"
    if isinstance(type_, Array):
        step = type_.size // type_.n // 4
        values = [from_arguments(type_.of, at + i * step) for i in range(type_.n)]
        return f"{type_.wgsl}({', '.join(values)})"
    if isinstance(type_, Struct):
        fields = [from_arguments(t, at + place // 4) for _, t, place in type_.places()]
        return f"{type_.name}({', '.join(fields)})"
    raise TranslationError(f"an argument is of type {type_}")


def load(module: Source, pointer: Pointer, at: str) -> Value:
    """The value that begins `at` bytes behind the beginning of the memory of a pointer."""
    to, kind = pointer.to, pointer.to.kind
    size = BYTES[to.base]
    if pointer.at == "local":
        module.uses_local = True
        if size == 8 and to.n == 1:
            return _one(module, "shared", to, at)
        if size != 4:
            raise TranslationError(f"local memory of {to.base} is not known")
        if to.n == 1:
            return Value(_as(kind, f"shared_get(({at}) >> 2u)"), to)
        name = f"shared_{to.n}{to.letter}"
        return Value(
            f"{module.make(name, _reader(name, to, lambda i: f'shared_get(w + {i})'))}({at})", to
        )
    b = pointer.at
    if not b:
        raise TranslationError("a pointer is read before it points anywhere")
    if to.n == 1:
        return _one(module, b, to, at)
    if to == QUAD and b in module.quads:
        return Value(f"{b}[({at}) >> 4u]", to)
    if to.n == 16 and size in (2, 4) and b in module.quads:
        return Value(f"{_sixteen(module, b, to)}({at})", to)
    if size == 4:
        name = f"{b}_{to.n}{to.letter}"
        return Value(
            f"{module.make(name, _reader(name, to, lambda i: f'{b}_get(w + {i})'))}({at})", to
        )
    if size == 1:
        return Value(f"{_bytes(module, b, to)}({at})", to)
    if to.base == "ushort" and to.n >= 4:
        name = f"{b}_{to.n}s"
        words = [f"{b}_get(w + {i})" for i in range(to.n // 2)]
        items = [f"{word} {part}" for word in words for part in ("& 65535u", ">> 16u")]
        fours = [f"vec4<u32>({', '.join(items[i : i + 4])})" for i in range(0, to.n, 4)]
        halves = ", ".join(fours)
        value = halves if to.n == 4 else f"{to.wgsl}({halves})"
        module.make(
            name, f"fn {name}(at: i32) -> {to.wgsl} {{ let w = at >> 2u; return {value}; }}"
        )
        return Value(f"{name}({at})", to)
    raise TranslationError(f"{to} is read from a buffer")


def _sixteen(module: Source, b: str, to: Number) -> str:
    """The function that reads 16 numbers of 2 or 4 bytes from a buffer of vectors, where they begin
    at a multiple of 16 bytes."""
    n = BYTES[to.base]
    words = [f"b[{i}].{part}" for i in range(n) for part in "xyzw"]
    if to.base == "half":
        pairs = [f"unpack2x16float({word})" for word in words]
    elif n == 2:
        pairs = [f"vec2<u32>({word} & 65535u, {word} >> 16u)" for word in words]
    else:
        both = zip(words[::2], words[1::2], strict=True)
        pairs = [f"vec2<{to.kind}>({_as(to.kind, x)}, {_as(to.kind, y)})" for x, y in both]
    fours = [f"vec4<{to.kind}>({x}, {y})" for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
    loads = ", ".join(f"{b}[q + {i}]" for i in range(n))
    name = f"{b}_16{to.base}"
    code = (
        f"fn {name}(at: i32) -> {to.wgsl} {{ let q = at >> 4u;"
        f" let b = array<vec4<u32>, {n}>({loads}); return {to.wgsl}({', '.join(fours)}); }}"
    )
    return module.make(name, code)


def _one(module: Source, b: str, to: Number, at: str) -> Value:
    size, kind = BYTES[to.base], to.kind
    if size == 4:
        return Value(_as(kind, f"{b}_get(({at}) >> 2u)"), to)
    if size == 8:
        name = f"{b}_{to.base}"
        words = f"let w = at >> 2u; let low = {b}_get(w); let high = {b}_get(w + 1);"
        if to.base.startswith("narrow_"):
            value = module.need("narrowed") + "(low, high)"
            value = value if kind == "i32" else f"u32({value})"
        else:
            value = f"{kind}(u64(low) | (u64(high) << 32u))"
        module.make(name, f"fn {name}(at: i32) -> {kind} {{ {words} return {value}; }}")
        return Value(f"{name}({at})", to)
    name = f"{b}_{size}"
    mask = f"{(1 << 8 * size) - 1}u"
    module.make(
        name,
        f"fn {name}(at: i32) -> u32 {{ let word = {b}_get(at >> 2u);"
        f" return (word >> (u32(at & 3) * 8u)) & {mask}; }}",
    )
    code = f"{name}({at})"
    if to.base == "half":
        return Value(f"unpack2x16float({code}).x", FLOAT)
    if to.is_signed:
        rest = f"{32 - 8 * size}u"
        return Value(f"(bitcast<i32>({code} << {rest}) >> {rest})", to)
    return Value(code, to)


def _bytes(module: Source, b: str, to: Number) -> str:
    """The function that reads a vector of bytes, which may begin anywhere."""
    name = f"{b}_{to.n}{'c' if to.is_signed else 'b'}"
    unpack = module.need("chars_of" if to.is_signed else "bytes_of")
    words = [f"{unpack}({b}_word(at + {4 * i}))" for i in range(max(to.n // 4, 1))]
    if to.n == 2:
        value = f"{words[0]}.xy"
    else:
        value = words[0] if to.n == 4 else f"{to.wgsl}({', '.join(words)})"
    return module.make(name, f"fn {name}(at: i32) -> {to.wgsl} {{ return {value}; }}")


def _as(kind: str, code: str) -> str:
    return code if kind == "u32" else f"bitcast<{kind}>({code})"


def _reader(name: str, to: Number, word: Callable[[int], str]) -> str:
    """A function that reads a vector of words."""
    items = [_as(to.kind, word(i)) for i in range(to.n)]
    if to.n <= 4:
        value = f"{to.wgsl}({', '.join(items)})"
    else:
        fours = [f"vec4<{to.kind}>({', '.join(items[i : i + 4])})" for i in range(0, to.n, 4)]
        value = f"{to.wgsl}({', '.join(fours)})"
    return f"fn {name}(at: i32) -> {to.wgsl} {{ let w = at >> 2u; return {value}; }}"


def store(module: Source, pointer: Pointer, at: str, value: Value) -> list[str]:
    """The statements that write a value, which has the type of the pointer (a half is a float)."""
    to = pointer.to
    if to.n > 1:
        items = [(f"v{element(to, i)}", i * BYTES[to.base]) for i in range(to.n)]
        one = Pointer(to.of(1), pointer.at)
        lines = [f"let at = {at};", f"let v = {value.code};"]
        for item, place in items:
            lines += store(module, one, f"at + {place}", Value(item, to.of(1)))
        return ["{", *(f"  {line}" for line in lines), "}"]
    size, b = BYTES[to.base], pointer.at
    if b in module.quads:
        raise TranslationError("a buffer of uint4 is written to")
    bits = value.code if to.kind == "u32" else f"bitcast<u32>({value.code})"
    if b == "local":
        module.uses_local = True
        b = "shared"
    if size == 4:
        return [f"{b}_put(({at}) >> 2u, {bits});"]
    if size == 8:
        # the value is computed once: it may be made of what is in this place
        if to.base.startswith("narrow_"):
            low = "v" if to.kind == "u32" else "bitcast<u32>(v)"
            high = "bitcast<u32>(v >> 31u)" if to.is_signed else "0u"
        else:
            low, high = "u32(u64(v))", "u32(u64(v) >> 32u)"
        given = f"let w = ({at}) >> 2u; let v = {value.code};"
        return [f"{{ {given} {b}_put(w, {low}); {b}_put(w + 1, {high}); }}"]
    module.bytewise.add(b)
    if to.base == "half":
        bits = f"pack2x16float(vec2<f32>({value.code}, 0.0))"
    return [f"{b}_part({at}, {bits}, {(1 << 8 * size) - 1}u);"]


def element(type_: Number, i: int) -> str:
    """Element `i` of a vector, as what stands behind its name."""
    return f".{'xyzw'[i]}" if type_.n <= 4 else f"[{i // 4}].{'xyzw'[i % 4]}"
