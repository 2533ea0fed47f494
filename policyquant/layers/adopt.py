"""Turning a plain torch module into a layer with a plan, in place."""

from __future__ import annotations

from typing import overload

from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.base import WeightLayer
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import Linear
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import NONE


@overload
def adopt(module: nn.Linear) -> Linear: ...


@overload
def adopt(module: nn.Embedding) -> VocabParallelEmbedding: ...


def adopt(module: nn.Linear | nn.Embedding) -> Linear | VocabParallelEmbedding:
    """The same object as an unquantized layer of ours: its Parameters, hooks and training flag stay what they are.

    Raises:
        PolicyQuantError: the module is neither exactly `nn.Linear` nor exactly `nn.Embedding`. A subclass may compute
            something else, and `nn.LazyLinear` does not know its sizes.
    """
    kind = type(module)
    if type(module) is nn.Linear:
        rows = module.__dict__.pop("out_features")
        _become(module, Linear, module.in_features, rows)
    elif type(module) is nn.Embedding:
        _become(module, VocabParallelEmbedding, module.embedding_dim, module.num_embeddings)
    else:
        raise PolicyQuantError(
            f"only nn.Linear and nn.Embedding themselves can be adopted, found {kind.__module__}.{kind.__qualname__}"
        )
    assert isinstance(module, Linear | VocabParallelEmbedding)
    return module


def adopt_head(module: nn.Module) -> ParallelLMHead:
    """The same object as a head that can be tied to an embedding.

    Raises:
        PolicyQuantError: the module is neither exactly `nn.Linear` nor a `Linear` of ours.
    """
    if type(module) is not Linear:
        adopt(module)  # type: ignore[call-overload]  # refuses what it does not take
    assert isinstance(module, Linear)
    rows, columns = module.out_features, module.in_features
    module.__class__ = ParallelLMHead
    assert isinstance(module, ParallelLMHead)
    module.num_embeddings, module.embedding_dim = rows, columns
    module.__dict__["tied_to"] = None
    return module


def _become(module: nn.Module, kind: type[WeightLayer], in_features: int, rows: int) -> None:
    """Make `module` an unquantized layer of this kind; its tensors are left alone."""
    module.__class__ = kind
    assert isinstance(module, WeightLayer)
    module.layer_name = ""
    module.in_features = in_features
    module.parts = {"": rows}
    module.num_experts = None
    module.params_dtype = module.weight.dtype
    module.has_bias = module.__dict__["_parameters"].get("bias") is not None
    module.note_method(method_for(NONE))
