"""The functions of OpenCL that kernels call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from weft.backends.webgpu.translation.helpers import C_NAMES, SAME_NAMES
from weft.backends.webgpu.translation.types import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    UINT,
    Array,
    Number,
    Pointer,
    Reference,
    TranslationError,
    Value,
    common,
    number,
    parts,
)
from weft.backends.webgpu.translation.values import Values

_PLACES = {"get_global_id": "global_id", "get_local_id": "local_id", "get_group_id": "group_id"}
_OF_SUBGROUPS = {
    "get_max_sub_group_size": "subgroup_size", "get_num_sub_groups": "num_subgroups",
    "get_sub_group_id": "subgroup_id", "get_sub_group_local_id": "subgroup_invocation_id",
}  # fmt: skip
_TESTS = ("isfinite", "isinf", "isnan")
_TYPES = r"(u?char|u?short|u?int|u?long|float)(\d*)"


def built_in(own: Values, name: str, nodes: Sequence[Any], values: list[Value]) -> Value:
    """A call of a function of OpenCL with the values of its arguments, which `nodes` are. Raises
    TranslationError for one that is not known."""
    if name in _PLACES:
        return Value(f"i32({_PLACES[name]}[{own.module.constant(nodes[0])}])", INT)
    if name == "get_local_size":
        return Value(f"{own.module.group[own.module.constant(nodes[0])]}i", INT)
    if name in _OF_SUBGROUPS:
        own.module.uses_subgroups = True
        return Value(f"i32({_OF_SUBGROUPS[name]}_here)", INT)
    if name == "sub_group_shuffle_xor":
        return _shuffled(own, *values)
    if name == "barrier":
        fence = own.module.constant(nodes[0]) & 2
        own.emit("workgroupBarrier();" + (" storageBarrier();" if fence else ""))
        return Value("", None)
    memory = re.fullmatch(r"v(load|store)(_half)?(\d*)(_rte)?", name)
    if memory is not None:
        base, n = "half" if memory[2] else "", int(memory[3] or 1)
        if memory[1] == "load":
            return _load(own, values[0], values[1], base, n)
        return _store(own, values[0], values[1], values[2], base, n)
    to = re.fullmatch(rf"convert_{_TYPES}(_rte)?", name)
    if to is not None:
        return own.convert(values[0], _type(own, to[1], to[2]))
    to = re.fullmatch(rf"as_{_TYPES}", name)
    if to is not None:
        return _bits(own, values[0], _type(own, to[1], to[2]))
    return _computed(own, name, values)


def _type(own: Values, base: str, n: str) -> Number:
    if base in ("long", "ulong") and not own.module.wide:
        base = f"narrow_{base}"
    return Number(base, int(n or 1))


def _shuffled(own: Values, value: Value, by: Value) -> Value:
    """A number of another item of the subgroup; halves of 64 bits go one by one."""
    function = "subgroupShuffleXor"
    type_, item = number(value.type), own.convert(by, UINT).code
    if type_.kind not in ("i64", "u64"):
        return Value(f"{function}({value.code}, {item})", type_)
    name, kind = f"{function}_{type_.letter}", type_.kind
    code = (
        f"fn {name}(x: {kind}, by: u32) -> {kind} {{ let low = {function}(u32(u64(x)), by);"
        f" let high = {function}(u32(u64(x) >> 32u), by);"
        f" return {kind}(u64(low) | (u64(high) << 32u)); }}"
    )
    return Value(f"{own.module.make(name, code)}({value.code}, {item})", type_)


def _computed(own: Values, name: str, values: list[Value]) -> Value:
    types = [number(value.type) for value in values]
    if name in ("min", "max"):
        type_ = common(*types)
        codes = [own.convert(value, type_).code for value in values]
        return Value(f"{name}({', '.join(codes)})", type_)
    if name in ("abs", "clamp"):
        type_ = common(types[0], INT) if types[0].n == 1 else types[0]
        codes = [own.convert(value, type_).code for value in values]
        return Value(f"{name}({', '.join(codes)})", type_)
    if name == "built_in_dot4":
        codes = [own.convert(value, UINT).code for value in values]
        return Value(f"dot4I8Packed({', '.join(codes)})", INT)
    if name == "popcount":
        return Value(f"countOneBits({values[0].code})", types[0])
    n = max((t.n for t in types), default=1)
    type_ = Number("float", n)
    codes = [own.convert(value, type_).code for value in values]
    if name == "fma":
        if n <= 4:
            return Value(f"fma({', '.join(codes)})", type_)
        t, helper = type_.wgsl, f"fma_{n}"
        fours = ", ".join(f"fma(a[{i}], b[{i}], c[{i}])" for i in range(parts(type_)))
        code = f"fn {helper}(a: {t}, b: {t}, c: {t}) -> {t} {{ return {t}({fours}); }}"
        return Value(f"{own.module.make(helper, code)}({', '.join(codes)})", type_)
    if name in SAME_NAMES and n <= 4:
        return Value(f"{SAME_NAMES[name]}({', '.join(codes)})", type_)
    if name == "fmod":
        return Value(f"({codes[0]} % {codes[1]})", type_)
    if name in C_NAMES and n == 1:
        code = f"{own.module.need(C_NAMES[name])}({', '.join(codes)})"
        return Value(code, BOOL if name in _TESTS else FLOAT)
    raise TranslationError(f"function {name} of {n} elements is not known")


# **** memory ****


def _load(own: Values, offset: Value, pointer: Value, base: str, n: int) -> Value:
    """vloadN and vload_halfN."""
    at = own.convert(offset, INT).code
    if isinstance(pointer.type, Reference) and base == "half":  # of a variable that has its bits
        return Value(f"unpack2x16float(*({pointer.code})).x", FLOAT)
    if isinstance(pointer.type, Array):
        to = number(pointer.type.of).of(n)
        items = [f"{pointer.code}[({at}) * {n} + {i}]" for i in range(n)]
        if n <= 4:
            return Value(f"{to.wgsl}({', '.join(items)})", to)
        fours = [f"vec4<{to.kind}>({', '.join(items[i : i + 4])})" for i in range(0, n, 4)]
        return Value(f"{to.wgsl}({', '.join(fours)})", to)
    if not isinstance(pointer.type, Pointer):
        raise TranslationError(f"a vector is read from {pointer.type}")
    if base == "half" and n > 1:
        b = pointer.type.at
        if b in own.module.quads:
            halves = own.moved(own.pointed(pointer, Number(base, n)), at)
            return Value(own.loaded(halves).code, Number("float", n))
        name = f"{b}_{n}h"
        pairs = [f"unpack2x16float({b}_word(at + {4 * i}))" for i in range(n // 2)]
        fours = [f"vec4<f32>({pairs[i]}, {pairs[i + 1]})" for i in range(0, n // 2, 2)]
        to = Number("float", n)
        code = f"fn {name}(at: i32) -> {to.wgsl} {{ return {to.wgsl}({', '.join(fours)}); }}"
        return Value(f"{own.module.make(name, code)}({pointer.code} + ({at}) * {2 * n})", to)
    place = own.pointed(pointer, Number(base or pointer.type.to.base, n))
    return own.loaded(own.moved(place, at))


def _store(own: Values, value: Value, offset: Value, pointer: Value, base: str, n: int) -> Value:
    """vstoreN and vstore_half."""
    at = own.convert(offset, INT).code
    if isinstance(pointer.type, Reference) and base == "half":
        bits = f"pack2x16float(vec2<f32>({own.convert(value, FLOAT).code}, 0.0))"
        own.emit(f"*({pointer.code}) = {bits};")
    elif isinstance(pointer.type, Array):
        own.put_elements(pointer, f"({at}) * {n}", value)
    elif isinstance(pointer.type, Pointer):
        place = own.pointed(pointer, Number(base or pointer.type.to.base, n))
        own.put(own.moved(place, at), value)
    else:
        raise TranslationError(f"a vector is written to {pointer.type}")
    return Value("", None)


# **** bits ****


def _bits(own: Values, value: Value, to: Number) -> Value:
    """as_TYPE: the same bits as another type."""
    have, module = number(value.type), own.module
    if have.n == to.n:
        return Value(_same_bits(own, value.code, have, to), to)
    name = f"as_{have.n}{have.base}_{to.n}{to.base}"
    if BYTES[have.base] == 4 and to.base == "uchar" and to.n == 4 * have.n:
        unpack = module.need("bytes_of")
        if have.n == 1:
            return Value(f"{unpack}(bitcast<u32>({value.code}))", to)
        words = ", ".join(f"{unpack}(bitcast<u32>(x{'.' + 'xyzw'[i]}))" for i in range(have.n))
        code = f"fn {name}(x: {have.wgsl}) -> {to.wgsl} {{ return {to.wgsl}({words}); }}"
        return Value(f"{module.make(name, code)}({value.code})", to)
    if have.base == "uchar" and to.base == "uint" and have.n == 4 * to.n:
        pack = module.need("word_of")
        if to.n == 1:
            return Value(f"{pack}({value.code})", to)
        words = ", ".join(f"{pack}(x[{i}])" for i in range(to.n))
        code = f"fn {name}(x: {have.wgsl}) -> {to.wgsl} {{ return {to.wgsl}({words}); }}"
        return Value(f"{module.make(name, code)}({value.code})", to)
    if have == Number("uchar", 2) and to.base == "ushort":
        code = f"fn {name}(x: vec2<u32>) -> u32 {{ return x.x | (x.y << 8u); }}"
        return Value(f"{module.make(name, code)}({value.code})", to)
    if have.base in ("long", "narrow_long") and to == Number("int", 2):
        high = f"i32({value.code} >> 32u)" if have.base == "long" else f"{value.code} >> 31u"
        return Value(f"vec2<i32>(i32({value.code}), {high})", to)
    raise TranslationError(f"the bits of {have} as {to}")


def _same_bits(own: Values, code: str, have: Number, to: Number) -> str:
    if BYTES[have.base] == 1 and BYTES[to.base] == 1 and have.kind != to.kind:
        name = f"as_{to.base}{to.n}"
        if not to.is_signed or to.n < 4:
            raise TranslationError(f"the bits of {have} as {to}")
        shift = "vec4<u32>(24u)"
        ends = range(parts(to))
        fours = [
            f"bitcast<vec4<i32>>(x{f'[{i}]' if to.n > 4 else ''} << {shift}) >> {shift}"
            for i in ends
        ]
        value = fours[0] if to.n == 4 else f"{to.wgsl}({', '.join(fours)})"
        text = f"fn {name}(x: {have.wgsl}) -> {to.wgsl} {{ return {value}; }}"
        return f"{own.module.make(name, text)}({code})"
    if have.kind == to.kind:
        return code
    if to.n <= 4:
        return f"bitcast<{to.wgsl}>({code})"
    name = f"as_{to.n}{have.letter}{to.letter}"
    fours_ = ", ".join(f"bitcast<vec4<{to.kind}>>(x[{i}])" for i in range(parts(to)))
    text = f"fn {name}(x: {have.wgsl}) -> {to.wgsl} {{ return {to.wgsl}({fours_}); }}"
    return f"{own.module.make(name, text)}({code})"
