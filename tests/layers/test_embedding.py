"""Embeddings and heads without a plan are torch's; a tied head shares the embedding's Parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import Quantization, Scheme


def test_without_a_plan_an_embedding_is_initialised_and_looks_up_as_torch_does() -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(5, 8)
    torch.manual_seed(0)
    ours = VocabParallelEmbedding(5, 8)
    ids = torch.tensor([[0, 4], [2, 2]])
    assert torch.equal(ours(ids), plain(ids))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize(
    "ids", [torch.tensor([-1]), torch.tensor([5]), torch.ones(5, dtype=torch.bool), torch.tensor([1.0])], ids=str
)
def test_what_is_no_row_is_refused_as_torch_refuses_it(ids: torch.Tensor, granularity: str) -> None:
    layer = VocabParallelEmbedding(5, 8)
    layer.take_method(method_for(Scheme("int8_weight_only", Quantization("int8", granularity))), torch.device("cpu"))
    with pytest.raises((IndexError, RuntimeError)):
        nn.Embedding(5, 8)(ids)
    with pytest.raises((IndexError, RuntimeError)):
        layer(ids)


def test_a_tied_head_shares_the_parameter() -> None:
    embedding, head = VocabParallelEmbedding(5, 8), ParallelLMHead(5, 8)
    head.tie_to(embedding)
    x = torch.randn(3, 8)
    assert head.weight is embedding.weight
    assert torch.equal(head(x), x @ embedding.weight.T)


def test_a_head_of_another_size_is_not_tied() -> None:
    with pytest.raises(PolicyQuantError, match="cannot be tied"):
        ParallelLMHead(6, 8).tie_to(VocabParallelEmbedding(5, 8))
