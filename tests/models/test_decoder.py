"""Models of the package's layers: names, ties and dtypes, and codes that travel from layer to layer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor, Slot  # noqa: E402
from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.layers.activation import SiluAndMul  # noqa: E402
from policyquant.layers.attention import Attention  # noqa: E402
from policyquant.layers.base import PolicyLayer, WeightLayer  # noqa: E402
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding  # noqa: E402
from policyquant.layers.norm import RMSNorm  # noqa: E402
from policyquant.methods.base import QuantMethod  # noqa: E402
from policyquant.methods.registry import method_for  # noqa: E402
from policyquant.models.decoder import DecoderForCausalLM  # noqa: E402
from policyquant.models.families import FAMILIES, model_factory  # noqa: E402
from policyquant.policy.methods import METHODS  # noqa: E402
from policyquant.policy.scheme import NONE, Quantization, Scheme  # noqa: E402
from policyquant.quantized_tensor import QuantizedTensor  # noqa: E402
from tests.models.tiny_models import CONFIGS, tiny_model  # noqa: E402

IDS = torch.tensor([[3, 14, 15, 92, 6], [5, 35, 8, 97, 9]])
FP8 = Scheme("fp8", *METHODS["fp8"].refine(METHODS["fp8"].weight, METHODS["fp8"].input, None, None))
CODES = Scheme("none", output=Quantization("float8_e4m3fn", "token", scheme="dynamic"))


class Fp8Config:
    """Linears in FP8, embedding and head as they are; if asked for, what feeds the linears emits codes."""

    def __init__(self, emitting: bool) -> None:
        self.emitting = emitting

    def scheme_for(self, layer: nn.Module, name: str) -> Scheme:
        if isinstance(layer, WeightLayer):
            return NONE if isinstance(layer, (VocabParallelEmbedding, ParallelLMHead)) else FP8
        feeds_linears = name.endswith("layernorm") or isinstance(layer, (SiluAndMul, Attention))
        return CODES if self.emitting and feeds_linears else NONE

    def get_quant_method(self, layer: nn.Module, name: str) -> QuantMethod | None:
        return method_for(self.scheme_for(layer, name)) if isinstance(layer, WeightLayer) else None


def slots(layer: WeightLayer) -> dict[Slot, LazyTensor]:
    """The weights of a plain layer, as a checkpoint would store them: each part, of each expert, by itself."""
    result: dict[Slot, LazyTensor] = {}
    for suffix, tensor in layer._parameters.items():
        if tensor is not None:
            for expert, stacked in [(None, tensor)] if layer.num_experts is None else enumerate(tensor):
                for part, rows in zip(layer.parts, stacked.detach().split(list(layer.parts.values())), strict=True):
                    result[Slot(suffix, part, expert)] = MemoryTensor(part, rows)
    return result


def quantized(name: str, emitting: bool) -> DecoderForCausalLM:
    """The tiny model, constructed in FP8 and loaded with the weights of the plain one."""
    plain = tiny_model(name)
    model = FAMILIES[CONFIGS[name]["model_type"]](CONFIGS[name], quant_config=Fp8Config(emitting))
    others = dict(plain.named_modules())
    for path, module in model.named_modules():
        if isinstance(module, WeightLayer):
            module.quant_method.load(module, slots(others[path]))
            module.quant_method.process_weights_after_loading(module)
        elif isinstance(module, RMSNorm):
            module.load_state_dict(others[path].state_dict())
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_that_are_given_a_plan_know_their_names_in_the_tree(name: str) -> None:
    family = FAMILIES[CONFIGS[name]["model_type"]]
    planned = family(CONFIGS[name], quant_config=Fp8Config(emitting=False))
    nested = nn.ModuleDict({"text": family(CONFIGS[name], prefix="text")})
    for tree in (planned, nested):
        layers = {path: module for path, module in tree.named_modules() if isinstance(module, PolicyLayer)}
        assert layers
        assert {path: module.layer_name for path, module in layers.items()} == {path: path for path in layers}


def test_without_a_plan_and_a_prefix_layers_have_no_name_yet() -> None:
    model = tiny_model("mixtral")
    assert {module.layer_name for module in model.modules() if isinstance(module, PolicyLayer)} == {""}


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"])
def test_an_fp8_model_holds_codes_and_stays_near_the_plain_one(name: str) -> None:
    model = quantized(name, emitting=False)
    assert model.model.layers[0].self_attn.qkv_proj._buffers["weight"].dtype == torch.float8_e4m3fn
    with torch.inference_mode():
        expected, found = tiny_model(name)(IDS), model(IDS)
    # By the median, for in a model this small a router chooses another expert here and there.
    assert 0 < (found - expected).abs().median() < 0.1 * expected.std()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe, a dense layer"])
def test_codes_handed_from_layer_to_layer_give_what_quantizing_in_each_linear_gives(name: str) -> None:
    inside, handed_on = quantized(name, emitting=False), quantized(name, emitting=True)
    with torch.inference_mode():
        emitted = handed_on.model.layers[0].input_layernorm(torch.randn(1, 2, 32))
        assert isinstance(emitted, QuantizedTensor)
        assert torch.equal(handed_on(IDS), inside(IDS))
        caches = handed_on.new_caches(2, IDS.shape[1])
        steps = torch.cat([handed_on(part, caches) for part in IDS.split([3, 1, 1], dim=1)], dim=1)
    torch.testing.assert_close(steps, inside(IDS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama, tied", "qwen3"])
def test_a_tied_head_has_the_embeddings_weight(name: str) -> None:
    model = tiny_model(name)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_the_last_position_alone_has_the_logits_that_it_has_among_all() -> None:
    model = tiny_model("llama")
    with torch.inference_mode():
        torch.testing.assert_close(model(IDS, last_only=True), model(IDS)[:, -1:], atol=1e-6, rtol=1e-5)


def test_caches_have_the_dtype_of_the_model_and_the_dtype_of_the_plan() -> None:
    model = tiny_model("mistral").bfloat16()
    model.model.layers[1].self_attn.attn.take_scheme(
        Scheme("none", kv_cache=Quantization("float8_e4m3fn", "tensor", scheme="static"))
    )
    caches = model.new_caches(2, 5)
    assert [cache.k.dtype for cache in caches] == [torch.bfloat16, torch.float8_e4m3fn, torch.bfloat16]
    with torch.inference_mode():
        assert model(IDS, caches).dtype == torch.bfloat16
    assert [cache.length for cache in caches] == [5, 5, 5]


def test_a_conversion_leaves_rotary_frequencies_exact_and_out_of_the_state_dict() -> None:
    model = tiny_model("llama")
    before = model.model.rotary_emb.inv_freq.clone()
    model.bfloat16().float()
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    assert not [key for key in model.state_dict() if "rotary" in key]


def test_gradients_reach_every_parameter_of_a_plain_model() -> None:
    model = tiny_model("qwen3_moe, a dense layer")
    ids = torch.arange(99)[None]
    model(ids).square().mean().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_ids_without_a_batch_and_caches_of_another_model_are_refused() -> None:
    model = model_factory(CONFIGS["llama"])()
    with pytest.raises(PolicyQuantError, match=r"input_ids must be \[batch, positions\], found shape \[3\]"):
        model(torch.tensor([1, 2, 3]))
    with pytest.raises(PolicyQuantError, match="expected 3 KV caches, one for each layer; found 2"):
        model(IDS, model.new_caches(2, 5)[:2])
