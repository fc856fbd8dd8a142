"""A layer that drafts: multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

The layer behind the last one reads the state h of a token and the token that follows it, and
predicts the one after that:

    x = eh_proj [norm(embedding(next token)); norm(h)]
    h' = norm(block(x))         logits = head(h')

h is what the model's own output projection reads, so h' can stand for the input of the next token,
and the layer drafts as many as are wanted. Embedding and head are the model's unless the layer has
its own. Where a file has several such layers, each was trained for one guess: the first for the
first, the second for the second. All of them read the same states of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from weft import graph as G
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import DraftConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, load_weights, maybe, need
from weft.records import dataclass

_OWN = {"token_embd.weight": "embed_tokens.weight", "output.weight": "shared_head_head.weight",
        "output_norm.weight": "shared_head_norm.weight"}  # fmt: skip
"""Tensors of the model, and the layer's own tensors that replace them."""

_LING_NORM = "layer_output_norm.weight"
"""The name of the layer's last norm in files of Ling."""


@dataclass(frozen=True)
class NextLayer(Architecture):
    """A layer that drafts, as a model of one layer that reads states beside tokens."""

    base: Architecture | None = None
    """The architecture of the model."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        assert self.base is not None
        yield from self.base.block_rows(c, il)
        b = f"blk.{il}.nextn"
        yield from linear_rows(f"{b}.eh_proj", 2 * c.n_embd, c.n_embd)
        for name in ("enorm", "hnorm"):
            yield need(f"{b}.{name}.weight", c.n_embd)
        yield maybe(f"{b}.shared_head_norm.weight", c.n_embd)
        yield maybe(f"blk.{il}.{_LING_NORM}", c.n_embd)
        for name in ("embed_tokens", "shared_head_head"):
            yield maybe(f"{b}.{name}.weight", c.n_embd, c.n_vocab)

    def forward(self, step: Step, w: Weights) -> Tensor:
        base, layer, eps = self.base, w.layer(0), step.config.rms_eps
        assert base is not None and step.states_in is not None
        e = common.norm(layer, "nextn.enorm", common.embed(step, w), eps)
        h = common.norm(layer, "nextn.hnorm", step.states_in, eps)
        x = common.linear(layer, "nextn.eh_proj", G.concat(e, h, 0))
        return base.logits(step, w, base.block(step, w, 0, x))


def next_layer(base: Architecture) -> NextLayer:
    """The layer that drafts, of models of an architecture."""
    base = base.of_next_layer()
    same = {f.name: getattr(base, f.name) for f in fields(Architecture)}
    return NextLayer(**same, base=base)


def next_config(c: ModelConfig, keys: Keys, il: int | None = None) -> ModelConfig:
    """The config of layer `il` of the file, which drafts, as a model of one layer; None: of the
    first such layer."""
    il, names = c.n_layer if il is None else il, keys.file.tensors

    def own(key: str, others: tuple[int, ...]) -> tuple[int, ...]:
        try:
            return keys.per_layer(key, il + 1, others)[il:] or (max(others),)
        except FormatError:  # the file has as many as there are other layers
            return (max(others),)

    moe = c.moe
    if moe is not None:
        routed = f"blk.{il}.ffn_gate_inp.weight" in names
        moe = replace(moe, dense=() if routed else (0,))
    indexer = c.indexer
    if indexer is not None:
        indexer = replace(indexer, layers=(f"blk.{il}.indexer.proj.weight" in names,))
    # it attends also in recurrent models; where layers differ, the file may say which it is like,
    # and otherwise it sees everything
    windowed = c.sliding_window > 0 and _is_windowed(keys, il)
    alike = [i for i in range(c.n_layer) if c.is_windowed(i) == windowed and c.heads_kv[i]]
    ropes = (c.rope_of(alike[-1] if alike else c.n_layer - 1),) if c.ropes else ()
    return replace(
        c,
        n_layer=1,
        n_blocks=1,
        heads=own("attention.head_count", c.heads),
        heads_kv=own("attention.head_count_kv", tuple(n for n in c.heads_kv if n)),
        widths=own("feed_forward_length", c.widths),
        moe=moe,
        indexer=indexer,
        recurrent=None,
        windowed=(True,) if windowed else (),
        ropes=ropes,
        activation=c.activation[-1:],
        drafts=DraftConfig(c.n_embd, c.n_embd),
    )


def _is_windowed(keys: Keys, il: int) -> bool:
    """True if the file says that layer `il`, which drafts, sees only the sliding window."""
    try:
        flags = keys.flags("attention.sliding_window_pattern", il + 1)
    except FormatError:  # the file has as many as there are other layers
        return False
    return bool(flags) and flags[il]


def next_weights(
    file: GGUFFile, c: ModelConfig, il: int, layer: NextLayer, shared: Weights
) -> Weights:
    """The weights of layer `il` of the file, and the weights of the model that it shares, for a
    model of one layer with the config `c`. `shared` are the model's, whose memory both use.

    Raises FormatError for tensors of the layer that are missing or unknown."""
    start = f"blk.{il}."

    def named(name: str) -> str:
        return name.replace("blk.0.", start, 1) if name.startswith("blk.0.") else name

    rows = [replace(r, name=named(r.name), unless=named(r.unless)) for r in layer.table(c)]
    others = [name for name in file.tensors if not name.startswith(start)]
    found = load_weights(file, rows, unused=others)
    leaves = {
        name.replace(start, "blk.0.", 1): leaf if name.startswith(start) else shared[name]
        for name, leaf in found.items()
    }
    for name, own in _OWN.items():
        if f"blk.0.nextn.{own}" in leaves:
            leaves[name] = leaves.pop(f"blk.0.nextn.{own}")
    if f"blk.0.{_LING_NORM}" in leaves:
        leaves["output_norm.weight"] = leaves.pop(f"blk.0.{_LING_NORM}")
    return Weights(leaves)
