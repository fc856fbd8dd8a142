"""A `ModelConfig` from the metadata of a GGUF file.

The keys are those of the GGUF specification (docs/gguf.md in the ggml repository), most of them
under the architecture's name, e.g. `llama.embedding_length`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

import numpy as np

from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.llm.config import ModelConfig, Pooling
from weft.llm.config_parts import MoeConfig, RopeConfig, RopeScaling


class Keys:
    """Looks up metadata under the architecture's prefix and checks ranges.

    A `key` is the name without the prefix. Errors are FormatErrors that name the whole key."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.architecture

    def config(self) -> ModelConfig:
        """The config, as far as all architectures have the same keys."""
        if not self.file.tensors:
            raise FormatError(
                f"{self.file.path}: the file has no tensors: it is a vocabulary, not a model; give "
                "the path of a model"
            )
        n_embd = self.count("embedding_length")
        n_blocks = self.count("block_count", most=1 << 16)
        n_next = self.count("nextn_predict_layers", 0, least=0, most=n_blocks)
        n_layer = n_blocks - n_next or n_blocks  # a model that drafts has no others
        heads = self.per_layer("attention.head_count", n_layer)
        heads_kv = self.per_layer("attention.head_count_kv", n_layer, heads)
        for il, (h, kv) in enumerate(zip(heads, heads_kv, strict=True)):
            if kv and h % kv:
                raise self.bad(
                    "attention.head_count_kv", kv, f"a divisor of layer {il}'s {h} heads"
                )
        head_dim = n_embd // max(heads[0], 1)
        key = f"{self.arch}.attention.key_length"
        if key not in self.file.metadata and heads[0] and n_embd % heads[0]:
            raise self.bad(
                "attention.head_count",
                heads[0],
                f"a divisor of embedding_length {n_embd} (there is no attention.key_length)",
            )
        head_dim_k = self.count("attention.key_length", head_dim)
        window = self.count("attention.sliding_window", 0, least=0)
        # a mixture of experts without dense layers may state the width of experts alone
        n_ff = self.count("expert_feed_forward_length", 0, least=0)
        no_widths = (n_ff,) * n_layer if n_ff else None
        return ModelConfig(
            arch=self.arch,
            name=self.file.get_str("general.name", ""),
            n_vocab=self.n_vocab(),
            n_ctx_train=self.count("context_length"),
            n_embd=n_embd,
            n_layer=n_layer,
            n_blocks=n_blocks,
            heads=heads,
            heads_kv=heads_kv,
            widths=self.per_layer("feed_forward_length", n_layer, no_widths),
            head_dim_k=head_dim_k,
            head_dim_v=self.count("attention.value_length", head_dim),
            rms_eps=self.number("attention.layer_norm_rms_epsilon", 1e-5),
            rope=self.rope(head_dim_k),
            moe=self.moe(n_layer),
            sliding_window=window,
            windowed=self.flags("attention.sliding_window_pattern", n_layer) if window else (),
            norm_eps=self.number("attention.layer_norm_epsilon", 1e-5),
            attn_scale=self.number("attention.scale", 0.0),
            attn_softcap=self.number("attn_logit_softcapping", 0.0),
            final_softcap=self.number("final_logit_softcapping", 0.0),
            embedding_scale=self.number("embedding_scale", 0.0),
            residual_scale=self.number("residual_scale", 0.0),
            logit_scale=self.number("logit_scale", 0.0),
            alibi_bias=self.number("attention.max_alibi_bias", 0.0),
            clamp_qkv=self.number("attention.clamp_kqv", 0.0),
            causal=self.flag("attention.causal", True),
            pooling=self.pooling("pooling_type", "none"),
            dense=tuple(self._dense()),
            classifier=(self._rows_of("cls.weight"), self._rows_of("cls.output.weight")),
            classifier_pooling=self.pooling("classifier.pooling_type", "none"),
            labels=tuple(self.file.get_str_list(f"{self.arch}.classifier.output_labels", [])),
            hidden_act=self.file.get_str(f"{self.arch}.hidden_activation", ""),
            n_token_types=self.file.get_int("tokenizer.ggml.token_type_count", 0),
            rope_sections=self.sections(),
            deepstack=self.deepstack(n_layer),
            parallel_residual=self.flag("use_parallel_residual", True),
        )

    def deepstack(self, n_layer: int) -> tuple[int, ...]:
        """The layers behind which parts of an image's row are added: the first ones (Qwen3-VL), or
        those in front of the layers that have a part's number (Granite 4 Vision)."""
        key = "deepstack_mapping"
        if f"{self.arch}.{key}" not in self.file.metadata:
            most = max(n_layer - 1, 0)
            return tuple(range(self.count("n_deepstack_layers", 0, least=0, most=most)))
        values = self.file.get_array(f"{self.arch}.{key}")
        if len(values) != n_layer or not np.issubdtype(values.dtype, np.integer):
            raise self.bad(key, f"an array of {len(values)}", f"{n_layer} integers")
        at = {int(part): il - 1 for il, part in enumerate(values.tolist()) if part >= 0}
        n = len(at)
        if sorted(at) != list(range(1, n + 1)) or n != (values >= 0).sum() or values[0] >= 0:
            wanted = "-1, and each number from 1 on once, behind the first layer"
            raise self.bad(key, values[:32].tolist(), wanted)
        return tuple(at[part] for part in range(1, n + 1))

    def n_vocab(self) -> int:
        """The number of tokens of the vocabulary."""
        tokens = "tokenizer.ggml.tokens"
        if tokens in self.file.metadata:
            return self.file.metadata.count_of(tokens)
        return self.count("vocab_size")

    def moe(self, n_layer: int) -> MoeConfig | None:
        """The mixture of experts; None: there is none. Layers without a router are dense, even if
        no key says so."""
        n_expert = self.count("expert_count", 0, least=0, most=1 << 16)
        if n_expert == 0:
            return None
        n_used = self.count("expert_used_count")
        if n_used > n_expert:
            raise self.bad("expert_used_count", n_used, f"at most expert_count = {n_expert}")
        n_ff = self.count("expert_feed_forward_length", 0, least=0)
        n_ff = n_ff or self.per_layer("feed_forward_length", 1)[0]
        n_shared = self.count("expert_shared_count", 0, least=0, most=1 << 16)
        n_group = self.count("expert_group_count", 1, least=0) or 1
        n_group_used = self.count("expert_group_used_count", n_group, least=0) or n_group
        if n_expert % n_group or n_expert < 2 * n_group > 2:
            raise self.bad("expert_group_count", n_group, f"groups of 2 or more of {n_expert}")
        if n_group_used > n_group or n_used > n_expert // n_group * n_group_used:
            raise self.bad(
                "expert_group_used_count", n_group_used, f"at most {n_group}, with {n_used} experts"
            )
        norm = f"{self.arch}.expert_weights_norm"
        first = self.count("leading_dense_block_count", 0, least=0)
        step = self.count("interleave_moe_layer_step", 1, least=0) or 1
        layers = range(n_layer)
        routed = [il for il in layers if f"blk.{il}.ffn_gate_inp.weight" in self.file.tensors]
        routed = routed or [il for il in layers if il >= first and (il + 1) % step == 0]
        return MoeConfig(
            n_expert,
            n_used,
            n_ff,
            n_ff_shared=self.count("expert_shared_feed_forward_length", n_ff * n_shared, least=0),
            renormalise=self.file.get_bool(norm) if norm in self.file.metadata else None,
            scale=self.number("expert_weights_scale", 0.0) or 1.0,
            sigmoid=self._is_sigmoid(),
            root=self.count("expert_gating_func", 0, least=0) == 4,
            n_group=n_group,
            n_group_used=n_group_used,
            dense=tuple(il for il in layers if il not in routed),
        )

    def _is_sigmoid(self) -> bool:
        """True if expert weights are sigmoids of scores. Files of GLM-4.7-Flash do not say so, but
        have a bias that balances the choice, which only such models have."""
        key = "expert_gating_func"
        if f"{self.arch}.{key}" in self.file.metadata:
            return self.count(key, least=0) == 2
        return any(name.endswith(".exp_probs_b.bias") for name in self.file.tensors)

    def pooling(self, key: str, default: Pooling) -> Pooling:
        """The pooling of embeddings; the key has llama.cpp's numbers."""
        names = get_args(Pooling)
        number = self.count(key, names.index(default), least=0)
        if number >= len(names):
            known = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
            raise self.bad(key, number, f"one of {known}; others are not supported")
        pooling: Pooling = names[number]
        return pooling

    def _dense(self) -> Iterator[int]:
        """Widths of the dense layers behind the pooling, as files of sentence-transformers have."""
        for name in ("dense_2", "dense_3"):
            if f"{name}.weight" in self.file.tensors:
                yield self.count(f"{name}_feat_out")

    def _rows_of(self, name: str) -> int:
        """The number of rows of a matrix; 0: the file has none of that name."""
        info = self.file.tensors.get(name)
        return 0 if info is None else info.ne[1]

    def windowed(self, period: int, n_layer: int, *, first: bool = False) -> tuple[bool, ...]:
        """For each layer, whether it sees only the sliding window.

        `attention.sliding_window_pattern` has a flag for each layer, or a period (default:
        `period`): the last layer of each period (or the `first`) sees everything; with period 0, no
        layer does."""
        key = "attention.sliding_window_pattern"
        flags = self.flags(key, n_layer)
        if flags:
            return flags
        period = self.count(key, period, least=0)
        full_at = 0 if first else period - 1
        return tuple(period == 0 or il % period != full_at for il in range(n_layer))

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...]:
        """A flag for each layer; empty if the metadata has no array of that name."""
        full = f"{self.arch}.{key}"
        meta = self.file.metadata
        if full not in meta or meta.item_type_of(full) is None:
            return ()
        flags = self.file.get_array(full)
        if len(flags) < n_layer:
            raise self.bad(key, f"an array of {len(flags)}", f"one for each of {n_layer} layers")
        return tuple(bool(flag) for flag in flags[:n_layer])

    def rope(self, head_dim: int) -> RopeConfig:
        """The rotary embedding of heads of `head_dim` elements."""
        n_dims = self.count("rope.dimension_count", head_dim, least=0)
        if n_dims % 2 or n_dims > head_dim:
            raise self.bad("rope.dimension_count", n_dims, f"even and at most {head_dim}")
        base = self.number("rope.freq_base", 10000.0, above=0.0)
        # `rope.scale_linear` is the old name of the factor in the specification
        old = self.number("rope.scale_linear", 0.0)
        factor = self.number("rope.scaling.factor", old)
        known = get_args(RopeScaling)
        key = f"{self.arch}.rope.scaling.type"
        scaling = self.file.get_str(key, "linear" if factor not in (0.0, 1.0) else "none")
        if scaling not in known:
            raise self.bad("rope.scaling.type", repr(scaling), f"one of {', '.join(known)}")
        if factor == 0.0:
            factor = 1.0
        if factor < 0.0:
            raise self.bad("rope.scaling.factor", factor, "above 0")
        ext = self.number("rope.scaling.yarn_ext_factor", -1.0)
        ext = ext if ext >= 0.0 else float(scaling == "yarn")
        multiplier = self.number("rope.scaling.yarn_log_multiplier", 0.0)
        return RopeConfig(
            n_dims=n_dims,
            freq_base=base,
            scaling=scaling,  # type: ignore[arg-type]  # checked against RopeScaling above
            factor=factor,
            n_ctx_orig=self.count(
                "rope.scaling.original_context_length", self.count("context_length")
            ),
            ext_factor=ext,
            attn_factor=self.number("rope.scaling.attn_factor", 1.0)
            * self._yarn_attn_factor(1.0 if multiplier or not ext else max(factor, 1.0)),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            log_multiplier=multiplier,
            dynamic=scaling == "none" and self.flag("rope.scaling.dynamic", False),
            rounded=self.flag("rope.scaling.yarn_truncate", self.arch != "gpt-oss"),
        )

    def sections(self) -> tuple[int, ...]:
        """The sections of M-RoPE; empty for a file without them."""
        key = f"{self.arch}.rope.dimension_sections"
        if key not in self.file.metadata:
            return ()
        values = tuple(int(n) for n in self.file.get_array(key)[:4])
        if any(not 0 <= n <= 1 << 16 for n in values):
            raise self.bad("rope.dimension_sections", values, "numbers of pairs")
        return values if sum(values) else ()

    def local_rope(self, c: ModelConfig) -> RopeConfig:
        """The rotary embedding of layers with a window, where these are never scaled."""
        return RopeConfig(
            self.count("rope.dimension_count_swa", c.rope.n_dims),
            self.number("rope.freq_base_swa", c.rope.freq_base, above=0.0),
        )

    def _yarn_attn_factor(self, factor: float) -> float:
        """The ratio of the magnitude that the file states to YaRN's, 1 + 0.1 ln(factor)."""
        key = "rope.scaling.yarn_attn_factor"
        if f"{self.arch}.{key}" not in self.file.metadata:
            return 1.0
        return self.number(key, 1.0, above=0.0) / (1.0 + 0.1 * math.log(factor))

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31
    ) -> int:
        """An integer in [least, most]; the limit keeps malicious files from overflowing sizes."""
        full = f"{self.arch}.{key}"
        get = self.file.get_int
        value = get(full) if default is None else get(full, default)
        if not least <= value <= most:
            raise self.bad(key, value, f"in {least}..{most}")
        return value

    def number(self, key: str, default: float, *, above: float | None = None) -> float:
        """A finite float, larger than `above` if that is given."""
        value = self.file.get_float(f"{self.arch}.{key}", default)
        if not math.isfinite(value) or (above is not None and value <= above):
            raise self.bad(key, value, "finite" if above is None else f"above {above}")
        return value

    def plain_numbers(self, key: str, n_layer: int) -> tuple[float, ...]:
        """A finite float for each layer, from a key without the architecture in front. Raises
        FormatError if the array is missing or short."""
        values = self.file.get_array(key)
        if len(values) < n_layer or not np.isfinite(values[:n_layer]).all():
            wanted = f"a number for each of {n_layer} layers"
            raise self.bad(key, f"an array of {len(values)}", wanted)
        return tuple(float(v) for v in values[:n_layer])

    def numbers(self, key: str, n_layer: int, default: float) -> tuple[float, ...]:
        """A finite float for each layer; the file has one number for all layers, or an array."""
        full = f"{self.arch}.{key}"
        if full not in self.file.metadata or self.file.metadata.item_type_of(full) is None:
            return (self.number(key, default),) * n_layer
        values = self.file.get_array(full)
        if len(values) < n_layer or not np.isfinite(values[:n_layer]).all():
            wanted = f"a finite number for each of {n_layer} layers"
            raise self.bad(key, f"an array of {len(values)}", wanted)
        return tuple(float(v) for v in values[:n_layer])

    def flag(self, key: str, default: bool) -> bool:
        """A boolean value."""
        return self.file.get_bool(f"{self.arch}.{key}", default)

    def per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """A count for each layer; the file has one number for all layers, or an array."""
        full = f"{self.arch}.{key}"
        meta = self.file.metadata
        if full not in meta and default is not None:
            return default
        if full not in meta or meta.item_type_of(full) is None:
            return (self.count(key, least=0),) * n_layer
        values = self.file.get_array(full)
        if len(values) < n_layer or not np.issubdtype(values.dtype, np.integer):
            raise self.bad(
                key, f"an array of {len(values)}", f"an integer for each of {n_layer} layers"
            )
        counts = tuple(int(v) for v in values[:n_layer])
        if min(counts) < 0 or max(counts) > 1 << 31:
            raise self.bad(key, counts, f"in 0..{1 << 31}")
        return counts

    def bad(self, key: str, value: object, wanted: str) -> FormatError:
        """The error for a key with a wrong `value`; `wanted` says what it must be."""
        return FormatError(
            f"{self.file.path}: metadata key {self.arch}.{key} is {value}; it must be {wanted}"
        )


def read_config(file: GGUFFile) -> ModelConfig:
    """Reads and checks the metadata. Raises FormatError, which names the key, for a wrong value."""
    return Keys(file).config()
