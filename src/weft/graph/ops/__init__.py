"""The ops: constructor, shape rule, parameter record and cost of each, a family per file.

Every name of a family that has no underscore is public, here and in `weft.graph`. Some names hide
builtins (`abs`, `round`, `set`, `sum`): import the module as a whole.
"""

import sys
from typing import TYPE_CHECKING

from weft.graph.ops.activations import *
from weft.graph.ops.arithmetic import *
from weft.graph.ops.attention import *
from weft.graph.ops.convolution import *
from weft.graph.ops.copies import *
from weft.graph.ops.elements import *
from weft.graph.ops.folds import *
from weft.graph.ops.fused import *
from weft.graph.ops.hyper import *
from weft.graph.ops.images import *
from weft.graph.ops.indexing import *
from weft.graph.ops.normalization import *
from weft.graph.ops.products import *
from weft.graph.ops.recurrence import *
from weft.graph.ops.reductions import *
from weft.graph.ops.rotary import *
from weft.graph.ops.rows import *
from weft.graph.ops.tiling import *
from weft.graph.ops.views import *
from weft.graph.ops.windows import *

if not TYPE_CHECKING:  # type checkers follow the imports
    __all__ = [
        name
        for module, family in sys.modules.items()
        if module.startswith("weft.graph.ops.")
        for name, value in vars(family).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]
