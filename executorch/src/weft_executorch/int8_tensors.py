"""torchao's int8 weights in a form that ExecuTorch can lower."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor

from weft.errors import WeftError

__all__ = ["exportable"]

_M = TypeVar("_M", bound=nn.Module)


def exportable(module: _M) -> _M:
    """Replaces torchao's int8 weights by the same numbers and scales in its tensor for export, in
    place.

    The weights come from Int8DynamicActivationInt8WeightConfig and Int8WeightOnlyConfig. With
    dynamic activations they export as `aten._int_mm`, which ExecuTorch's Edge dialect refuses
    before any backend is asked. Returns the module. Raises WeftError for static activations and for
    weights with zero points."""
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, Int8Tensor):
            tensor = _unpacked(f"{name}.weight", weight)
            part.weight = nn.Parameter(tensor, requires_grad=False)
    return module


def _unpacked(name: str, weight: Int8Tensor) -> IntxUnpackedToInt8Tensor:
    zeros = weight.zero_point
    if zeros is not None and bool(zeros.count_nonzero()):
        raise WeftError(f"{name} has zero points; weft takes symmetric int8 weights")
    if weight.act_quant_scale is not None or weight.act_pre_scale is not None:
        raise WeftError(f"{name} has scales of static activations; weft makes them in each call")
    grid = [n // k for n, k in zip(weight.qdata.shape, weight.block_size, strict=True)]
    scale = weight.scale.reshape(grid)
    dynamic = weight.act_quant_kwargs is not None
    return IntxUnpackedToInt8Tensor(
        weight.qdata, scale, torch.zeros(grid, dtype=torch.int8), torch.int8,
        tuple(weight.block_size), weight.dtype, "int8_asym_per_token" if dynamic else None,
    )  # fmt: skip
