"""Embeddings and heads without a plan are torch's; a tied head shares the embedding's Parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.errors import PolicyQuantError
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.methods.registry import method_for
from policyquant.models.families import model_factory
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


@pytest.mark.parametrize("method", ["none", "int8_weight_only"])
def test_a_tied_head_hands_on_its_own_output_dtype_and_the_embedding_its_own(method: str) -> None:
    config = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    factory = model_factory({"model_type": "llama", "num_attention_heads": 2, "tie_word_embeddings": True, **config})
    layers = {"*.embed_tokens": {"method": method, "output": "float16"}, "lm_head": {"output": "float32"}}
    model = build(factory, policy={"layers": layers}, dtype=torch.bfloat16)
    head, embedding = model.get_submodule("lm_head"), model.get_submodule("model.embed_tokens")
    assert isinstance(head, ParallelLMHead)
    assert isinstance(embedding, VocabParallelEmbedding)
    assert head.tied_to is embedding
    assert head(torch.randn(3, 16, dtype=torch.bfloat16)).dtype == torch.float32
    assert embedding(torch.tensor([1, 2])).dtype == torch.float16
    assert (str(head.scheme.output), str(embedding.scheme.output)) == ("float32", "float16")
