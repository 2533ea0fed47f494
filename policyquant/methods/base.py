"""What a quantization method is: four moments in a layer's life.

1. construction: `create_weights` gives the layer tensors in their final, quantized shapes;
2. loading: `check` says what is wrong with what is to be loaded, `load` is handed all tensors of the layer at once;
3. after: `process_weights_after_loading` does what needs the finished layer;
4. forward: `apply` computes.

They are those of the RFC in vLLM that generalized `linear_method` to `quant_method`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.policy.methods import MethodSpec
from policyquant.policy.scheme import Scheme

if TYPE_CHECKING:
    from policyquant.quantized_tensor import QuantizedTensor

PLAIN_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What a weight that is not stored quantized may be stored in."""

OUTPUT_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Names of plain output dtypes in plans → PyTorch's."""


class WeightLayer(Protocol):
    """What a method may rely on in a layer that owns weights. `policyquant.layers.base` has the class."""

    layer_name: str
    in_features: int
    num_experts: int | None
    """None: the weight is [N, K]; else [experts, N, K]."""
    params_dtype: torch.dtype
    """The logical dtype of the weight, and of what the layer returns unless the plan says otherwise."""
    has_bias: bool
    _parameters: dict[str, torch.nn.Parameter | None]
    _buffers: dict[str, torch.Tensor | None]

    @property
    def parts(self) -> Mapping[str, int]:
        """Rows (output features) of each part, in the order in which they are stacked; a plain layer has one, ""."""

    @property
    def out_features(self) -> int:
        """Rows of all parts together."""

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None: ...

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None: ...


class QuantMethod(ABC):
    """One method under one scheme. Instances hold no tensors: those belong to the layer."""

    spec: ClassVar[MethodSpec]
    """Name, defaults, what a policy may set, and the kinds of layer that it takes."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    @abstractmethod
    def create_weights(self, layer: WeightLayer, device: torch.device) -> None:
        """Give the layer its stored tensors, uninitialised, in their final shapes and dtypes.

        These are `weight`, scales, and if `layer.has_bias` and none is there, `bias` [N] or [experts, N] in
        `layer.params_dtype`.
        """

    @abstractmethod
    def check(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> Iterator[str]:
        """What is wrong with tensors that are to be loaded, one sentence each. No value is read."""

    @abstractmethod
    def load(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
        """Fill the layer's tensors from those stored, converting as needed; all of the layer's tensors are here.

        Raises:
            PolicyQuantError: a weight holds NaN or infinity; the tensor and the index are named.
        """

    def process_weights_after_loading(self, layer: WeightLayer) -> None:  # noqa: B027 (most methods need nothing here)
        """Do what needs the finished layer."""

    @abstractmethod
    def apply(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., K] → [..., N], in the dtype that the plan says."""

    @abstractmethod
    def apply_experts(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> torch.Tensor:
        """x [T, K], sorted by expert → [T, N]; `counts[e]` rows are of expert e. Experts without rows are not read."""

    def embed(self, layer: WeightLayer, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids [...] → [..., K].

        Raises:
            NotImplementedError: the method takes no embeddings.
        """
        raise NotImplementedError(f"method {self.spec.name!r} takes no embeddings")

    @abstractmethod
    def dequantize(self, layer: WeightLayer) -> torch.Tensor:
        """The logical weight, [N, K] or [experts, N, K], in `layer.params_dtype`."""
