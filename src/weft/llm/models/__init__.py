"""Architectures by the name that GGUF files give in `general.architecture`.

Adding one: a file with `table(config)` (its tensors) and `forward(step, weights)` (its graph), put
together from `common.py`, and a row here; docs/add-a-model.md has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.errors import FormatError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import (
    bert,
    bitnet,
    bloom,
    commandr,
    deepseek2,
    falcon,
    gemma,
    gemma2,
    gemma3,
    glm4,
    gpt2,
    gptneox,
    gptoss,
    granite,
    lfm2,
    llama,
    mamba,
    mpt,
    nemotron,
    olmo2,
    olmoe,
    phi2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    stablelm,
    starcoder2,
)
from weft.llm.models.common import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a kind of model is loaded and computed."""

    table: Callable[[ModelConfig], Iterable[Row]]
    forward: Callable[[Step, Weights], Tensor]
    rope_mode: RopeMode
    """Which elements of a head rotate together: adjacent pairs (NORMAL), or halves (NEOX)."""
    configure: Callable[[ModelConfig, Keys], ModelConfig] = lambda config, keys: config
    """What the architecture makes of the metadata that `ModelConfig.from_gguf` does not know: which
    layers have a window, another rotary embedding, ..."""
    embeds: bool = False
    """Whether `forward` gives embeddings instead of logits."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(llama.table, llama.forward, RopeMode.NORMAL),
    "qwen2": Architecture(qwen2.table, qwen2.forward, RopeMode.NEOX),
    "qwen2moe": Architecture(qwen2.table, qwen2.forward, RopeMode.NEOX, qwen2.configure_experts),
    "qwen3": Architecture(qwen3.table, qwen3.forward, RopeMode.NEOX),
    "qwen3moe": Architecture(qwen3.table, qwen3.forward, RopeMode.NEOX, qwen3.configure_experts),
    "olmo2": Architecture(olmo2.table, olmo2.forward, RopeMode.NEOX, olmo2.configure),
    "olmoe": Architecture(olmoe.table, olmoe.forward, RopeMode.NEOX),
    "smollm3": Architecture(smollm3.table, smollm3.forward, RopeMode.NORMAL, smollm3.configure),
    "granite": Architecture(granite.table, granite.forward, RopeMode.NORMAL, granite.configure),
    "granitemoe": Architecture(granite.table, granite.forward, RopeMode.NORMAL, granite.configure),
    "starcoder2": Architecture(starcoder2.table, starcoder2.forward, RopeMode.NEOX),
    "stablelm": Architecture(stablelm.table, stablelm.forward, RopeMode.NEOX),
    "phi2": Architecture(phi2.table, phi2.forward, RopeMode.NEOX),
    "phi3": Architecture(phi3.table, phi3.forward, RopeMode.NEOX),
    "gemma": Architecture(gemma.table, gemma.forward, RopeMode.NEOX, gemma.configure),
    "gemma2": Architecture(gemma2.table, gemma2.forward, RopeMode.NEOX, gemma2.configure),
    "gemma3": Architecture(gemma3.table, gemma3.forward, RopeMode.NEOX, gemma3.configure),
    "gpt2": Architecture(gpt2.table, gpt2.forward, RopeMode.NEOX, gpt2.configure),
    "gptneox": Architecture(gptneox.table, gptneox.forward, RopeMode.NEOX),
    "falcon": Architecture(falcon.table, falcon.forward, RopeMode.NEOX),
    "bloom": Architecture(bloom.table, bloom.forward, RopeMode.NEOX, bloom.configure),
    "mpt": Architecture(mpt.table, mpt.forward, RopeMode.NEOX, mpt.configure),
    "command-r": Architecture(commandr.table, commandr.forward, RopeMode.NORMAL),
    "cohere2": Architecture(
        commandr.table, commandr.forward, RopeMode.NORMAL, commandr.configure_windows
    ),
    "glm4": Architecture(glm4.table, glm4.forward, RopeMode.NORMAL),
    "nemotron": Architecture(nemotron.table, nemotron.forward, RopeMode.NEOX),
    "deepseek2": Architecture(
        deepseek2.table, deepseek2.forward, RopeMode.NORMAL, deepseek2.configure
    ),
    "bert": Architecture(bert.table, bert.forward, RopeMode.NEOX, bert.configure, embeds=True),
    "nomic-bert": Architecture(bert.table, bert.forward, RopeMode.NEOX, embeds=True),
    "mamba": Architecture(mamba.table, mamba.forward, RopeMode.NEOX, mamba.configure),
    "mamba2": Architecture(mamba.table, mamba.forward, RopeMode.NEOX, mamba.configure2),
    "lfm2": Architecture(lfm2.table, lfm2.forward, RopeMode.NEOX, lfm2.configure),
    "bitnet": Architecture(bitnet.table, bitnet.forward, RopeMode.NEOX),
    "gpt-oss": Architecture(gptoss.table, gptoss.forward, RopeMode.NEOX, gptoss.configure),
}


def find_architecture(name: str) -> Architecture:
    """The row called `name`; raises FormatError with the known names."""
    found = ARCHITECTURES.get(name)
    if found is None:
        raise FormatError(
            f"unknown architecture {name!r}; known architectures: {', '.join(ARCHITECTURES)}"
        )
    return found
