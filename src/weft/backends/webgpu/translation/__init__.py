"""Kernels in WGSL, translated from the kernel files, which are OpenCL C.

preprocess.py   macros and conditions
types.py        the types of OpenCL C, and what holds them in WGSL
helpers.py      functions of WGSL that translated code calls
source.py       the functions, types and constants of a source
module.py       a kernel with all that it calls, as a module of WGSL
function.py     a function: its statements
expressions.py  its expressions
memory.py       what it reads from buffers and writes to them
builtins.py     the functions of OpenCL

WGSL has no pointers into buffers. A pointer is a number of bytes, and its buffer is known when the
code is translated: a function is translated once for each choice of buffers that it is called with.
"""

from weft.backends.webgpu.translation.module import translate
from weft.backends.webgpu.translation.types import TranslationError

__all__ = ["TranslationError", "translate"]
