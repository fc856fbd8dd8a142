"""PyTorch programs as weft graphs: `torch.export` in, `Graph` out. Needs the extra `weft[torch]`.

What other packages may build on:

- `convert(exported_program) -> Converted`: the graph, with inputs, outputs and state in PyTorch's
  terms. Takes the aten and the Edge dialect. Raises UnsupportedOpError naming every node that
  cannot be converted, with its reason.
- `supports(node) -> Support`: whether one node can be converted, from its op, its arguments and
  `meta["val"]` alone; `Support.reason` is a sentence. `convert` never refuses a node that it
  accepts.
- `kept_whole() -> list`: ops that PyTorch would decompose and weft builds whole, for
  `ops_to_not_decompose`; `core_program(exported_program)` decomposes all but those.
- `unsupported(exported_program) -> list[Refusal]`: all nodes that `supports` refuses.

`registry.visitor` registers a conversion for an op, keyed by the exact op object.
"""

from weft.errors import WeftError
from weft.extras import how_to_install

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise WeftError(
        f"PyTorch programs need the package torch; {how_to_install('torch')}"
    ) from error

from weft.frontends.fx import ops as _ops  # noqa: F401  (registers the visitors)
from weft.frontends.fx.convert import convert, supports, unsupported
from weft.frontends.fx.converted import Converted, Input, Output, State
from weft.frontends.fx.export import core_program, kept_whole
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.support import Refusal, Support

__all__ = ["Converted", "Input", "Output", "Refusal", "State", "Support", "convert", "core_program",
           "kept_whole", "supports", "unsupported", "visitor"]  # fmt: skip
