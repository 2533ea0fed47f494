"""A `config.json` gives the model that it describes, or an error that says what is not understood."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.models.config import read_config  # noqa: E402
from policyquant.models.families import FAMILIES, model_factory  # noqa: E402
from policyquant.models.llama import GatedMLP, LlamaForCausalLM  # noqa: E402
from policyquant.models.mixtral import MixtralForCausalLM, Qwen3MoeForCausalLM, SparseMLP  # noqa: E402
from tests.models.tiny_models import CONFIGS  # noqa: E402

LLAMA = CONFIGS["llama"]
MISTRAL = CONFIGS["mistral"]
QWEN3 = {**CONFIGS["qwen3"], "use_sliding_window": True, "layer_types": None}


def test_every_family_has_a_tiny_config_here() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("mistral", LlamaForCausalLM),
        ("qwen2", LlamaForCausalLM),
        ("qwen3", LlamaForCausalLM),
        ("mixtral", MixtralForCausalLM),
        ("qwen3_moe", Qwen3MoeForCausalLM),
    ],
)
def test_the_model_type_chooses_the_model_which_keeps_its_config(name: str, model: type) -> None:
    made = model_factory(CONFIGS[name])()
    assert type(made) is model
    assert made.config == CONFIGS[name]


def test_a_factory_makes_a_new_model_each_time_of_the_config_as_it_was() -> None:
    config: dict[str, Any] = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    factory = model_factory(config)
    config["rope_scaling"]["factor"] = 0.0
    config["vocab_size"] = 1
    first, second = factory(), factory()
    assert first.lm_head.weight is not second.lm_head.weight
    assert first.config == {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "lama"},
            r"no model for model_type 'lama'; expected one of llama, .*qwen3_moe; did you mean 'lla",
        ),
        ({"model_type": None}, "model_type is missing; expected one of llama, mistral"),
        ({"model_type": 3}, "model_type is 3; expected one of llama"),
        ({"hidden_size": None}, "hidden_size is to be a positive whole number; it is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is to be a positive whole number; found 0"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers is to be a positive whole number; found 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is to be at most 10,000; found 1000000000"),
        ({**CONFIGS["mixtral"], "num_local_experts": 10**9}, "found 3 layers of 1,000,000,000 experts; expected"),
        ({"head_dim": 5}, "heads are to have an even number of elements; found 5"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings is to be a positive whole number; found 'x'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is to be a positive number; found nan"),
        ({"rope_scaling": [2.0]}, r"rope_scaling is to be an object; found \[2.0\]"),
        ({"rope_parameters": "yarn"}, "rope_parameters is to be an object; found 'yarn'"),
        ({**MISTRAL, "sliding_window": -1}, "sliding_window is to be a positive whole number; found -1"),
        ({**QWEN3, "layer_types": 3}, "layer_types is to be full_attention or sliding_attention for each of"),
        ({**QWEN3, "max_window_layers": None}, "max_window_layers is to be a whole number; it is missing"),
        ({**CONFIGS["qwen3_moe"], "mlp_only_layers": 3}, "mlp_only_layers is to be a list of layers; found 3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; expected 'silu'"),
        ({"dtype": "float23"}, "dtype 'float23' is not one of float32"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
    ],
)
def test_what_is_not_understood_is_refused_before_a_model_is_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyQuantError, match=message):
        model_factory({**LLAMA, **change})


@pytest.mark.parametrize("given", ["build/smollm2", None, [LLAMA]])
def test_a_path_in_place_of_a_configuration_is_told_what_to_give(given: Any) -> None:
    with pytest.raises(PolicyQuantError, match=rf"takes the parsed config\.json, found {type(given).__name__}; json"):
        model_factory(given)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "yarm", "factor": 2.0}, "rope type 'yarm' is not implemented; .*did you mean 'yarn'"),
        ({"rope_type": "llama3", "factor": 2.0}, "rope type 'llama3' needs the parameter 'low_freq_factor'"),
        ({"rope_type": "linear", "factor": "2"}, "factor is to be a positive number; found '2'"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta is to be a positive number; found 0"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, "rope type 'yarn' needs a rope_theta above 1; found 1"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": -1}, "mscale is to be a positive number; found -1"),
    ],
)
def test_a_rope_that_is_not_understood_is_refused_when_the_model_is_made(rope: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyQuantError, match=message):
        model_factory({**LLAMA, "rope_scaling": rope})()


@pytest.mark.parametrize("name", [name for name in CONFIGS if "rope" in name] + ["llama"])
def test_rotary_frequencies_have_values_where_weights_have_none(name: str) -> None:
    factory = model_factory(CONFIGS[name])
    with torch.device("meta"):
        model = factory()
    assert model.lm_head.weight.is_meta
    assert torch.equal(model.model.rotary_emb.inv_freq, factory().model.rotary_emb.inv_freq)


def test_the_dtype_of_the_config_is_that_of_the_model() -> None:
    for key in ("dtype", "torch_dtype"):
        model = model_factory({**LLAMA, key: "bfloat16"})()
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_key_value_heads_that_are_left_out_are_the_familys_default_and_null_means_as_many_as_heads() -> None:
    sizes = {**CONFIGS["mistral"], "num_attention_heads": 16}
    without = {key: value for key, value in sizes.items() if key != "num_key_value_heads"}
    assert read_config(without).num_key_value_heads == 8
    assert read_config({**sizes, "num_key_value_heads": None}).num_key_value_heads == 16


def test_the_layers_of_qwen3_moe_without_experts_are_dense() -> None:
    config = {**CONFIGS["qwen3_moe"], "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    kinds = [type(layer.mlp) for layer in model_factory(config)().model.layers]
    assert kinds == [GatedMLP, SparseMLP, GatedMLP, GatedMLP, GatedMLP]
