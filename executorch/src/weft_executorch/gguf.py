"""A GGUF model as a .pte file: the graph that `weft run` computes, with the file's own blocks.

The method `forward(tokens, positions)` takes int64 [1, n] and [n], writes keys and values into a
cache that the delegate keeps, and returns the logits of the last token, float32 [1, n_vocab]. Token
i sees the cells of positions 0 to positions[i]: a text starts at position 0 and continues where it
ended; starting at 0 again begins another text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node

from weft import graph as g
from weft.dtype import DTYPES
from weft.errors import UnsupportedOpError
from weft.files import replacing
from weft.frontends.fx.call import aten_op
from weft.graph import Graph
from weft.graph.node import leaf
from weft.graph.tensor import Buffer, Tensor
from weft.llm import Model
from weft.llm.planning.prepare import prepare as plan_context
from weft_executorch.backend import WeftBackend
from weft_executorch.lowered import Argument, Delegated, State
from weft_executorch.options import Options
from weft_executorch.pending import PENDING, Pending

__all__ = ["delegated_model", "export_gguf"]

_LONG, _FLOAT = 4, 6  # ExecuTorch's numbers


def export_gguf(
    source: str | Path,
    target: str | Path,
    *,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    threads: int = 0,
    pack: bool = True,
    type_k: str | None = None,
    type_v: str | None = None,
) -> int:
    """Writes `target` and returns its number of bytes.

    `n_ctx` is the number of tokens of the cache (default: the model's, at most 2048), `n_ubatch`
    the largest number of tokens of a call (default 512). Raises FormatError for a bad file,
    UnsupportedOpError for a model whose state is not a KV cache."""
    model = Model.open(source)
    n_ctx = _cells(model, n_ctx)
    delegated, most = _delegated(model, n_ctx, min(n_ubatch or 512, n_ctx), type_k, type_v)
    fixed = _fixed(n_ctx)
    PENDING["llm"] = Pending(delegated, fixed)
    try:
        program = _lowered(model, n_ctx, most, Options(threads=threads, pack=pack))
    finally:
        del PENDING["llm"]
    with replacing(target) as file:
        program.write_to_file(file)
    return Path(target).stat().st_size


def delegated_model(
    model: Model,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    type_k: str | None = None,
    type_v: str | None = None,
) -> tuple[Delegated, dict[str, int]]:
    """The graph that `export_gguf` writes, and its symbols of one value; raises its errors."""
    n_ctx = _cells(model, n_ctx)
    delegated, _ = _delegated(model, n_ctx, min(n_ubatch or 512, n_ctx), type_k, type_v)
    return delegated, _fixed(n_ctx)


def _cells(model: Model, n_ctx: int | None) -> int:
    return n_ctx or min(model.config.n_ctx_train, 2048)


def _fixed(n_ctx: int) -> dict[str, int]:
    return {"n_kv": n_ctx, "n_outputs": 1}


def _delegated(
    model: Model, n_ctx: int, n_ubatch: int, type_k: str | None, type_v: str | None
) -> tuple[Delegated, int]:
    """The graph of the largest batches, whose inputs are computed from positions instead of filled
    in."""
    plan = plan_context(
        model, n_ctx=n_ctx, n_ubatch=n_ubatch, n_outputs=1, type_k=type_k, type_v=type_v
    )
    regime = plan.regimes[-1]
    graph = regime.graph
    inputs = graph.inputs
    filled = {"tokens", "positions", "cells", "mask", "window_mask", "out_ids"}
    if unknown := sorted(set(inputs) - filled):
        raise UnsupportedOpError(
            f"models that need {', '.join(unknown)} cannot be exported: their state is no KV cache"
        )
    if not model.config.causal or model.config.alibi_bias > 0:
        raise UnsupportedOpError("models whose mask is not plainly causal cannot be exported")
    n = inputs["tokens"].ne[0]
    positions = inputs.get("positions")
    if positions is None:
        positions = leaf(DTYPES["i32"], (n, 1, 1, 1), "positions", frozenset({"input"}))
    instead = {
        inputs["cells"]: g.convert(positions, "i64"),
        inputs["out_ids"]: _last(n, regime.max_tokens),
    }
    if "mask" in inputs:
        instead[inputs["mask"]] = _mask(positions, n_ctx, inputs["mask"], 0)
    if "window_mask" in inputs:
        window = model.config.window
        instead[inputs["window_mask"]] = _mask(positions, n_ctx, inputs["window_mask"], window)
    logits = graph.outputs["logits"]
    for node in graph.nodes:
        node.src = tuple(instead.get(s, s) if s is not None else None for s in node.src)
    states = tuple(State(t, t.name) for t in (*plan.cache.k, *plan.cache.v))
    delegated = Delegated(
        Graph(logits),
        (
            Argument("tokens", _LONG, (1, n), inputs["tokens"]),
            Argument("positions", _LONG, (n,), positions),
        ),
        (Argument("logits", _FLOAT, (1, model.config.n_vocab), logits),),
        states,
    )
    return delegated, regime.max_tokens


def _last(n: Any, most: int) -> Tensor:
    """[n - 1], as a window of the numbers 0, 1, 2 and so on."""
    numbers = np.arange(most, dtype=np.int32)
    table = leaf(DTYPES["i32"], (most, 1, 1, 1), "numbers", buffer=Buffer("weights", data=numbers))
    return g.view_1d(table, 1, (n - 1) * 4)


def _mask(positions: Tensor, n_kv: int, like: Tensor, window: int) -> Tensor:
    """[n_kv, n] of `like`'s type: 0 where cell j holds a position that token i may see, else -inf.

    The number of a cell is its position."""
    n = positions.ne[0]
    at = g.reshape(g.convert(positions, "f32"), 1, n)
    ahead = g.sub(g.repeat(at, (n_kv, n)), g.arange(0, n_kv))  # distance from cell j to token i
    visible = g.step(g.scale(ahead, 1.0, 0.5))
    if window:
        visible = g.mul(visible, g.step(g.scale(ahead, -1.0, window - 0.5)))
    mask = g.log(visible)
    return mask if like.dtype is mask.dtype else g.cast(mask, like.dtype)


# ---- the program around it -----------------------------------------------------------------------


@torch.library.custom_op("weft::llm", mutates_args=())  # type: ignore[untyped-decorator]
def _llm(tokens: torch.Tensor, positions: torch.Tensor, n_vocab: int) -> torch.Tensor:
    """Stands for the delegated graph while the program around it is exported."""
    return torch.zeros(1, n_vocab)


@_llm.register_fake  # type: ignore[untyped-decorator]
def _(tokens: torch.Tensor, positions: torch.Tensor, n_vocab: int) -> torch.Tensor:
    return tokens.new_empty((1, n_vocab), dtype=torch.float32)


class _Llm(torch.nn.Module):
    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self.n_vocab = n_vocab

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.ops.weft.llm(tokens, positions, self.n_vocab)


class _TagLlm(Partitioner):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self._spec_of = DelegationSpec(WeftBackend.__name__, options.to_specs())

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if _is_llm(node):
                node.meta["delegation_tag"] = "weft"
        return PartitionResult(exported_program, {"weft": self._spec_of})


def _is_llm(node: Node) -> bool:
    return node.op == "call_function" and aten_op(node.target) is torch.ops.weft.llm.default


def _lowered(model: Model, n_ctx: int, most: int, options: Options) -> Any:
    n = Dim("n_tokens", min=1, max=most) if most > 1 else None
    count = min(2, most)
    example = (torch.zeros(1, count, dtype=torch.int64), torch.arange(count))
    shapes = ({1: n}, {0: n}) if n is not None else None
    config = model.config
    facts = {
        "get_max_seq_len": n_ctx,
        "get_max_context_len": n_ctx,
        "get_n_layers": config.n_layer,
        "get_vocab_size": config.n_vocab,
        "use_kv_cache": True,
    }
    with torch.no_grad():
        program = export(_Llm(config.n_vocab), example, dynamic_shapes=shapes)
        return to_edge_transform_and_lower(
            program, partitioner=[_TagLlm(options)], constant_methods=facts
        ).to_executorch()
