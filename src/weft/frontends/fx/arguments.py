"""Arguments and results of a converted program: their types, and the bytes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.errors import ProgramError
from weft.frontends.fx.converted import LEAVES, Input
from weft.frontends.fx.dtypes import STORED
from weft.native import _native


def is_plain(port: Input) -> bool:
    """Whether the memory of a tensor of PyTorch has the bytes that the program reads."""
    return port.dtype in STORED and port.dtype is not torch.uint8


def addresses(
    flat: Sequence[Any], plain: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> list[int] | None:
    """The addresses of tensors that have these shapes and types and lie in order in the memory of
    this process; None where one does not."""
    found = []
    for arg, (shape, dtype) in zip(flat, plain, strict=True):
        if type(arg) is not torch.Tensor or arg.dtype is not dtype or arg.shape != shape:
            return None
        if not arg.is_cpu or arg.layout is not torch.strided or arg.is_neg():
            return None
        if not arg.is_contiguous():
            return None
        address = arg.data_ptr()
        if not address:
            return None
        found.append(address)
    return found


def signature(flat: Sequence[Any]) -> tuple[Any, ...]:
    """A key that is equal for arguments of the same types and shapes, and equal numbers."""
    return tuple(
        (arg.shape, arg.dtype, arg.device, arg.layout) if isinstance(arg, torch.Tensor)
        else (type(arg), arg) if isinstance(arg, LEAVES) else object()
        for arg in flat
    )  # fmt: skip


def how_to_vary(port: Input, arg: torch.Tensor) -> str:
    """The end of a message: how to declare the dimensions that were exported as numbers."""
    fixed = [d for d, n in enumerate(port.shape) if isinstance(n, int) and n != arg.shape[d]]
    if not fixed:
        return ""
    dims = ", ".join(f"{d}: torch.export.Dim('n{d}', max=64)" for d in fixed)
    return (
        f"; a size that varies is declared for from_torch, with an upper bound: "
        f"dynamic_shapes={{'{port.name}': {{{dims}}}}}"
    )


def check_kind(port: Input, arg: Any) -> None:
    """Raises ProgramError, which names the argument, for one that is of another type than the
    program was exported for."""
    if port.is_tensor:
        if not isinstance(arg, torch.Tensor):
            raise ProgramError(f"argument {port.name} must be a tensor, got {type(arg).__name__}")
        if arg.dtype != port.dtype or arg.dim() != len(port.shape):
            raise ProgramError(
                f"argument {port.name} is {arg.dtype} with {arg.dim()} dimensions; the program "
                f"was exported for {port.dtype} with {len(port.shape)}"
            )
        if arg.layout is not torch.strided:
            raise ProgramError(f"argument {port.name} is {arg.layout}; pass its to_dense()")
        if arg.device.type != "cpu":
            raise ProgramError(f"argument {port.name} is on {arg.device}; pass it on the cpu")
    elif port.size is not None:
        if not isinstance(arg, int):
            raise ProgramError(f"argument {port.name} must be an integer, got {arg!r}")
    elif isinstance(arg, torch.Tensor | np.ndarray) or arg != port.constant:
        raise ProgramError(
            f"argument {port.name} is {arg!r}; the program was exported for {port.constant!r}"
        )


def tensor_over(array: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over an array of its stored type; of uint8, over a copy."""
    tensor = torch.from_numpy(array.astype(np.uint8) if dtype is torch.uint8 else array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


def copier(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that copies a contiguous tensor to memory of PyTorch, which alone may grow
    (`resize_`). The threads of PyTorch, which `clone` uses, would spin where the next call needs
    processors."""
    sources, sizes = [tensor.data_ptr()], [tensor.nbytes]

    def copied() -> torch.Tensor:
        copy = torch.empty_like(tensor)
        _native.copy_bytes([copy.data_ptr()], sources, sizes)
        return copy

    return copied
