"""Quantized checkpoints: FP8, MXFP4, GPTQ, AWQ, compressed-tensors, BitNet, as values or as blocks.

MXFP4 is repacked bit for bit. The others are computed as floats, which is exact for FP8 with block
scales up to the rounding of one product; `note` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import Stored
from weft.frontends.hf.values import Floats, Values, stored_values

Tensors = dict[str, Values]

_UNUSED = (".activation_scale", "_activation_scale", ".input_scale", ".k_scale", ".v_scale",
           ".qscale_act")  # fmt: skip


def readable(c: Config, stored: Mapping[str, Stored]) -> Tensors:
    """The tensors of a folder by name, with those that several stored ones make together.

    Raises FormatError, which names the method, for a quantization that weft cannot read."""
    plain = {name: stored_values(t) for name, t in stored.items()}
    how = c.get("quantization_config") or {}
    method = how.get("quant_method")
    if not method:
        return plain
    if method not in _METHODS:
        raise FormatError(
            f"{c.folder}: the checkpoint is quantized by {method!r}; weft reads "
            f"{', '.join(_METHODS)}, and checkpoints that are not quantized"
        )
    kept = {name: values for name, values in plain.items() if not name.endswith(_UNUSED)}
    return dict(sorted(_METHODS[method](c, how, kept, stored).items()))


def _fp8(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    block = how.get("weight_block_size")
    out = _scaled(plain, "_scale_inv", block)
    # DeepSeek-V4 has the scales of a weight beside it, and experts in blocks of MXFP4
    for name, scales in stored.items():
        stem, found, rest = name.rpartition(".scale")
        weight = stored.get(f"{stem}.weight")
        if not found or rest or weight is None:
            continue
        del out[name]
        if weight.kind.startswith("F8"):
            product = _product(plain[f"{stem}.weight"], plain[name], block)
            out[f"{stem}.weight"] = _bf16(weight.shape, product)
        else:
            if (*weight.shape[:-1], weight.shape[-1] / 16) != scales.shape:
                raise FormatError(f"{c.folder}: {name} does not fit the blocks of its weight")
            out[f"{stem}.weight"] = _packed(weight, scales)
    return out


def _scaled(plain: Tensors, suffix: str, block: Sequence[int] | None) -> Tensors:
    """Weights times their scales: one for all, one for each row, or one for each block."""
    out = {name: values for name, values in plain.items() if not name.endswith(suffix)}
    for name, scale in plain.items():
        weight = plain.get(name.removesuffix(suffix))
        if name.endswith(suffix) and weight is not None:
            out[name.removesuffix(suffix)] = _bf16(weight.shape, _product(weight, scale, block))
    return out


def _product(weight: Values, scale: Values, block: Sequence[int] | None) -> Callable[[], Floats]:
    def load() -> Floats:
        s = scale.load()
        if block:
            for axis, n in zip(range(s.ndim - len(block), s.ndim), block, strict=True):
                s = np.repeat(s, n, axis)
            s = s[tuple(slice(0, n) for n in weight.shape)]
        return np.multiply(weight.load(), s.reshape(*s.shape, *(1,) * (len(weight.shape) - s.ndim)))

    return load


def _bf16(shape: tuple[int, ...], load: Callable[[], Floats]) -> Values:
    """Values that a GGUF file keeps as bf16 unless another type is asked for."""
    return Values(shape, "bf16", load)


def _mxfp4(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    out = {n: v for n, v in plain.items() if not n.endswith(("_blocks", "_scales"))}
    for name, t in stored.items():
        if not name.endswith("_blocks"):
            continue
        stem = name.removesuffix("_blocks")
        scales = stored.get(f"{stem}_scales")
        if scales is None or t.shape[:-1] != scales.shape or t.shape[-1] != 16:
            raise FormatError(f"{c.folder}: {stem} has no scales that fit its blocks")
        out[f"{stem}_mxfp4"] = _packed(t, scales)
    return out


def _packed(blocks: Stored, scales: Stored) -> Values:
    shape = (*scales.shape[:-1], scales.shape[-1] * 32)

    def pack() -> NDArray[np.uint8]:
        codes = blocks.data.reshape(*scales.shape, 16)
        return mxfp4_blocks(codes, scales.data.reshape(scales.shape))

    def load() -> Floats:
        from weft import quants

        return quants.decode(pack(), "mxfp4").reshape(shape)

    return Values(shape, "mxfp4", load, packed=pack)


def mxfp4_blocks(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks of MXFP4 as GGUF stores them, uint8 `[..., n_blocks * 17]`, from codes two to a byte
    `[..., n_blocks, 16]` and their exponents `[..., n_blocks]`.

    In the folder neighbours share a byte; in a file element i shares one with element i + 16."""
    each = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], 32)
    packed = each[..., :16] | each[..., 16:] << 4
    whole = np.concatenate((scales[..., None], packed), axis=-1)
    return np.ascontiguousarray(whole).reshape(*whole.shape[:-2], -1)


def _gptq(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    bits = how.get("bits", 4)
    older = how.get("checkpoint_format", "gptq") == "gptq"

    def rebuilt(stem: str) -> Values:
        q, scales = stored[f"{stem}.qweight"], plain[f"{stem}.scales"]
        zeros, groups = stored[f"{stem}.qzeros"], stored.get(f"{stem}.g_idx")
        n_in, n_out = q.shape[0] * 32 // bits, q.shape[1]

        def load() -> Floats:
            codes = _codes(q, bits).reshape(-1, n_out, 32 // bits).swapaxes(1, 2)
            z = _codes(zeros, bits).reshape(zeros.shape[0], -1) + older
            of = np.arange(n_in) // (n_in // z.shape[0])
            if groups is not None:
                of = groups.data.view("<i4")
            x: Floats = (codes.reshape(n_in, n_out) - z[of]) * scales.load()[of]
            return x.T

        return Values((n_out, n_in), "f16", load)

    return _rebuilt(c, plain, (".qweight", ".scales", ".qzeros", ".g_idx"), rebuilt, bits)


_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the codes of eight neighbours are in a word


def _awq(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    bits = how.get("bits", 4)

    def rebuilt(stem: str) -> Values:
        q, scales = stored[f"{stem}.qweight"], plain[f"{stem}.scales"]
        zeros = stored[f"{stem}.qzeros"]
        n_in, n_out = q.shape[0], q.shape[1] * 8

        def load() -> Floats:
            codes, z = (
                _codes(t, 4).reshape(t.shape[0], -1, 8)[..., _AWQ_ORDER].reshape(t.shape[0], n_out)
                for t in (q, zeros)
            )
            each = n_in // z.shape[0]
            z, s = np.repeat(z, each, 0), np.repeat(scales.load(), each, 0)
            x: Floats = (codes - z) * s
            return x.T

        return Values((n_out, n_in), "f16", load)

    return _rebuilt(c, plain, (".qweight", ".scales", ".qzeros"), rebuilt, 0 if bits != 4 else 4)


def _codes(t: Stored, bits: int) -> Floats:
    """The unsigned codes of 32-bit words, lowest bits first, float32 `[n_words, 32 / bits]`."""
    words = t.data.view("<u4").reshape(-1, 1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return ((words >> shifts) & np.uint32((1 << bits) - 1)).astype(np.float32)


def _rebuilt(
    c: Config, plain: Tensors, parts: tuple[str, ...], make: Callable[[str], Values], bits: int
) -> Tensors:
    if bits not in (2, 4, 8):
        raise FormatError(f"{c.folder}: weft reads this quantization with 2, 4 or 8 bits only")
    out = {name: values for name, values in plain.items() if not name.endswith(parts)}
    for name in plain:
        if name.endswith(parts[0]):
            stem = name.removesuffix(parts[0])
            try:
                out[f"{stem}.weight"] = make(stem)
            except KeyError as error:
                raise FormatError(f"{c.folder}: tensor {error} is missing") from None
    return out


def _compressed(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    groups = list((how.get("config_groups") or {}).values())
    weights = groups[0].get("weights") or {} if len(groups) == 1 else {}
    form = how.get("format")
    if form in ("float-quantized", "int-quantized", "naive-quantized"):
        return _scaled(plain, "_scale", weights.get("block_structure"))
    if form == "pack-quantized" and weights.get("group_size"):
        return _packed_groups(c, weights["num_bits"], weights["group_size"], plain, stored)
    raise FormatError(f"{c.folder}: weft cannot read compressed-tensors in the format {form!r}")


def _packed_groups(
    c: Config, bits: int, each: int, plain: Tensors, stored: Mapping[str, Stored]
) -> Tensors:
    def rebuilt(stem: str) -> Values:
        q, scales = stored[f"{stem}.weight_packed"], plain[f"{stem}.weight_scale"]
        zeros = stored.get(f"{stem}.weight_zero_point")
        n_out, n_in = (int(n) for n in plain[f"{stem}.weight_shape"].load())

        def load() -> Floats:
            codes = _codes(q, bits).reshape(n_out, -1)[:, :n_in].reshape(n_out, -1, each)
            offset: Any = np.float32(1 << (bits - 1))
            if zeros is not None:  # packed along the rows
                z = _codes(zeros, bits).reshape(*zeros.shape, -1).swapaxes(1, 2)
                offset = z.reshape(-1, zeros.shape[1])[:n_out, :, None]
            x: Floats = (codes - offset) * scales.load()[..., None]
            return x.reshape(n_out, n_in)

        return _bf16((n_out, n_in), load)

    parts = (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point")
    return _rebuilt(c, plain, parts, rebuilt, bits)


def _bitnet(c: Config, how: Any, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """Ternary weights, four to a byte and a quarter of the rows apart, with a scale for each
    matrix. The scale multiplies in transformers' AutoBitLinear, and divides in BitLinear."""
    if how.get("use_rms_norm"):
        raise FormatError(f"{c.folder}: weft reads no BitNet checkpoint with use_rms_norm")
    out = {name: values for name, values in plain.items() if not name.endswith(".weight_scale")}
    for name, scale in plain.items():
        weight = stored.get(name.removesuffix("_scale"))
        if name.endswith(".weight_scale") and weight is not None:
            out[name.removesuffix("_scale")] = _signs(weight, scale, how.get("linear_class"))
    return out


def _signs(weight: Stored, scale: Values, kind: object) -> Values:
    def load() -> Floats:
        packed = weight.data.reshape(weight.shape)
        signs = np.concatenate([packed >> shift & 3 for shift in (0, 2, 4, 6)]).astype(np.float32)
        by = scale.load().reshape(())
        return np.multiply(signs - 1, by if kind == "autobitlinear" else np.float32(1) / by)

    return _bf16((4 * weight.shape[0], *weight.shape[1:]), load)


_METHODS: dict[str, Callable[[Config, Any, Tensors, Mapping[str, Stored]], Tensors]] = {
    "fp8": _fp8, "mxfp4": _mxfp4, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed,
    "bitnet": _bitnet,
}  # fmt: skip
