"""What methods share that hold a weight as 8-bit codes with float32 scales, one a channel or one a part."""

from __future__ import annotations

from abc import abstractmethod

import torch

from policyquant.kernels import ops, reference
from policyquant.methods.base import QuantMethod, WeightLayer
from policyquant.methods.dtypes import PLAIN
from policyquant.methods.pieces import buffer, by_row, create_bias
from policyquant.policy.scheme import Quantization


class ScaledCodes(QuantMethod):
    """w ≈ codes · scale.

    A layer has the buffers `weight`, codes [N, K] ([experts, N, K]), and `weight_scale`, float32: [N, 1]
    ([experts, N, 1]) per channel, [parts] ([experts, parts]) per tensor.
    """

    @property
    @abstractmethod
    def code_dtype(self) -> torch.dtype:
        """That of the weight's codes."""

    @property
    def weight_quantization(self) -> Quantization:
        """What the scheme says of the weight."""
        assert self.scheme.weight is not None
        return self.scheme.weight

    @property
    def per_channel(self) -> bool:
        """Whether each row has a scale; else each part has one."""
        return self.weight_quantization.granularity == "channel"

    def create_weights(self, layer: WeightLayer, device: torch.device) -> None:
        """Codes, scales, and the bias unless the layer has one on this device."""
        leading = () if layer.num_experts is None else (layer.num_experts,)
        rows, parts = (*leading, layer.out_features), (*leading, len(layer.parts))
        scales = (*rows, 1) if self.per_channel else parts
        layer._parameters.pop("weight", None)
        # Straight into the table: the layer's `weight` is its logical view, with which registering would collide.
        layer._buffers["weight"] = torch.empty((*rows, layer.in_features), dtype=self.code_dtype, device=device)
        layer._buffers["weight_scale"] = torch.empty(scales, dtype=torch.float32, device=device)
        create_bias(layer, device)

    def dequantize(self, layer: WeightLayer) -> torch.Tensor:
        """[N, K] or [experts, N, K] in `layer.params_dtype`."""
        return ops.dequantize(buffer(layer, "weight"), self._row_scale(layer), layer.params_dtype)

    def reference_weight(self, layer: WeightLayer) -> torch.Tensor:
        """Codes times scales."""
        return reference.dequantize(buffer(layer, "weight"), self._row_scale(layer))

    def product_scale(self, layer: WeightLayer, scale: torch.Tensor) -> torch.Tensor:
        """Scales of one weight as the product takes them: [N, 1], or [1] where one covers it all."""
        return scale if self.per_channel or len(layer.parts) == 1 else by_row(layer, scale)

    def out_dtype(self, layer: WeightLayer) -> torch.dtype:
        """The plain dtype of what the layer returns."""
        output = self.scheme.output
        return PLAIN[output] if isinstance(output, str) else layer.params_dtype

    def _row_scale(self, layer: WeightLayer) -> torch.Tensor:
        """A scale for each row: [.., N, 1]."""
        scale = buffer(layer, "weight_scale")
        return scale if self.per_channel else by_row(layer, scale)
