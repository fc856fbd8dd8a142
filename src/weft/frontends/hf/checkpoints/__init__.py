"""Quantized checkpoints, as values or as blocks.

Values that a block format of GGUF holds exactly are repacked, and run at their size: integers
around zero or with a minimum (GPTQ, AWQ, compressed-tensors, MLX, torchao), MXFP4 and NVFP4. The
others are computed as 16-bit floats, which rounds one product for each weight.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.hf.checkpoints.floats import (
    beside,
    bitsandbytes,
    gpt_oss,
    mxfp4_blocks,
    of_words,
    scaled,
)
from weft.frontends.hf.checkpoints.grouped import hqq, int4_tensor, quanto
from weft.frontends.hf.checkpoints.integers import (
    How,
    Tensors,
    awq,
    gptq,
    mlx,
    rebuilt,
    words_matrix,
)
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import Stored, metadata_of
from weft.frontends.hf.values import Floats, Values, stored_values

__all__ = ["mxfp4_blocks", "readable"]

_UNUSED = (".activation_scale", "_activation_scale", ".input_scale", ".k_scale", ".v_scale",
           ".qscale_act", ".input_scale_ub", ".input_global_scale", ".output_scale", ".q_scale",
           ".prob_output_scale", ".input_zero_point")  # fmt: skip
_METHOD = "quant_method"


def readable(c: Config, stored: Mapping[str, Stored]) -> Tensors:
    """The tensors of a folder by name, with those that several stored ones make together.

    Raises FormatError, which names the method, for a quantization that weft cannot read."""
    plain = {name: stored_values(t) for name, t in stored.items()}
    how = _settings(c)
    method = how.get(_METHOD)
    if not method:
        return plain
    if method not in _METHODS:
        raise FormatError(
            f"{c.folder}: the checkpoint is quantized by {method!r}; weft reads "
            f"{', '.join(_METHODS)}, and checkpoints that are not quantized"
        )
    kept = {name: values for name, values in plain.items() if not name.endswith(_UNUSED)}
    try:
        return dict(sorted(_METHODS[method](c, how, kept, stored).items()))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"{c.folder}: tensors quantized by {method} do not fit together, or not with the "
            f"settings of the quantization ({type(error).__name__}: {str(error)[:100]}); download "
            "the folder again"
        ) from error


def _settings(c: Config) -> How:
    """The settings of the quantization, from config.json or ModelOpt's file beside it."""
    how = c.first("quantization_config", "compression_config", "quantization")
    own = c.folder / "hf_quant_config.json"
    if how is None and own.is_file():
        made = read_json(own, "a file of the model")
        return dict(made.get("quantization") or {}) | {_METHOD: "modelopt"}
    quanto_map = c.folder / "quanto_qmap.json"
    if (how is None or how.get(_METHOD) == "quanto") and quanto_map.is_file():
        return {_METHOD: "quanto", "modules": read_json(quanto_map, "a file of the model")}
    settings = {} if how is None else dict(how)
    if _METHOD not in settings and {"bits", "group_size"} <= settings.keys():
        settings[_METHOD] = "mlx"
    return settings


def _fp8(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    block = how.get("weight_block_size")
    blocks = [block] if block else ()
    return beside(c, scaled(c, plain, stored, blocks), plain, stored, blocks)


def _modelopt(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    algorithm = str(how.get("quant_algo") or "")
    if "AWQ" in algorithm or "INT4" in algorithm or "SQ" in algorithm.split("_"):
        raise FormatError(
            f"{c.folder}: the checkpoint is quantized by ModelOpt's {algorithm}; weft reads its "
            "FP8, NVFP4 and MXFP4"
        )
    return scaled(c, plain, stored)


def _auto_round(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    form = str(how.get("packing_format") or "auto_round:auto_gptq")
    if form.endswith("awq"):
        return awq(c, how, plain, stored)
    if form.endswith(("gptq", "gptqmodel")):
        return gptq(c, how, plain, stored)
    raise FormatError(
        f"{c.folder}: AutoRound in the layout {form!r}; weft reads auto_round:auto_gptq and "
        "auto_round:auto_awq"
    )


def _compressed(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    groups = list((how.get("config_groups") or {}).values())
    forms = {str(g.get("format") or how.get("format")) for g in groups} or {str(how.get("format"))}
    sparse = (how.get("sparsity_config") or {}).get("format", "dense")
    wrong = sorted(forms - _COMPRESSED) + [sparse] * (sparse not in ("dense", ""))
    if how.get("transform_config"):
        wrong.append("with transform_config")
    if wrong:
        raise FormatError(
            f"{c.folder}: weft cannot read compressed-tensors in the format {wrong[0]!r}; it reads "
            f"{', '.join(sorted(_COMPRESSED))}"
        )

    weights = [g.get("weights") or {} for g in groups]
    widths = [int(w["num_bits"]) for w in weights if "num_bits" in w]
    blocks = [w["block_structure"] for w in weights if w.get("block_structure")]
    words = {
        name.removesuffix("_packed")
        for name, t in stored.items()
        if name.endswith(".weight_packed") and t.kind in ("I32", "U32")
    }
    of_words = {n: v for n, v in plain.items() if n.rpartition("_")[0] in words or
                n.removesuffix("_zero_point").removesuffix("_g_idx") in words}  # fmt: skip
    rest = {name: values for name, values in plain.items() if name not in of_words}
    parts = (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point",
             ".weight_g_idx")  # fmt: skip
    made = rebuilt(
        c, of_words, parts,
        lambda stem: words_matrix(c, stem, widths, plain, stored),
    )  # fmt: skip
    return scaled(c, rest, stored, blocks) | made


_COMPRESSED = {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized",
               "nvfp4-pack-quantized", "mxfp4-pack-quantized", "dense"}  # fmt: skip


def _mlx(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    out = dict(plain)
    for name, scales in stored.items():
        stem = name.removesuffix(".scales")
        q = stored.get(f"{stem}.weight")
        if stem != name and scales.kind == "U8" and q is not None and q.kind == "U32":
            out[f"{stem}.weight"] = of_words(c, stem, q, scales)
            del out[name]
    return mlx(c, how, out, stored)


def _torchao(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """Tensors of torchao, by the parts that it stores of each: `model._weight_qdata`."""
    renamed: dict[str, Stored] = {}
    out = dict(plain)
    parts: dict[str, list[str]] = {}  # by the beginning of the names
    for name in stored:
        parts.setdefault(name.rpartition("._weight_")[0], []).append(name)
    about = {file: metadata_of(file) for file in {t.file for t in stored.values()}}
    for name, t in stored.items():
        stem, qdata, rest = name.rpartition("._weight_qdata")
        if not qdata or rest:
            continue
        kind = _class_of(about[t.file].get(f"{stem}.weight"))
        if kind not in ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "Int4Tensor"):
            raise FormatError(
                f"{c.folder}: {stem} is a {kind} of torchao; weft reads Int4Tensor, Int8Tensor, "
                "IntxUnpackedToInt8Tensor and Float8Tensor"
            )
        if kind == "Int4Tensor":
            try:
                scales, zeros = (
                    out.pop(f"{stem}._weight_{part}") for part in ("scale", "zero_point")
                )
            except KeyError as error:
                raise FormatError(f"{c.folder}: tensor {error} is missing") from None
            out[f"{stem}.weight"] = int4_tensor(c, stem, t, scales, zeros)
            del out[name]
            _require_no_more(c, parts[stem], out)
            continue
        for part, end in (("qdata", ""), ("scale", "_scale"), ("zero_point", "_zero_point")):
            given = stored.get(f"{stem}._weight_{part}")
            if given is not None:
                new = f"{stem}.weight{end}"
                renamed[new] = given
                out[new] = out.pop(f"{stem}._weight_{part}")
        _require_no_more(c, parts[stem], out)
    return scaled(c, out, {**stored, **renamed})


def _require_no_more(c: Config, parts: list[str], rest: Tensors) -> None:
    extra = [name for name in parts if name in rest]
    if extra:
        raise FormatError(f"{c.folder}: torchao's {extra[0]} has no meaning for weft")


def _class_of(about: Any) -> str:
    """The class of torchao of a tensor, about which the header of a file says `about`."""
    return str(json.loads(about).get("_type")) if about else "tensor without a class"


def _bitnet(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
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

    return Values((4 * weight.shape[0], *weight.shape[1:]), "bf16", load)


_METHODS: dict[str, Callable[[Config, Any, Tensors, Mapping[str, Stored]], Tensors]] = {
    "fp8": _fp8, "fbgemm_fp8": _fp8, "mxfp4": gpt_oss, "nvfp4": _modelopt, "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "gptq": gptq, "awq": awq, "auto-round": _auto_round, "mlx": _mlx,
    "compressed-tensors": _compressed, "bitnet": _bitnet, "bitsandbytes": bitsandbytes,
    "torchao": _torchao, "hqq": hqq, "quanto": quanto,
}  # fmt: skip
