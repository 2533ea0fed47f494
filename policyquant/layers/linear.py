"""Linear layers: plain, in the spellings of tensor parallelism, and merged ones that hold several members' rows.

All run on one rank; the parallel ones settle the signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.base import QuantConfig, WeightLayer
from policyquant.layers.gradients import product
from policyquant.quantized_tensor import QuantizedTensor


class _AppliesMatrix(WeightLayer):
    """A layer whose forward is x @ weight.T + bias."""

    def forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor | QuantizedTensor:
        """x [..., in_features] → [..., out_features], in the dtype that the plan says."""
        if self.as_stored:
            parameters = self._parameters
            weight = parameters.get("weight")
            # Somebody who computes the weight (pruning, weight norm) leaves an attribute in place of the parameter.
            return F.linear(x, self.weight if weight is None else weight, parameters.get("bias"))  # type: ignore[arg-type]
        return self._emit(product(self, x))

    def extra_repr(self) -> str:
        named = [f"{name}={rows}" for name, rows in self.parts.items() if name]
        sizes = [f"in_features={self.in_features}", f"out_features={self.out_features}", *named]
        scheme = super().extra_repr()
        return ", ".join([*sizes, f"bias={self.has_bias}", *([scheme] if scheme else [])])


class Linear(_AppliesMatrix, nn.Linear):  # type: ignore[misc]  # its forward may take and emit codes
    """`nn.Linear` whose weight is stored and applied as the plan says: x [..., in_features] → [..., out_features].

    With `quant_config` and `prefix` it takes its method at once and its tensors are created in their final form; with
    neither it is a working unquantized layer, initialised as `nn.Linear` is.
    """

    out_features = WeightLayer.out_features

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        WeightLayer.__init__(
            self,
            in_features,
            {"": out_features},
            has_bias=bias,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )


class ColumnParallelLinear(Linear):
    """A linear whose rows (output features) are what ranks share out. One rank holds them all.

    `gather_output` says whether the result is collected from the ranks; with one there is nothing to collect.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        gather_output: bool = False,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, quant_config=quant_config, prefix=prefix, device=device, dtype=dtype
        )
        self.gather_output = gather_output


class RowParallelLinear(Linear):
    """A linear whose columns (input features) are what ranks share out. One rank holds them all.

    `input_is_parallel` says whether each rank is given its share of the input, `reduce_results` whether the ranks'
    results are added up; with one rank neither changes anything.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        input_is_parallel: bool = True,
        reduce_results: bool = True,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, quant_config=quant_config, prefix=prefix, device=device, dtype=dtype
        )
        self.input_is_parallel = input_is_parallel
        self.reduce_results = reduce_results


class MergedColumnParallelLinear(_AppliesMatrix):
    """Several linears that read the same input, in one: x [..., in_features] → their results side by side.

    `parts` are the members' names as checkpoints spell them, each with its rows, in the order of the results:
    `{"gate_proj": 14336, "up_proj": 14336}`.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        bias: bool = True,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features,
            parts,
            has_bias=bias,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )


class QKVParallelLinear(MergedColumnParallelLinear):
    """The three projections of attention in one: x [..., hidden_size] → [queries | keys | values].

    Queries have `num_heads * head_dim` features, keys and values `num_kv_heads * head_dim` each. `parts` are the names
    of the three as checkpoints spell them.

    Raises:
        PolicyQuantError: `parts` are not three different names.
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        bias: bool = True,
        parts: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if len(set(parts)) != 3 or len(parts) != 3:
            raise PolicyQuantError(f"QKVParallelLinear: parts are three different names, found {list(parts)}")
        rows = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
        super().__init__(
            hidden_size,
            dict(zip(parts, rows, strict=True)),
            bias,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
