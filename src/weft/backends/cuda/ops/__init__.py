"""Launches of the kernels that are written for CUDA, by op; other devices' kernels do the rest.

`products` are of weights with activations, `attention` reads a cache on tensor cores, `bytes` are
of what products read next.
"""

from weft.backends.cuda.ops.attention import attention
from weft.backends.cuda.ops.bytes import glu, norm_scale
from weft.backends.cuda.ops.products import mul_mat, mul_mat_add, mul_mat_id
from weft.backends.kernels.ops import NO_OWN, OwnKernels
from weft.backends.kernels.ops.bytes import read_bytes
from weft.backends.kernels.ops.table import Own

__all__ = ["EXACT", "KERNELS", "OWN"]

OWN: Own = {
    "MUL_MAT": mul_mat,
    "MUL_MAT_ID": mul_mat_id,
    "FLASH_ATTN_EXT": attention,
    "NORM_SCALE": norm_scale,
    "GLU": glu,
}
"""A function returns None where its kernels do not support types, sizes or layouts of a call."""

KERNELS = OwnKernels(OWN, {("MUL_MAT", "ADD"): mul_mat_add}, read_bytes)

EXACT = OwnKernels({"FLASH_ATTN_EXT": attention}, {}, NO_OWN.feeds)
"""The kernels besides products, which round activations."""
