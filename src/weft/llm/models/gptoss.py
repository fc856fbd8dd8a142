"""gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv 2508.10925).

It has a mixture of experts in every layer, attention sinks (one learned logit per head that counts
only in the denominator of the softmax), biases everywhere, and a sliding window in every second
layer, beginning with the first. YaRN mixes between pairs that are not rounded to whole ones, unless
`rope.scaling.yarn_truncate` is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.errors import FormatError
from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import Attention
from weft.llm.weights import Row

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets a sliding window in every second layer, beginning with the first."""
    return replace(c, windowed=keys.windowed(2, c.n_layer))


class GptOss(Architecture):
    """Every file has experts and a sliding window."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        """Tensors outside the layers. Raises FormatError if the metadata has no experts or no
        sliding window."""
        if c.moe is None or c.sliding_window == 0:
            missing = "attention.sliding_window" if c.moe else "expert_count"
            raise FormatError(
                f"metadata key {c.arch}.{missing} is missing; convert the model again"
            )
        return super().outer_rows(c)


ARCHITECTURES = {
    "gpt-oss": GptOss(
        RopeMode.NEOX,
        configure,
        before=("attn_norm", "post_attention_norm"),
        attention=Attention(sinks=True),
        feed_forward=Experts(dense=None, softmax_first=False, oai=True),
    )
}
