"""Token embeddings, and the head that turns hidden states into logits, tied to the embedding or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.base import QuantConfig, WeightLayer
from policyquant.layers.gradients import product
from policyquant.layers.linear import Linear
from policyquant.layers.logical_weight import LogicalWeight, with_bias
from policyquant.methods.base import QuantMethod
from policyquant.methods.registry import method_for
from policyquant.quantized_tensor import QuantizedTensor


class VocabParallelEmbedding(WeightLayer, nn.Embedding):
    """`nn.Embedding` whose rows are stored as the plan says: ids [...] → [..., embedding_dim].

    The weight is [num_embeddings, embedding_dim]. Rows of the vocabulary are what ranks share out; one rank holds all.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        WeightLayer.__init__(
            self,
            embedding_dim,
            {"": num_embeddings},
            has_bias=False,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None
        self.max_norm = None
        self.norm_type = 2.0
        self.scale_grad_by_freq = False
        self.sparse = False

    def note_method(self, method: QuantMethod) -> None:
        """Say that the tensors which the layer has are `method`'s.

        Raises:
            PolicyQuantError: the embedding renormalises its rows (`max_norm`), which stored codes do not allow.
        """
        if method.scheme.weight is not None and getattr(self, "max_norm", None) is not None:
            raise PolicyQuantError(
                f"embedding {self.layer_name!r} has max_norm {self.max_norm}: looking up writes into its weight, which"
                f" {method.scheme} does not allow; give it the method 'none'"
            )
        super().note_method(method)

    def reset_parameters(self) -> None:
        """Initialise an unquantized embedding as `nn.Embedding` does: normally distributed with variance 1."""
        nn.init.normal_(self.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor | QuantizedTensor:  # type: ignore[override]  # may emit codes
        """ids [...] (int32 or int64) → [..., embedding_dim], in the dtype that the plan says."""
        if self.as_stored:
            return F.embedding(
                ids,
                self.weight,
                self.padding_idx,
                self.max_norm,
                self.norm_type,
                self.scale_grad_by_freq,
                self.sparse,
            )
        return self._emit(self.quant_method.embed(self, ids))

    def extra_repr(self) -> str:
        scheme = super().extra_repr()
        sizes = f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}"
        return f"{sizes}, {scheme}" if scheme else sizes


class ParallelLMHead(Linear):
    """Hidden states [..., embedding_dim] → logits [..., num_embeddings], by a weight of its own or the embedding's."""

    tied_to: VocabParallelEmbedding | None
    """The embedding whose weight this head applies; no submodule, so that it keeps its one name."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            embedding_dim,
            num_embeddings,
            bias,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.__dict__["tied_to"] = None

    def tie_to(self, embedding: VocabParallelEmbedding) -> None:
        """Apply the embedding's weight from now on; the head's own is dropped, its bias stays.

        The Parameter of an unquantized embedding is shared; a quantized embedding does the head's work, and the head
        owns no weight. What the head hands on is its own affair: its output dtype stays. Whoever gives the embedding
        another method ties again.

        Raises:
            PolicyQuantError: the two have different sizes.
        """
        if (embedding.num_embeddings, embedding.embedding_dim) != (self.num_embeddings, self.embedding_dim):
            raise PolicyQuantError(
                f"head {self.layer_name!r} [{self.num_embeddings}, {self.embedding_dim}] cannot be tied to embedding"
                f" {embedding.layer_name!r} [{embedding.num_embeddings}, {embedding.embedding_dim}]"
            )
        self.__dict__["tied_to"] = None
        self._parameters.pop("weight", None)
        for name in self.method_tensors:
            self._buffers.pop(name, None)
        shared = embedding._parameters.get("weight")
        if shared is not None:
            self.register_parameter("weight", shared)
        self.params_dtype = embedding.params_dtype
        scheme = replace(embedding.scheme, output=self.scheme.output)
        self.note_method(embedding.quant_method if scheme == embedding.scheme else method_for(scheme))
        self.__dict__["tied_to"] = embedding

    def take_method(self, method: QuantMethod, device: torch.device) -> None:
        """Let `method` own the head's tensors from now on; a tied head is tied no longer."""
        self.__dict__["tied_to"] = None
        super().take_method(method, device)

    def forward(  # type: ignore[override]  # may take and emit codes
        self, x: torch.Tensor | QuantizedTensor
    ) -> torch.Tensor | QuantizedTensor:
        """x [..., embedding_dim] → [..., num_embeddings], in the dtype that the plan says."""
        embedding = self.tied_to
        if embedding is None or "weight" in self._parameters:
            return super().forward(x)
        weights = with_bias(embedding, self._parameters.get("bias"), self.quant_method)
        return self._emit(product(weights, x))

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and "weight" not in self._parameters and self.__dict__.get("tied_to") is not None:
            return self.__dict__["tied_to"].weight
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `head.weight = embedding.weight` is how most models tie.
        if name == "weight" and isinstance(value, LogicalWeight) and isinstance(value.layer, VocabParallelEmbedding):
            self.tie_to(value.layer)
        else:
            super().__setattr__(name, value)
