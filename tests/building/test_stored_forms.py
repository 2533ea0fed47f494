"""Whatever form a checkpoint has, the model built from it is the one built from layers stored one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import Inventory, build, load_policy, resolve
from policyquant.errors import BuildError
from policyquant.layers.linear import Linear, MergedColumnParallelLinear, QKVParallelLinear
from policyquant.layers.moe import ExpertsLinear
from policyquant.models.families import model_factory
from tests.building.stored_forms import (
    LLAMA,
    MIXTRAL,
    QWEN3_MOE,
    State,
    experts_as_3d,
    fuse,
    one_by_one,
    renamed,
    same_state,
    save,
)

POLICIES = {
    "none": None,
    "fp8": {"layers": {"*": "fp8"}},
    "fp8 per tensor": {"layers": {"*": {"method": "fp8", "weight": {"granularity": "tensor"}}}},
    "int8_weight_only": {"layers": {"*": "int8_weight_only"}},
}
MIXTRAL_PARTS = ("w1", "w3", "w2")
QWEN_PARTS = ("gate_proj", "up_proj", "down_proj")
QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")

FORMS: Mapping[str, tuple[Mapping[str, Any], Callable[[State], State]]] = {
    "Mixtral, 3-D experts": (MIXTRAL, lambda state: experts_as_3d(state, MIXTRAL_PARTS)),
    "Mixtral, transformers v5's tree": (
        MIXTRAL,
        lambda state: renamed(experts_as_3d(state, MIXTRAL_PARTS), ("block_sparse_moe", "mlp")),
    ),
    "Mixtral, 3-D experts [E, in, out]": (MIXTRAL, lambda state: experts_as_3d(state, MIXTRAL_PARTS, transposed=True)),
    "Mixtral, q/k/v fused": (MIXTRAL, lambda state: fuse(state, QKV, "qkv_proj")),
    "Qwen3-MoE, 3-D experts": (QWEN3_MOE, lambda state: experts_as_3d(state, QWEN_PARTS)),
    "Qwen3-MoE, 3-D experts [E, in, out]": (
        QWEN3_MOE,
        lambda state: experts_as_3d(state, QWEN_PARTS, transposed=True),
    ),
    "Llama, q/k/v and gate/up fused": (
        LLAMA,
        lambda state: fuse(fuse(state, QKV, "qkv_proj"), GATE_UP, "gate_up_proj"),
    ),
    "Llama with biases, q/k/v and gate/up fused": (
        {**LLAMA, "attention_bias": True, "mlp_bias": True},
        lambda state: fuse(fuse(state, QKV, "qkv_proj"), GATE_UP, "gate_up_proj"),
    ),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_builds_what_layers_one_by_one_build(tmp_path: Path, form: str, policy: str) -> None:
    config, change = FORMS[form]
    state = one_by_one(config)
    assert change(state).keys() != state.keys()
    truth = build(model_factory(config), policy=POLICIES[policy], source=save(tmp_path / "one by one", state, config))
    model = build(
        model_factory(config), policy=POLICIES[policy], source=save(tmp_path / "other", change(state), config)
    )
    same_state(truth, model)


def test_the_way_round_of_square_experts_is_told_by_their_fellows(tmp_path: Path) -> None:
    """With 2 · intermediate = hidden, gate_up [E, 2I, H] and [E, H, 2I] look alike; down does not."""
    config = {**MIXTRAL, "intermediate_size": 16}
    state = one_by_one(config)
    truth = build(model_factory(config), policy=None, source=save(tmp_path / "one by one", state, config))
    for transposed in (False, True):
        other = experts_as_3d(state, MIXTRAL_PARTS, transposed=transposed)
        source = save(tmp_path / f"transposed {transposed}", other, config)
        same_state(truth, build(model_factory(config), policy=None, source=source))


class Attention(nn.Module):
    """Three projections under the names that most checkpoints have, each a plain `nn.Linear`."""

    def __init__(self, *, fused: bool, bias: bool) -> None:
        super().__init__()
        if fused:
            self.qkv_proj = nn.Linear(32, 64, bias=bias)
        else:
            self.q_proj = nn.Linear(32, 32, bias=bias)
            self.k_proj = nn.Linear(32, 16, bias=bias)
            self.v_proj = nn.Linear(32, 16, bias=bias)
        self.o_proj = nn.Linear(32, 32, bias=bias)


class MLP(nn.Module):
    """Gate, up and down, each a plain `nn.Linear`."""

    def __init__(self, *, fused: bool, bias: bool) -> None:
        super().__init__()
        if fused:
            self.gate_up_proj = nn.Linear(32, 96, bias=bias)
        else:
            self.gate_proj = nn.Linear(32, 48, bias=bias)
            self.up_proj = nn.Linear(32, 48, bias=bias)
        self.down_proj = nn.Linear(48, 32, bias=bias)


class Block(nn.Module):
    """As somebody writes it who never heard of policies."""

    def __init__(self, *, fused: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(fused=fused, bias=bias)
        self.mlp = MLP(fused=fused, bias=bias)


class Plain(nn.Module):
    """Two blocks."""

    def __init__(self, **forms: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(**forms) for _ in range(2)])


def plain_state(*, bias: bool) -> State:
    torch.manual_seed(1)
    return {name: tensor.to(torch.bfloat16) for name, tensor in Plain(bias=bias).state_dict().items()}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("policy", POLICIES)
def test_plain_linears_are_loaded_from_fused_layers(tmp_path: Path, policy: str, bias: bool) -> None:
    """Without a configuration: what the model's own modules have says where each part's rows are."""
    state = plain_state(bias=bias)
    fused = fuse(fuse(state, QKV, "qkv_proj"), GATE_UP, "gate_up_proj")
    models = [
        build(lambda: Plain(bias=bias), policy=POLICIES[policy], source=save(tmp_path / name, each, None))
        for name, each in (("apart", state), ("fused", fused))
    ]
    same_state(*models)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_fused_plain_linear_is_loaded_from_its_parts(tmp_path: Path, policy: str, bias: bool) -> None:
    """And has a scale for each part where one scale covers a whole part, since the plan decides about the parts."""
    state = plain_state(bias=bias)
    apart = build(lambda: Plain(bias=bias), policy=POLICIES[policy], source=save(tmp_path / "apart", state, None))
    one = build(
        lambda: Plain(fused=True, bias=bias), policy=POLICIES[policy], source=save(tmp_path / "again", state, None)
    )
    expected = apart.state_dict()
    for name, tensor in one.state_dict().items():
        parts = QKV if ".qkv_proj." in name else GATE_UP if ".gate_up_proj." in name else ("",)
        fused = name.split(".")[-2]
        pieces = [expected[name.replace(fused, part or fused)] for part in parts]
        assert torch.equal(tensor.view(torch.uint8), torch.cat(pieces).view(torch.uint8)), name


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fused_plain_linear_has_the_bytes_of_its_plan(tmp_path: Path, policy: str) -> None:
    """A scale for each of its parts, which is what the plan decides about, in whatever form they are stored."""
    state = plain_state(bias=True)
    fused = fuse(fuse(state, QKV, "qkv_proj"), GATE_UP, "gate_up_proj")
    config = {**LLAMA, "model_type": "phi3"}
    models = []
    for name, each in (("apart", state), ("fused", fused)):
        source = save(tmp_path / name, renamed(each, ("layers.", "model.layers.")), config)
        model = build(
            lambda: Plain(fused=True, bias=True),
            policy=POLICIES[policy],
            source=source,
            rename={r"^model\.layers\.": "layers."},
        )
        plan = resolve(load_policy(POLICIES[policy] or {"version": 1}), Inventory.open(source))
        assert sum(tensor.nbytes for tensor in model.state_dict().values()) == plan.total.bytes_after
        models.append(model)
    same_state(*models)


def test_a_fused_plain_linear_is_loaded_from_a_fused_layer(tmp_path: Path) -> None:
    fused = fuse(fuse(plain_state(bias=True), QKV, "qkv_proj"), GATE_UP, "gate_up_proj")
    model = build(lambda: Plain(fused=True, bias=True), policy=None, source=save(tmp_path, fused, None))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fused[name]), name


class GPT2Attention(nn.Module):
    """GPT-2's attention, whose checkpoints store weights [in, out]."""

    def __init__(self, form: str) -> None:
        super().__init__()
        if form == "ours":
            self.qkv_proj = QKVParallelLinear(32, 8, 4, 4)
        elif form == "apart":
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, 32) for _ in range(3))
        elif form == "linear":
            self.c_attn = nn.Linear(32, 96)
        else:
            self.c_attn = Conv1D(96, 32)
        self.c_proj = Conv1D(32, 32) if form == "as stored" else nn.Linear(32, 32)


class Conv1D(nn.Module):
    """A linear with its weight [in, out], as transformers has it."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns, rows))
        self.bias = nn.Parameter(torch.zeros(rows))


class GPT2(nn.Module):
    """Two attentions."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.h = nn.ModuleList([nn.ModuleDict({"attn": GPT2Attention(form)}) for _ in range(2)])


@pytest.fixture(scope="module")
def gpt2() -> State:
    torch.manual_seed(2)
    shapes = {"c_attn.weight": (32, 96), "c_attn.bias": (96,), "c_proj.weight": (32, 32), "c_proj.bias": (32,)}
    return {f"h.{i}.attn.{name}": torch.randn(shape) for i in range(2) for name, shape in shapes.items()}


GPT2_CONFIG = {"model_type": "gpt2", "n_embd": 32, "n_head": 4}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["ours", "apart", "linear"])
def test_weights_stored_in_out_become_linears(tmp_path: Path, gpt2: State, form: str, policy: str) -> None:
    state = {name: tensor.T.contiguous() if tensor.dim() == 2 else tensor for name, tensor in gpt2.items()}
    apart = {}
    for name, tensor in state.items():
        for part, rows in zip(QKV, tensor.chunk(3), strict=True) if "c_attn" in name else (("c_proj", tensor),):
            apart[name.replace("c_attn", part)] = rows
    policies = POLICIES[policy]
    truth = build(
        lambda: GPT2("apart"),
        policy=policies,
        source=save(tmp_path / "truth", renamed(apart, ("c_proj", "o")), None),
        rename={r"attn\.o\.": "attn.c_proj."},
    ).state_dict()
    model = build(lambda: GPT2(form), policy=policies, source=save(tmp_path / "gpt2", gpt2, GPT2_CONFIG)).state_dict()
    for name, tensor in model.items():
        layer = name.split(".")[-2]
        parts = QKV if layer in ("qkv_proj", "c_attn") else (layer,)
        pieces = [truth[name.replace(layer, part)] for part in parts]
        assert torch.equal(tensor.view(torch.uint8), torch.cat(pieces).view(torch.uint8)), name


def test_a_layer_that_is_stored_in_out_on_both_sides_is_taken_as_it_is(tmp_path: Path, gpt2: State) -> None:
    model = build(lambda: GPT2("as stored"), policy=None, source=save(tmp_path, gpt2, GPT2_CONFIG))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, gpt2[name]), name


def test_gpt2_names_on_plain_linears_mean_out_in(tmp_path: Path) -> None:
    """Some write GPT-2 with `nn.Linear`; their own checkpoints then hold [out, in], the square ones too."""
    torch.manual_seed(3)
    trained = GPT2("linear").state_dict()
    model = build(lambda: GPT2("linear"), policy=None, source=save(tmp_path, dict(trained), None))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


class BiasedExperts(nn.Module):
    """Experts of our layers with biases, without a router."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Module()
        self.experts.gate_up_proj = ExpertsLinear(4, 32, {"gate_proj": 24, "up_proj": 24}, bias=True)
        self.experts.down_proj = ExpertsLinear(4, 24, {"down_proj": 32}, bias=True)


class BiasedBlock(nn.Module):
    """One block, named as Qwen3-MoE names it."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.ModuleDict({"mlp": BiasedExperts()})
        self.model = nn.ModuleDict({"layers": nn.ModuleList([block])})


@pytest.mark.parametrize("spelling", ["gate_up_proj", "w13"])
@pytest.mark.parametrize("policy", POLICIES)
def test_biases_of_experts_in_one_tensor(tmp_path: Path, policy: str, spelling: str) -> None:
    torch.manual_seed(5)
    start = "model.layers.0.mlp.experts"
    rows = {"gate_proj": (24, 32), "up_proj": (24, 32), "down_proj": (32, 24)}
    apart = {
        f"{start}.{e}.{part}.{suffix}": torch.randn(shape if suffix == "weight" else shape[:1])
        for e in range(4)
        for part, shape in rows.items()
        for suffix in ("weight", "bias")
    }
    fused = {}
    for suffix in ("weight", "bias"):
        of = {part: [apart[f"{start}.{e}.{part}.{suffix}"] for e in range(4)] for part in rows}
        pairs = zip(of["gate_proj"], of["up_proj"], strict=True)
        ending = f"_{suffix}" if spelling == "w13" or suffix == "bias" else ""
        down = "w2" if spelling == "w13" else "down_proj"
        fused[f"{start}.{spelling}{ending}"] = torch.stack([torch.cat(pair) for pair in pairs])
        fused[f"{start}.{down}{ending}"] = torch.stack(of["down_proj"])
    truth, model = (
        build(BiasedBlock, policy=POLICIES[policy], source=save(tmp_path / name, state, None))
        for name, state in (("apart", apart), ("fused", fused))
    )
    same_state(truth, model)


class Merged(nn.Module):
    """Our layers under names of the author's own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = MergedColumnParallelLinear(16, {"first": 24, "second": 8})
        self.out = Linear(32, 16)


def test_a_merged_layer_is_loaded_from_a_tensor_under_its_own_name() -> None:
    torch.manual_seed(4)
    trained = Merged().state_dict()
    model = build(Merged, policy=None, source=trained)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


INTERLEAVED = {
    "gpt_neox": ("attention.query_key_value", "it holds q, k and v of one head after another"),
    "falcon": ("self_attention.query_key_value", "it holds the queries of one group after another"),
    "internlm2": ("attention.wqkv", "it holds the queries of one group after another"),
    "codegen": ("attn.qkv_proj", "it is divided into four shares first"),
    "somebody's own": ("attn.query_key_value", "most models that call it so interleave the heads"),
}


@pytest.mark.parametrize("model_type", INTERLEAVED)
def test_what_is_stored_head_by_head_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    layer, reason = INTERLEAVED[model_type]
    module, _, _ = layer.partition(".")

    def factory() -> nn.Module:
        inner = nn.ModuleDict({"q_proj": nn.Linear(32, 32), "k_proj": nn.Linear(32, 32), "v_proj": nn.Linear(32, 32)})
        return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({module: inner})])})

    state = {f"layers.0.{layer}.weight": torch.randn(96, 32), f"layers.0.{layer}.bias": torch.randn(96)}
    config = {"model_type": model_type, "hidden_size": 32, "num_attention_heads": 4}
    with pytest.raises(BuildError, match=rf"'layers\.0\.{layer}' cannot be taken apart: {reason}"):
        build(factory, policy=None, source=save(tmp_path, state, config))


def test_alternate_rows_of_gate_and_up_are_refused_by_name(tmp_path: Path) -> None:
    config = {**QWEN3_MOE, "model_type": "gpt_oss", "num_local_experts": 4}
    state = renamed(experts_as_3d(one_by_one(QWEN3_MOE), QWEN_PARTS, transposed=True), (".mlp.gate.", ".mlp.router."))
    source = save(tmp_path, state, config)
    with pytest.raises(BuildError, match=r"experts\.gate_up_proj' cannot be taken apart: its rows are gate's and up's"):
        build(model_factory(QWEN3_MOE), policy=None, source=source, rename={r"mlp\.router\.": "mlp.gate."})
