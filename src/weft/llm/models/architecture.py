"""`Architecture`: the skeleton that decoders share, with fields for their differences; `Drafter`:
the skeleton of models that draft for another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import ContextError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.parts import RMS, Attention, Gated, Head, Norm, Part
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

Configure = Callable[[ModelConfig, Keys], ModelConfig]


@dataclass(frozen=True)
class Architecture:
    """Loads and computes a kind of model. The defaults are LLaMA's blocks:

        x = x + attention(norm(x));  x = x + feed_forward(norm(x))

    Fields say what differs; a subclass may override `embed`, `block` or `logits`."""

    rope_mode: RopeMode
    """Pairs of elements of a head that rotate together: adjacent ones (NORMAL), or one of each half
    (NEOX)."""
    configure: Configure = lambda config, keys: config
    """Completes the config from metadata that `read_config` does not read, for example which layers
    have a window or another rotary embedding."""
    attention: Part = Attention()
    feed_forward: Part = Gated()
    norm: Norm = RMS
    """The kind of all norms except the norms of heads."""
    before: tuple[str, str] = ("attn_norm", "ffn_norm")
    """Names of the norms in front of attention and feed-forward layer; empty: there is none."""
    after: tuple[str, str] = ("", "")
    """Names of the norms behind them; empty: there is none."""
    bare: tuple[str, ...] = ()
    """Names of norms of layers that converters write without `.weight`."""
    embedding_norm: str = ""
    """Name of the norm of the embeddings; empty: there is none."""
    last_norm: str = "output_norm"
    """Name of the norm in front of the output projection; empty: there is none."""
    embeds: bool = False
    """True if `forward` computes embeddings instead of logits."""
    head: Head | None = None
    """The layers behind the pooling of a text; None: no file has any."""
    image_rope: RopeMode = RopeMode.MROPE
    """The order of sections for rows of images, in models whose positions have height and width."""

    def table(self, c: ModelConfig) -> Iterator[Row]:
        """The tensors of a file. Raises FormatError if the metadata lacks a key for them."""
        yield from self.outer_rows(c)
        for il in range(c.n_layer):
            yield from self.block_rows(c, il)

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        """Tensors outside the layers."""
        yield need("token_embd.weight", c.n_embd, c.n_vocab)
        if c.n_positions:
            yield need("position_embd.weight", c.n_embd, c.n_positions)
        for name in filter(None, (self.embedding_norm, self.last_norm)):
            yield from self.norm.rows(name, c.n_embd)
        yield maybe("output.weight", c.n_embd, c.n_vocab)  # absent: the embedding, transposed
        yield maybe("output.bias", c.n_vocab)
        yield maybe("output.scale", 1)
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
            yield maybe(f"{name}.weight", c.rope.n_dims // 2)
        if self.head is not None:
            yield from self.head.rows(c)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        for name in filter(None, (*self.before, *self.after)):
            full = f"blk.{il}.{name}"
            rows = self.norm.rows(full, c.n_embd)
            if name in self.bare:
                yield maybe(full, c.n_embd)
                rows = (replace(row, unless=full) for row in rows)
            yield from rows
        yield from self.attention.rows(c, il)
        yield from self.feed_forward.rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        """Computes logits [n_vocab, n_outputs], or embeddings [n_embd, n_outputs], from tokens."""
        x = self.embed(step, w)
        for il in range(step.config.n_layer):
            x = common.steered(step, il, self.block(step, w, il, x))
            if step.embd is not None and il in step.config.deepstack:
                x = G.add(x, common.deepstack(step, step.config.deepstack.index(il) + 1))
        return self.logits(step, w, x)

    def embed(self, step: Step, w: Weights) -> Tensor:
        """The input of the first layer, [n_embd, n_tokens]."""
        x = common.add_positions(step, w, common.embed(step, w))
        return self.normed(step, w, self.embedding_norm, x)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, self.before[0], x))
        x, y = last(step, il, x, y)
        x = G.add(x, scaled(step, self.normed(step, layer, self.after[0], y)))
        x = x.named(f"ffn_inp-{il}")
        y = self.feed_forward(step, w, il, self.normed(step, layer, self.before[1], x))
        return G.add(x, scaled(step, self.normed(step, layer, self.after[1], y)))

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The last norm and the output projection of x [n_embd, n_outputs], if the architecture has
        logits."""
        x = self.normed(step, w, self.last_norm, x)
        if step.states is not None:
            step.states.append(x)
            x = common.wanted(step, x)
        x = x.named("result_norm")
        return x if self.embeds else common.output(w, x)

    def of_next_layer(self) -> Architecture:
        """The architecture of the block in a layer that drafts (`next_layer.py`)."""
        return self

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        """Applies the norm called `name` to x; an empty name stands for no norm."""
        if name in self.bare and name in w:
            return G.mul(G.rms_norm(x, step.config.rms_eps), w[name])
        return self.norm(step.config, w, name, x) if name else x


Bound = tuple[ModelConfig, dict[str, Tensor]]
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


class Drafter(Architecture):
    """A model that drafts for a target."""

    def bound(self, c: ModelConfig, own: Weights, target: ModelConfig, shared: Weights) -> Bound:
        """The config for a target, and the weights that the target lends. Raises ContextError,
        which says what differs, if the model was made for another target."""
        drafts = c.drafts
        assert drafts is not None
        if drafts.n_embd != target.n_embd:
            raise ContextError(
                f"it reads states of width {drafts.n_embd}, and those of the model have "
                f"{target.n_embd}"
            )
        missing = [il for il in drafts.layers if not 1 <= il <= target.n_layer]
        if missing:
            raise ContextError(
                f"it reads the input of layer {missing[0]}, and the model has layers "
                f"1..{target.n_layer}"
            )
        lent: dict[str, Tensor] = {}
        if EMBEDDING not in own:
            lent[EMBEDDING] = shared[EMBEDDING]
            c = replace(c, n_vocab=target.n_vocab)
        if OUTPUT not in own:
            lent[OUTPUT] = shared.get(OUTPUT, shared[EMBEDDING])
        for name, n_rows in ((EMBEDDING, c.n_vocab), (OUTPUT, c.n_logits)):
            if name in lent and lent[name].ne[:2] != (c.n_embd, n_rows):
                rows = list(lent[name].ne[1::-1])
                raise ContextError(
                    f"it lacks {name} and needs one of sizes {[n_rows, c.n_embd]}; that of the "
                    f"model has {rows}"
                )
        return c, lent

    def vocabulary(self, c: ModelConfig) -> Iterator[Row]:
        """The tensors of vocabularies, which the target may lend."""
        yield maybe(EMBEDDING, c.n_embd, c.n_vocab)
        yield maybe(OUTPUT, c.n_embd, c.n_logits)
        yield need("output_norm.weight", c.n_embd)
        yield maybe("rope_freqs.weight", c.rope.n_dims // 2)


def last(step: Step, il: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors [n, n_tokens], reduced in the last layer to the columns whose logits are wanted:
    [n, n_outputs]. Call it when attention has written the cache."""
    if il < step.config.n_layer - 1 or step.states is not None:
        return tensors
    return tuple(common.wanted(step, t) for t in tensors)


def scaled(step: Step, y: Tensor) -> Tensor:
    """The output y of a part times the model's residual scale, if it has one."""
    scale = step.config.residual_scale
    return G.scale(y, scale) if scale else y
