"""Where drafts can be checked: where a batch has the bits of single tokens."""

from __future__ import annotations

from weft.backends.cpu import CpuBackend
from weft.llm.compute.context import Context

__all__ = ["MOST_COLUMNS", "why_no_drafts"]

MOST_COLUMNS = 31
"""Most columns of a batch with drafts: from 32 on, devices may take products that are left to the
cpu for single tokens, and round differently."""


def why_no_drafts(context: Context) -> str:
    """Why drafts cannot be checked without a chance of other texts; empty if they can."""
    for regime in context.regimes:
        used = {split.device for split in regime.program.splits}
        for device in (d for d in regime.program.devices if d.name in used):
            if not isinstance(device, CpuBackend):
                return f"device {device.name} may round a batch otherwise than single tokens"
            if device.activations == "bf16":
                return "with bf16 activations, a batch is rounded otherwise than single tokens"
        if regime.max_tokens >= MOST_COLUMNS:
            break
    if context.cache.window is not None:
        return "with swa_full=False, attention adds up in the order of cells that are used again"
    if not context.plan.options.flash:
        return "without flash attention, a batch is rounded otherwise than single tokens"
    return ""
