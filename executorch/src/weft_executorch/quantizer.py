"""`WeftQuantizer`: selects the weights that PT2E (`torchao.quantization.pt2e`) quantizes for
weft.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.granularity import Granularity, PerAxis, PerGroup, PerToken
from torchao.quantization.pt2e import MappingType
from torchao.quantization.pt2e._affine_quantization import (
    AffineQuantizedMinMaxObserver,
    AffineQuantizedPlaceholderObserver,
)
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)

from weft.errors import WeftError

__all__ = ["WeftQuantizer"]

_ANNOTATION = "quantization_annotation"
_aten = torch.ops.aten
_CONVOLUTIONS = {
    *(_aten.conv1d.default, _aten.conv1d.padding, _aten.conv_transpose1d.default),
    *(_aten.conv2d.default, _aten.conv2d.padding, _aten.conv_transpose2d.input),
    *(_aten.conv3d.default, _aten.conv3d.padding, _aten.conv_transpose3d.input),
}


class WeftQuantizer(Quantizer):
    """Quantizes linear layers with symmetric weights of `bits` (8 or 4) bits.

    Their activations are quantized to int8 in each call, token by token (`dynamic=False`: weights
    only).

        prepared = prepare_pt2e(torch.export.export(model, inputs).module(), WeftQuantizer())
        prepared(*inputs)
        quantized = convert_pt2e(prepared)

    `group` is the number of weights of a row that share a scale, a multiple of 32; 0 is the whole
    row. The default is 0 for 8 bits and 32 for 4 bits. `skip` leaves out the linear layers for
    which it is true. Layers whose rows are not whole groups of 32 stay unquantized, because weft
    has no blocks for them.

    weft stores the weights as q8_0 or q4_0 (scales rounded to float16) and quantizes activations
    itself in blocks of 32, which is finer than a scale for each token.

    `convolutions` quantizes the weights of convolutions, too: int8 with a scale for each output
    channel (of transposed ones: for each input channel). weft computes with the decoded numbers, in
    float32, so that a quantized CNN is one delegate; its file is not smaller. Raises WeftError for
    other bits and groups."""

    def __init__(
        self,
        bits: int = 8,
        group: int | None = None,
        *,
        dynamic: bool = True,
        convolutions: bool = False,
        skip: Callable[[Node], bool] | None = None,
    ) -> None:
        super().__init__()
        if bits not in (4, 8):
            raise WeftError(f"weights are quantized to 8 or 4 bits, got {bits}")
        group = (0 if bits == 8 else 32) if group is None else group
        if group < 0 or group % 32:
            raise WeftError(f"a group must be 0 (a row) or a multiple of 32 weights, got {group}")
        self.group, self.skip = group, skip
        self._channels = _symmetric(8, PerAxis(0)) if convolutions else None
        per: Granularity = PerGroup(group) if group else PerAxis(0)
        self._weights = _symmetric(bits, per)
        self._activations = None
        if dynamic:
            placeholder = AffineQuantizedPlaceholderObserver.with_args(
                mapping_type=MappingType.ASYMMETRIC, target_dtype=torch.int8,
                granularity=PerToken(), eps=torch.finfo(torch.float32).eps, is_dynamic=True,
                scale_dtype=torch.float32, zero_point_dtype=torch.int32,
            )  # fmt: skip
            self._activations = QuantizationSpec(
                torch.int8, placeholder, quant_min=-128, quant_max=127, is_dynamic=True
            )

    def annotate(self, model: GraphModule) -> GraphModule:
        """Marks the layers whose weight is a constant of fitting shape."""
        for node in model.graph.nodes:
            if node.target in _CONVOLUTIONS and self._channels and self._is_weight(node):
                inputs = {node.args[1]: self._channels}
                node.meta[_ANNOTATION] = QuantizationAnnotation(inputs, _annotated=True)
            if node.target is torch.ops.aten.linear.default and self._fits(node):
                x, weight = node.args[:2]
                inputs = {weight: self._weights}
                if self._activations is not None:
                    inputs[x] = self._activations
                node.meta[_ANNOTATION] = QuantizationAnnotation(inputs, _annotated=True)
        return model

    def _is_weight(self, node: Node) -> bool:
        """Whether the second argument is a constant of floats that is neither marked nor
        skipped."""
        weight = node.args[1]
        if not isinstance(weight, Node) or weight.op != "get_attr" or _ANNOTATION in node.meta:
            return False
        is_float = weight.meta["val"].dtype.is_floating_point
        return is_float and not (self.skip and self.skip(node))

    def _fits(self, node: Node) -> bool:
        if not self._is_weight(node):
            return False
        weight = node.args[1]
        assert isinstance(weight, Node)
        fake = weight.meta["val"]
        return bool(fake.dim() == 2 and fake.shape[-1] % (self.group or 32) == 0)

    def validate(self, model: GraphModule) -> None:
        """Does nothing, because every mark of `annotate` is valid."""


def _symmetric(bits: int, per: Granularity) -> QuantizationSpec:
    """Weights as int8 of this number of bits."""
    top = 2 ** (bits - 1)
    low = 1 - top if bits == 8 else -top
    return QuantizationSpec(
        torch.int8,
        AffineQuantizedMinMaxObserver.with_args(
            mapping_type=MappingType.SYMMETRIC, target_dtype=torch.int8, granularity=per,
            eps=torch.finfo(torch.float16).tiny, scale_dtype=torch.float32,
            zero_point_dtype=torch.int32,
        ),
        quant_min=low, quant_max=top - 1,
    )  # fmt: skip
