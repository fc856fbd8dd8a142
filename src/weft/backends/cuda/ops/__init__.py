"""Launches of the kernels that are written for CUDA, by op; other devices' kernels do the rest.

`products` are of weights with activations, `attention` reads a cache on tensor cores.
"""

from weft.backends.cuda.ops.attention import attention
from weft.backends.cuda.ops.products import mul_mat, mul_mat_id
from weft.backends.kernels.ops.table import Own

__all__ = ["OWN"]

OWN: Own = {"MUL_MAT": mul_mat, "MUL_MAT_ID": mul_mat_id, "FLASH_ATTN_EXT": attention}
"""A function returns None where its kernels do not know types, sizes or layouts of a call."""
