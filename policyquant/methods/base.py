"""What a quantization method is: four moments in a layer's life, and the truth about what it computes.

1. construction: `create_weights` gives the layer tensors in their final, quantized shapes;
2. loading: `check` says what is wrong with what is to be loaded, `load` is handed all tensors of the layer at once;
3. after: `process_weights_after_loading` does what needs the finished layer;
4. forward: `apply` computes.

They are those of the RFC in vLLM that generalized `linear_method` to `quant_method`.

The truth is `reference`: what `apply` approaches, in float64 and without any kernel. A method says it by two values,
the weight as it is stored and the input as it is multiplied; without them it cannot be registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol, TypeVar, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.kernels import reference
from policyquant.methods.dtypes import PLAIN
from policyquant.policy.methods import MethodSpec
from policyquant.policy.scheme import Scheme
from policyquant.quantized_tensor import QuantizedTensor

PLAIN_DTYPES = frozenset(PLAIN.values())
"""What a weight that is not stored quantized may be stored in."""


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

    def apply_moe(
        self,
        gate_up: WeightLayer,
        down: WeightLayer,
        x: torch.Tensor | QuantizedTensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor | None:
        """A whole mixture: x [T, K] → Σ over a token's choices of weight · down[e](silu(gate) * up), [T, K].

        `gate_up`, whose method is asked, stacks gate and up; `down` may have another method. weights (float32) and ids
        are [T, k], and the sum is taken in their order. `FusedMoE` asks on a GPU and where values are not known, so
        nothing may depend on a value of `ids` or wait for it. The result is what `apply_experts` of both layers give.

        Returns:
            None if these layers cannot be computed so; `apply_experts` is called instead.
        """
        return None

    def embed(self, layer: WeightLayer, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids [...] → [..., K].

        Raises:
            NotImplementedError: the method takes no embeddings.
        """
        raise NotImplementedError(f"method {self.spec.name!r} takes no embeddings")

    @abstractmethod
    def dequantize(self, layer: WeightLayer) -> torch.Tensor:
        """The logical weight, [N, K] or [experts, N, K], in `layer.params_dtype`."""

    @abstractmethod
    def reference_weight(self, layer: WeightLayer) -> torch.Tensor:
        """The values of the weight as it is stored, exactly: [N, K] or [experts, N, K], float64.

        `dequantize` is this, rounded. Written with `policyquant.kernels.reference` and plain torch, for readers.
        """

    @abstractmethod
    def reference_input(
        self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None
    ) -> torch.Tensor:
        """The values that are multiplied with the weight, exactly: x [..., K] → [..., K], float64.

        These are x itself, or what the scheme makes of it: codes times scales. `counts` is that of `apply_experts`.
        """

    def reference(
        self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None
    ) -> torch.Tensor:
        """What `apply`, or with `counts` `apply_experts`, approaches: [..., N] in float64, not rounded.

        It is input · weightᵀ + bias, of `reference_input` and `reference_weight`. A kernel differs from it by its sums
        in float32, at most about K · 2**-24 · Σ_k |input · weight|, and by the rounding to its output dtype; codes,
        where the scheme makes any, are the same.
        """
        values, weight = self.reference_input(layer, x, counts), self.reference_weight(layer)
        bias = layer._parameters.get("bias")
        offset = weight.new_zeros(weight.shape[:-1]) if bias is None else bias.detach().double()
        if counts is None:
            return values @ weight.T + offset
        rows = torch.split(values, counts)
        return torch.cat([rows[e] @ weight[e].T + offset[e] for e in range(len(counts))])


def values_are_known(x: torch.Tensor) -> bool:
    """Whether Python may ask for values of x: not on meta, nor under `FakeTensorMode`, nor where a graph is made."""
    return not (torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor))


_Input = TypeVar("_Input", bound=torch.Tensor | QuantizedTensor)


def input_rows(layer: WeightLayer, x: _Input) -> _Input:
    """x [..., K] → [M, K], one row for each product with the weight.

    Raises:
        PolicyQuantError: the last dimension is not the layer's `in_features`.
    """
    features = layer.in_features
    if not x.shape or x.shape[-1] != features:
        raise PolicyQuantError(
            f"{layer.layer_name or 'a layer'}: takes inputs [..., {features}], found shape {list(x.shape)}"
        )
    return cast("_Input", x.reshape(-1, features))


def reference_values(x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    """The values of an input that is not quantized by the method, float64.

    One that arrives quantized is rounded to its logical dtype, as `QuantizedTensor.dequantize` does.
    """
    if isinstance(x, QuantizedTensor):
        x = reference.dequantize(x.data, x.scale).float().to(x.dtype)
    return x.double()
