"""`Model`: a GGUF file as config, weights and graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.backends.memory import BufferType
from weft.errors import ArgumentError, ContextError, FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.describe import CONTROL_VECTOR, in_words
from weft.frontends.gguf.format import ROPE_HALVES
from weft.frontends.models import open_model
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.adapters import EMBEDDINGS, Adapters
from weft.llm.cache.kv_cache import KVCache
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.control_vectors import ControlVectors, open_control_vectors
from weft.llm.hub import local_path
from weft.llm.models import Architecture, common, find_architecture
from weft.llm.models.architecture import Drafter
from weft.llm.models.inputs import GraphOptions, make_step
from weft.llm.models.names import name_tensors
from weft.llm.models.next_layer import next_config, next_layer, next_weights
from weft.llm.models.step import Step, Together
from weft.llm.scaled_files import Chosen, ScaledFiles
from weft.llm.weights import Weights, load_weights

if TYPE_CHECKING:
    from weft.llm.adapter_files import AdapterFiles
    from weft.llm.senses.tower import AnyTower


class Model:
    """The contents of a model file, without any state of inference; contexts share it."""

    lender: KVCache | None = None
    """The cache of the target, for a model that drafts and attends to it."""

    def __init__(
        self,
        file: GGUFFile,
        adapters: AdapterFiles | None = None,
        control_vectors: ScaledFiles | None = None,
        control_vector_layers: Sequence[int] | None = None,
    ) -> None:
        """Checks config and tensors; reads no weight but those of `adapters` and
        `control_vectors`, which act behind the layers `control_vector_layers` (first, last) only.
        Raises FormatError, which names the architecture, key or tensor at fault."""
        try:
            self.architecture: Architecture = find_architecture(file.architecture)
            keys = Keys(file)
            config = self.architecture.configure(keys.config(), keys)
            if config.recurrent is not None and not any(config.recurrent.layers):
                config = replace(config, recurrent=None)  # attention in every layer
            self.config: ModelConfig = config
            self.weights: Weights = load_weights(
                file, self.architecture.table(self.config), unused=self.config.unused_tensors
            )
        except FormatError as error:
            at, other = f"{file.path}: ", in_words(file)
            if other:
                steers = file.architecture == CONTROL_VECTOR
                given = "--control-vector (control_vectors=)" if steers else "--lora (adapters=)"
                raise FormatError(
                    f"{at}this is {other}; give the model, and this file as {given}"
                ) from None
            raise error if str(error).startswith(at) else FormatError(f"{at}{error}") from None
        self.file = file
        # rows with three positions per token (M-RoPE) are in the order in which halves rotate
        sections = f"{file.architecture}.rope.dimension_sections" in file.metadata
        if file.get_bool(ROPE_HALVES, False) or sections:
            self.architecture = replace(self.architecture, rope_mode=RopeMode.NEOX)
        self.adapters: Adapters | None = None
        """LoRA adapters that texts may use, or None if there are none."""
        self.towers: Sequence[AnyTower] = ()
        """Towers for images and sound that are computed beside the model."""
        if adapters is not None:
            from weft.llm.adapter_files import open_adapters  # most models have none

            self.adapters = open_adapters(adapters, file, self.config, self.weights)
            self.weights = self.weights.joined(self.adapters.leaves())
        self.control_vectors: ControlVectors | None = None
        """Control vectors that texts may use, or None if there are none."""
        if control_vectors is not None:
            layers = control_vector_layers
            self.control_vectors = open_control_vectors(control_vectors, self.config, layers)
            self.weights = self.weights.joined(self.control_vectors.leaves())
        elif control_vector_layers is not None:
            raise ArgumentError("control_vector_layers is of control_vectors; give files of these")

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        type: str | None = None,
        *,
        adapters: AdapterFiles | None = None,
        control_vectors: ScaledFiles | None = None,
        control_vector_layers: Sequence[int] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Model:
        """Opens the GGUF file or folder at `path`, or the model of a name (`weft.llm.hub`).

        With `type`, such as `q4_K_M`, matrices are quantized in memory. `adapters` are files of
        LoRA adapters, `control_vectors` those of control vectors (see `Model`). `metadata` has
        values in place of the file's (see `with_keys`).

        Raises FormatError for a file that is missing, damaged or of an unknown architecture."""
        file = open_model(local_path(path), type, metadata=metadata)
        return Model(file, adapters, control_vectors, control_vector_layers)

    @property
    def writes(self) -> bool:
        """False for a model that computes embeddings or scores only."""
        return not self.architecture.embeds and self.config.pooling != "rank"

    @property
    def continues(self) -> bool:
        """True if the model writes a text token by token."""
        return self.writes and self.config.diffusion is None

    def next_layers(self) -> list[Model]:
        """The layers that draft, each as a model of one layer; see `weft.llm.models.next_layer`.

        Raises ContextError for a file without such layers, and FormatError for one whose layers
        lack tensors or have others."""
        first, n = (
            self.config.n_layer,
            Keys(self.file).count("nextn_predict_layers", 0, least=0, most=1 << 10),
        )
        layers = range(first, first + max(n, 1))
        found = [il for il in layers if f"blk.{il}.nextn.eh_proj.weight" in self.file.tensors]
        if not found or found[0] != first:
            raise ContextError(
                f"{self.file.path} has no layers that draft (nextn_predict_layers with their "
                "tensors); look tokens up (ngram), or give a second model that drafts"
            )
        return [self._next_layer(il) for il in found]

    def _next_layer(self, il: int) -> Model:
        other, layer = copy(self), next_layer(self.architecture)
        other.architecture, other.adapters, other.control_vectors = layer, None, None
        other.towers = ()
        other.config = next_config(self.config, Keys(self.file), il)
        other.weights = next_weights(self.file, other.config, il, layer, self.weights)
        return other

    def drafting_for(self, target: Model) -> Model:
        """This model that drafts, with the weights that it shares with `target`.

        Raises ContextError, which says what differs, if it was made for another model."""
        assert isinstance(self.architecture, Drafter)
        other = copy(self)
        try:
            bound = self.architecture.bound(
                self.config, self.weights, target.config, target.weights
            )
        except ContextError as error:
            raise ContextError(
                f"{self.file.path} cannot draft for {target.file.path}: {error}; a model that "
                "drafts is trained for one other model"
            ) from None
        other.config, shared = bound
        other.weights = self.weights.joined(shared)
        return other

    def reading(self, cache: KVCache | None) -> Model:
        """This model with the cache of its target, if it attends to that."""
        other = copy(self)
        other.lender = cache
        return other

    def summary(self) -> str:
        """One line, such as `model.gguf: llama, 22 layers of 2048, 32000 tokens`."""
        c = self.config
        return (
            f"{self.file.path.name}: {c.arch}, {c.n_layer} layers of {c.n_embd}, {c.n_vocab} tokens"
        )

    def __repr__(self) -> str:
        return f"<Model {self.summary()}>"

    def scale_rows(
        self, adapters: Chosen | None = None, control_vectors: Chosen | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """The scales of a text with these adapters and control vectors (see `ScaledSet.row`), by
        the graph's input for them; without those that the model has none of. Raises ContextError
        for one that it does not have."""
        rows = {}
        for loaded, chosen, argument in (
            (self.adapters, adapters, "adapters"),
            (self.control_vectors, control_vectors, "control_vectors"),
        ):
            if loaded is not None:
                rows[loaded.INPUT] = loaded.row(chosen)
            elif chosen:
                what = argument.replace("_", " ")
                raise ContextError(f"the model has no {what}; open it with {argument}=FILE")
        return rows

    def scale_prints(self, rows: Mapping[str, NDArray[np.float32]]) -> dict[str, str]:
        """Tells the adapters and the control vectors from others, each with its scales in `rows`;
        for saved states."""
        loaded = {"adapters": self.adapters, "control vectors": self.control_vectors}
        return {
            what: files.fingerprint(rows[files.INPUT])
            for what, files in loaded.items()
            if files is not None
        }

    def placed(self, types: Mapping[str, BufferType]) -> Model:
        """The same model with the buffer types that `types` has for its weights, by name; see
        `Weights.placed`."""
        other = copy(self)
        other.weights = self.weights.placed(types)
        return other

    def build(
        self,
        cache: KVCache,
        *,
        n_ubatch: int,
        n_outputs: int,
        flash: bool = True,
        embeddings: bool = False,
        rows_in: bool = False,
        together: Together | None = None,
        states: bool | tuple[int, ...] = False,
    ) -> G.Graph:
        """Builds the graph for any batch up to `n_ubatch` tokens over any part of `cache`; the
        options are the fields of `GraphOptions` (`models/inputs.py`).

        `make_step` there lists its inputs; with adapters there are also adapter_scales f32
        [n_tokens, rows of adapters], with control vectors vector_scales f32 [n_tokens, control
        vectors]. The output is logits f32 [n_outputs, n_vocab], or embeddings f32 [n_outputs,
        n_embd], from which logits are computed; with `states` a second one is states f32 [n_tokens,
        n]. Raises ContextError for embeddings of a model with an encoder and a decoder, and
        FormatError for adapters and control vectors that the architecture does not use."""
        if embeddings and self.config.n_encoder:
            raise ContextError(
                f"{self.file.path.name} has an encoder and a decoder, which make text, no "
                "embeddings; use a file of its encoder alone (t5encoder)"
            )
        options = GraphOptions(n_ubatch, n_outputs, flash, rows_in, together, states)
        planes = rows_in and bool(self.config.rope_sections)
        step = make_step(
            self.config,
            cache,
            options,
            rope_mode=self.architecture.image_rope if planes else self.architecture.rope_mode,
            typed=self.config.n_token_types > 1 and "token_types.weight" in self.weights,
        )
        step, weights = self._scaled(step)
        out = self.architecture.forward(step, weights)
        self._require_scaled(out, step, weights, rows_in)
        graph = _graph_of(out, step, embeddings)
        name_tensors(graph)
        return graph

    def _scaled(self, step: Step) -> tuple[Step, Weights]:
        """The step and the weights with adapters and control vectors, and their scales."""
        weights, n_tokens = self.weights, step.tokens.ne[0]
        if self.adapters is not None:
            scales = G.input("adapter_scales", (n_tokens, self.adapters.n_rows), "f32")
            weights = weights.joined({}, (scales, common.wanted(step, scales)))
        if self.control_vectors is not None:
            scales = G.input("vector_scales", (n_tokens, self.control_vectors.n_rows), "f32")
            directions = ControlVectors.by_layer(weights, self.config.n_layer)
            both = (scales, common.wanted(step, scales))
            step = replace(step, directions=directions, vector_scales=both)
        return step, weights

    def _require_scaled(self, out: Tensor, step: Step, weights: Weights, rows_in: bool) -> None:
        """Raises FormatError if `out` does not depend on all adapters and control vectors."""
        if self.adapters is not None:
            leaves = [leaf for leaf in weights.values() if leaf.name.endswith(".lora_b")]
            rows = f"{EMBEDDINGS}.lora_b"  # not of images
            _require_all(out, [leaf for leaf in leaves if not (rows_in and leaf.name == rows)])
        if not (rows_in and self.config.n_encoder):
            _require_all(out, step.directions.values())

    def build_behind(self, n_rows: int, *, scores: bool) -> G.Graph:
        """Builds the graph of the layers behind the pooling, for at most `n_rows` texts: those of
        the classifier, if `scores`, or the dense ones.

        Its input is rows f32 [n_rows, n_embd], its output pooled f32 [n_rows, n_scores] or
        [n_rows, n_embd_out]."""
        head, c, w = self.architecture.head, self.config, self.weights
        assert head is not None
        x = G.input("rows", (G.Sym("n_rows", 1, n_rows), c.n_embd), "f32")
        y = head.scores(c, w, x) if scores else head.dense(c, w, x)
        return G.Graph(y.as_output("pooled"))

    def build_shift(self, cache: KVCache) -> G.Graph | None:
        """Builds the graph that rotates cached keys in place after their positions have changed;
        None for a model without rotary embedding.

        Its inputs are shift i32 [n_kv], the new position minus the old one, and window_shift i32
        [n_kv_window] if sliding-window layers have cells of their own."""
        shift = G.input("shift", (G.Sym("n_kv", 1, cache.size),), "i32")
        small = None
        if cache.window is not None:
            n_seen = G.Sym("n_kv_window", 1, cache.window.size)
            small = G.input("window_shift", (n_seen,), "i32")
        mode = self.architecture.rope_mode
        shifted = common.shift_keys(self.config, self.weights, cache, mode, shift, small)
        return G.Graph(*shifted) if shifted else None


def _graph_of(out: Tensor, step: Step, embeddings: bool) -> G.Graph:
    """The graph of a model's last tensor, and of what `step` collected on the way."""
    if embeddings:
        return G.Graph(_find(out, "result_norm").as_output("embeddings"), *step.writes)
    states = [step.inputs[il] for il in step.kept] if step.kept else step.states
    more = list(step.writes)
    if states:
        wide = reduce(lambda a, b: G.concat(a, b, 0), states)
        more.insert(0, wide.as_output("states"))
    return G.Graph(out.as_output("logits"), *more)


def _require_all(out: Tensor, leaves: Iterable[Tensor]) -> None:
    """Raises FormatError if `out` does not depend on one of `leaves` of adapters and control
    vectors."""
    used = set(G.Graph(out).leaves)
    for leaf in leaves:
        if leaf not in used:
            if leaf.name.endswith(".direction"):
                raise FormatError(
                    f"a control vector has {leaf.name}, behind a layer that this architecture "
                    "cannot be steered at; leave it out with control_vector_layers"
                )
            raise FormatError(
                f"an adapter changes {leaf.name.removesuffix('.lora_b')}, which this architecture "
                "uses in a way of its own; merge the adapter into the model"
            )


def _find(out: Tensor, name: str) -> Tensor:
    """The tensor called `name` that `out` is computed from."""
    queue, seen = [out], {id(out)}
    for t in queue:
        if t.name == name:
            return t
        new = [s for s in t.src if s is not None and id(s) not in seen]
        seen.update(id(s) for s in new)
        queue.extend(new)
    raise FormatError(f"this architecture has no tensor {name}")
