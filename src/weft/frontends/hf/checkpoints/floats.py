"""Checkpoints of small floats with scales: FP8, NVFP4, MXFP4, and bitsandbytes' tables of 16."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.checkpoints.integers import How, Tensors, floats_of, int8_matrix
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import Stored
from weft.frontends.hf.values import Floats, Values, decode_f8

_SCALES = ("_scale_inv", "_scale")
_ONE = np.float32(1)
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)


def scaled(
    c: Config,
    plain: Tensors,
    stored: Mapping[str, Stored],
    blocks: Sequence[Sequence[int]] = (),
) -> Tensors:
    """The tensors with the products of weights and their scales, which are told apart by the types
    of both: FP8 and bytes with floats, four-bit floats with FP8 (NVFP4) or exponents (MXFP4).
    `blocks` are the sizes of blocks that config.json states."""
    out = dict(plain)
    for name, scale in plain.items():
        end = next((end for end in _SCALES if name.endswith(end)), "")
        stem = name.removesuffix(end) if end else name
        stem = stem.removesuffix("_global")
        weight = stored.get(f"{stem}_packed") or stored.get(stem)
        if not end or weight is None or name.endswith("_global_scale"):
            continue
        packed = weight.name.endswith("_packed")
        zeros = stored.get(f"{stem}_zero_point")
        if weight.kind == "U8":
            made = _four_bits(c, stem, weight, stored[name], plain)
        elif weight.kind == "I8":
            made = int8_matrix(weight, scale, zeros, "bf16")
        elif weight.kind.startswith("F8"):
            made = _bf16(weight.shape, _product(plain[stem], scale, blocks))
        else:
            continue
        for end in ("_packed",) * packed + ("_zero_point", "_scale_2", "_global_scale", "_shape"):
            out.pop(f"{stem}{end}", None)
        del out[name]
        out[stem] = made
    return out


def beside(
    c: Config,
    made: Tensors,
    plain: Tensors,
    stored: Mapping[str, Stored],
    blocks: Sequence[Sequence[int]],
) -> Tensors:
    """The tensors `made` with DeepSeek-V4's weights, whose scales are beside them by the name
    `scale`: FP8 with scales of `blocks`, and codes of four bits with exponents (MXFP4)."""
    out = dict(made)
    for name, scales in stored.items():
        stem, found, rest = name.rpartition(".scale")
        weight = stored.get(f"{stem}.weight")
        if not found or rest or weight is None:
            continue
        del out[name]
        if weight.kind.startswith("F8"):
            product = _product(plain[weight.name], plain[name], blocks)
            out[weight.name] = _bf16(weight.shape, product)
        else:
            if (*weight.shape[:-1], weight.shape[-1] / 16) != scales.shape:
                raise FormatError(f"{c.folder}: {name} does not fit the blocks of its weight")
            out[weight.name] = mxfp4(weight, scales)
    return out


def _product(
    weight: Values, scale: Values, blocks: Sequence[Sequence[int]]
) -> Callable[[], Floats]:
    """Values times scales: one for all, one for each row, or one for each block; the first of
    `blocks` that fits the sizes of both, or else as many equal ones as there are scales."""
    shape, ends = scale.shape, list(zip(weight.shape[::-1], scale.shape[::-1], strict=False))
    sizes: list[int] = []
    if len(shape) > 1 and len(shape) == len(weight.shape):
        sizes = [1 if m in (1, n) else -(-n // max(m, 1))
                 for n, m in zip(weight.shape, shape, strict=True)]  # fmt: skip
        for block in blocks:
            around = [(-(-n // b), m) for (n, m), b in zip(ends, block[::-1], strict=False)]
            if min(block, default=0) > 0 and len(block) > 1 and all(k == m for k, m in around):
                whole_block = [1] * (len(shape) - len(block)) + list(block)
                # a block that reaches beyond the matrix repeats its scale no further
                sizes = [min(n, k) for n, k in zip(weight.shape, whole_block, strict=True)]
                break
    axes = range(len(shape) - len(sizes), len(shape))
    spread = list(shape)
    for axis, n in zip(axes, sizes, strict=True):
        spread[axis] = min(shape[axis] * n, weight.shape[axis])
    spread += [1] * (len(weight.shape) - len(spread))
    whole = all(
        -(-n // k) == m or m == 1 for n, m, k in zip(weight.shape, shape, sizes, strict=False)
    )
    if not whole or np.broadcast_shapes(weight.shape, tuple(spread)) != weight.shape:
        raise ValueError(f"scales of sizes {list(shape)} for a matrix of {list(weight.shape)}")

    def load() -> Floats:
        s = scale.load()
        for axis, n in zip(axes, sizes, strict=True):
            s = np.repeat(s, n, axis) if n > 1 else s
        cut = tuple(slice(0, n) for n in spread[: s.ndim])
        return np.multiply(weight.load(), s[cut].reshape(spread))

    return load


def _bf16(shape: tuple[int, ...], load: Callable[[], Floats]) -> Values:
    """Values that a GGUF file keeps as bf16 unless another type is asked for."""
    return Values(shape, "bf16", load)


def _four_bits(c: Config, stem: str, codes: Stored, scales: Stored, plain: Tensors) -> Values:
    n = 2 * codes.shape[-1]
    each = n // max(scales.shape[-1], 1) if scales.shape[:-1] == codes.shape[:-1] else 0
    if each == 32 and scales.kind in ("U8", "F8_E8M0"):
        return mxfp4(codes, scales)
    if each == 16 and scales.kind == "F8_E4M3":
        over, under = plain.get(f"{stem}_scale_2"), plain.get(f"{stem}_global_scale")
        factor = _ONE
        if over is not None:
            factor = over.load().reshape(-1)[0]
        elif under is not None:
            factor = np.float32(1) / under.load().reshape(-1)[0]
        return _nvfp4(codes, scales, np.float32(factor))
    raise FormatError(
        f"{c.folder}: {stem} has 4-bit codes {list(codes.shape)} with scales {scales.kind} "
        f"{list(scales.shape)}; weft reads NVFP4 (FP8 scales for 16) and MXFP4 (exponents for 32)"
    )


def of_words(c: Config, stem: str, words: Stored, scales: Stored) -> Values:
    """MLX's modes mxfp4 and nvfp4: eight codes to a word, a byte of scale for 32 or 16 of them."""
    n = scales.shape[-1]
    if words.shape[:-1] == scales.shape[:-1] and words.shape[-1] in (4 * n, 2 * n):
        return mxfp4(words, scales) if words.shape[-1] == 4 * n else _nvfp4(words, scales, _ONE)
    raise FormatError(
        f"{c.folder}: {stem} is quantized by MLX in a mode that weft does not read; it reads "
        "affine, mxfp4 and nvfp4"
    )


def mxfp4(codes: Stored, scales: Stored) -> Values:
    """MXFP4: two codes to a byte `[..., n / 2]` and exponents of groups of 32."""
    shape = (*scales.shape[:-1], scales.shape[-1] * 32)

    def pack() -> NDArray[np.uint8]:
        return mxfp4_blocks(
            codes.data.reshape(*scales.shape, 16), scales.data.reshape(scales.shape)
        )

    def load() -> Floats:
        from weft import quants

        return quants.decode(pack(), "mxfp4").reshape(shape)

    return Values(shape, "mxfp4", load, packed=pack, loose="bf16")


def _halves(codes: NDArray[np.uint8], n: int) -> NDArray[np.uint8]:
    """Codes two to a byte `[..., n_blocks, n / 2]`: in a folder neighbours share a byte; in a file
    element i of a block of `n` shares one with element i + n / 2."""
    each = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], n)
    both: NDArray[np.uint8] = each[..., : n // 2] | each[..., n // 2 :] << 4
    return both


def mxfp4_blocks(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks of MXFP4 as GGUF stores them, uint8 `[..., n_blocks * 17]`, from codes two to a byte
    `[..., n_blocks, 16]` and their exponents `[..., n_blocks]`."""
    whole = np.concatenate((scales[..., None], _halves(codes, 32)), axis=-1)
    return np.ascontiguousarray(whole).reshape(*whole.shape[:-2], -1)


def _nvfp4(codes: Stored, scales: Stored, factor: np.float32) -> Values:
    shape = (*scales.shape[:-1], scales.shape[-1] * 16)

    def pack() -> NDArray[np.uint8]:
        n = scales.shape[-1]
        each = _halves(codes.data.reshape(*scales.shape, 8), 16)
        by_four = each.reshape(*scales.shape[:-1], n // 4, 32)
        bits = scales.data.reshape(*scales.shape[:-1], n // 4, 4)
        return np.concatenate((bits, by_four), axis=-1).reshape(*scales.shape[:-1], -1)

    def load() -> Floats:
        packed = codes.data
        x = _E2M1[np.stack((packed & 15, packed >> 4), axis=-1)].reshape(*scales.shape, 16)
        s = decode_f8(scales.data, "F8_E4M3").reshape(scales.shape) * factor
        return (x * s[..., None]).reshape(shape)

    if shape[-1] % 64:
        return _bf16(shape, load)
    own = None if factor == 1 else np.array([factor], np.float32)
    return Values(shape, "nvfp4", load, packed=pack, loose="bf16", factor=own)


def gpt_oss(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """MXFP4 as gpt-oss has it: blocks and exponents under names of their own."""
    out = {n: v for n, v in plain.items() if not n.endswith(("_blocks", "_scales"))}
    for name, t in stored.items():
        if not name.endswith("_blocks"):
            continue
        stem = name.removesuffix("_blocks")
        scales = stored.get(f"{stem}_scales")
        if scales is None or t.shape[:-1] != scales.shape or t.shape[-1] != 16:
            raise FormatError(f"{c.folder}: {stem} has no scales that fit its blocks")
        out[f"{stem}_mxfp4"] = mxfp4(t, scales)
    return out


# bitsandbytes: codes of 4 bits, the first in the high bits, are places in a table of 16 numbers
# that the checkpoint has; a block of the whole matrix, row after row, shares its largest magnitude.
# These magnitudes may be codes of 8 bits themselves. Codes of 8 bits have a magnitude for each row.

_STATE = ".quant_state.bitsandbytes__"
_NESTED = 256


def bitsandbytes(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """Matrices of bitsandbytes in 4 bits (nf4, fp4) and 8 bits."""
    out = {
        name: values
        for name, values in plain.items()
        if not name.endswith((".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                              ".SCB", ".weight_format")) and _STATE not in name
    }  # fmt: skip
    for name, t in stored.items():
        stem, state, _ = name.partition(_STATE)
        if state:
            out[stem] = _table_matrix(c, stem, t, stored)
        elif name.endswith(".SCB"):
            weight = stored[f"{name.removesuffix('.SCB')}.weight"]
            out[weight.name] = int8_matrix(weight, _share(t), None, "f16")
    return out


def _share(magnitudes: Stored) -> Values:
    """The scales of rows whose codes go up to 127."""
    shape = magnitudes.shape[0], 1
    return Values(shape, "f32", lambda: floats_of(magnitudes).reshape(shape) / np.float32(127))


def _table_matrix(c: Config, stem: str, state: Stored, stored: Mapping[str, Stored]) -> Values:
    about = json.loads(bytes(state.data))
    shape = tuple(int(n) for n in about["shape"])
    size, weight = int(about["blocksize"]), stored[stem]
    n = prod(shape)
    magnitudes, offset = stored[f"{stem}.absmax"], np.float32(about.get("nested_offset", 0))
    whole = 2 * weight.nbytes == n + n % 2 and min(shape, default=0) > 0
    if size < 2 or not whole or magnitudes.shape[0] != -(-n // size):
        raise FormatError(
            f"{c.folder}: {stem} should have {n} codes of 4 bits in blocks of {size}; its "
            "tensors have other sizes: download the model again"
        )

    def load() -> Floats:
        table = floats_of(stored[f"{stem}.quant_map"])
        each = weight.data
        x = table[np.stack((each >> 4, each & 15), -1).reshape(-1)[:n]]
        if magnitudes.kind == "U8":
            inner = floats_of(stored[f"{stem}.nested_quant_map"])[magnitudes.data]
            outer = floats_of(stored[f"{stem}.nested_absmax"])[: -(-inner.size // _NESTED)]
            most = inner * np.repeat(outer, _NESTED)[: inner.size] + offset
        else:
            most = floats_of(magnitudes)
        return (x * np.repeat(most, min(size, n))[:n]).reshape(shape)

    kind = {"float16": "f16", "float32": "f32"}.get(about.get("dtype", ""), "bf16")
    return Values(shape, kind, load)
