"""Meta's original Llama checkpoints, whose names nobody else uses, into models that people wrote themselves.

What this is about is names alone. Rotary embedding is another matter: Meta's files have the rows of `wq` and `wk` so
that the two members of a rotated pair lie side by side, and transformers' conversion permutes them so that a pair lies
half a head apart. A model whose modules carry transformers' names and are loaded from Meta's files has Meta's order of
rows, and must rotate neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from tests.building.stored_forms import State, save

HIDDEN, INNER, VOCABULARY, BLOCKS = 32, 48, 64, 2
SHAPES = {
    "attention.wq": (HIDDEN, HIDDEN),
    "attention.wk": (16, HIDDEN),
    "attention.wv": (16, HIDDEN),
    "attention.wo": (HIDDEN, HIDDEN),
    "feed_forward.w1": (INNER, HIDDEN),
    "feed_forward.w2": (HIDDEN, INNER),
    "feed_forward.w3": (INNER, HIDDEN),
    "attention_norm": (HIDDEN,),
    "ffn_norm": (HIDDEN,),
}

TO_TRANSFORMERS = {
    r"^layers\.(\d+)\.attention\.w([qkvo])\.": r"model.layers.\1.self_attn.\2_proj.",
    r"^layers\.(\d+)\.feed_forward\.w1\.": r"model.layers.\1.mlp.gate_proj.",
    r"^layers\.(\d+)\.feed_forward\.w2\.": r"model.layers.\1.mlp.down_proj.",
    r"^layers\.(\d+)\.feed_forward\.w3\.": r"model.layers.\1.mlp.up_proj.",
    r"^layers\.(\d+)\.attention_norm\.": r"model.layers.\1.input_layernorm.",
    r"^layers\.(\d+)\.ffn_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"^tok_embeddings\.": "model.embed_tokens.",
    r"^norm\.": "model.norm.",
    r"^output\.": "lm_head.",
}


@pytest.fixture
def meta() -> State:
    torch.manual_seed(0)
    state = {f"layers.{i}.{name}.weight": torch.randn(shape) for i in range(BLOCKS) for name, shape in SHAPES.items()}
    state["tok_embeddings.weight"] = torch.randn(VOCABULARY, HIDDEN)
    state["norm.weight"] = torch.randn(HIDDEN)
    state["output.weight"] = torch.randn(VOCABULARY, HIDDEN)
    return {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}


@pytest.fixture
def source(tmp_path: Path, meta: State) -> Path:
    return save(tmp_path, meta, None)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


def inside(name: str) -> nn.Module:
    """The layers of one part of a block, as Meta names them."""
    return nn.ModuleDict(
        {
            layer.rpartition(".")[2]: linear(*shape)
            for layer, shape in SHAPES.items()
            if layer.startswith(f"{name}.") and len(shape) == 2
        }
    )


class AsMeta(nn.Module):
    """Named as the checkpoint is."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": inside("attention"),
                    "feed_forward": inside("feed_forward"),
                    "attention_norm": Norm(),
                    "ffn_norm": Norm(),
                }
            )
            for _ in range(BLOCKS)
        )
        self.norm = Norm()
        self.output = linear(VOCABULARY, HIDDEN)


class AsTransformers(nn.Module):
    """Named as transformers does it, with q/k/v and gate/up apart or in one layer of ours."""

    def __init__(self, *, merged: bool = False) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.model.layers = nn.ModuleList(self._block(merged) for _ in range(BLOCKS))
        self.model.norm = Norm()
        self.lm_head = linear(VOCABULARY, HIDDEN)

    @staticmethod
    def _block(merged: bool) -> nn.Module:
        attention: dict[str, nn.Module] = {"o_proj": linear(HIDDEN, HIDDEN)}
        mlp: dict[str, nn.Module] = {"down_proj": linear(HIDDEN, INNER)}
        if merged:
            attention["qkv_proj"] = QKVParallelLinear(HIDDEN, 8, 4, 2, bias=False)
            mlp["gate_up_proj"] = MergedColumnParallelLinear(HIDDEN, {"gate_proj": INNER, "up_proj": INNER}, bias=False)
        else:
            attention |= {
                part: linear(rows, HIDDEN)
                for part, rows in zip(("q_proj", "k_proj", "v_proj"), (32, 16, 16), strict=True)
            }
            mlp |= {part: linear(INNER, HIDDEN) for part in ("gate_proj", "up_proj")}
        return nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict(attention),
                "mlp": nn.ModuleDict(mlp),
                "input_layernorm": Norm(),
                "post_attention_layernorm": Norm(),
            }
        )


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """Stored dtype of each weight, by name."""
    return {name.removesuffix(".weight"): t.dtype for name, t in model.state_dict().items() if name.endswith(".weight")}


def test_a_model_with_the_checkpoints_own_names(source: Path, meta: State) -> None:
    model = build(AsMeta, policy=None, source=source)
    state = model.state_dict()
    assert state.keys() == meta.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, meta[name]), name


def test_a_model_with_transformers_names(source: Path, meta: State) -> None:
    state = build(AsTransformers, policy=None, source=source, rename=TO_TRANSFORMERS).state_dict()
    assert torch.equal(state["model.layers.1.self_attn.k_proj.weight"], meta["layers.1.attention.wk.weight"])
    assert torch.equal(state["model.layers.0.mlp.gate_proj.weight"], meta["layers.0.feed_forward.w1.weight"])
    assert torch.equal(state["model.layers.0.mlp.up_proj.weight"], meta["layers.0.feed_forward.w3.weight"])
    assert torch.equal(state["lm_head.weight"], meta["output.weight"])
    assert len(state) == len(meta)


def test_merged_layers_with_transformers_names(source: Path, meta: State) -> None:
    model = build(lambda: AsTransformers(merged=True), policy=None, source=source, rename=TO_TRANSFORMERS)
    state = model.state_dict()
    qkv = torch.cat([meta[f"layers.1.attention.w{part}.weight"] for part in "qkv"])
    assert torch.equal(state["model.layers.1.self_attn.qkv_proj.weight"], qkv)
    gate_up = torch.cat([meta[f"layers.0.feed_forward.{part}.weight"] for part in ("w1", "w3")])
    assert torch.equal(state["model.layers.0.mlp.gate_up_proj.weight"], gate_up)


@pytest.mark.parametrize(
    ("factory", "rename", "mlp"),
    [
        (AsMeta, None, "layers.{}.feed_forward"),
        (AsTransformers, TO_TRANSFORMERS, "model.layers.{}.mlp"),
        (lambda: AsTransformers(merged=True), TO_TRANSFORMERS, "model.layers.{}.mlp"),
    ],
    ids=["Meta's names", "transformers' names", "merged"],
)
def test_portable_names_reach_the_same_layers(source: Path, factory: Any, rename: Any, mlp: str) -> None:
    found = dtypes(build(factory, policy={"layers": {"decoder.*.mlp": "fp8"}}, source=source, rename=rename))
    inside = tuple(f"{mlp.format(i)}." for i in range(BLOCKS))
    assert any(name.startswith(inside) for name in found)
    for name, dtype in found.items():
        assert dtype == (torch.float8_e4m3fn if name.startswith(inside) else torch.bfloat16), name


@pytest.mark.parametrize("pattern", ["layers.*.feed_forward.w2", "*.feed_forward.w2", "decoder.*.mlp.down_proj"])
def test_a_policy_speaks_of_the_checkpoints_names_or_of_portable_ones(source: Path, pattern: str) -> None:
    policy = {"layers": [{"match": pattern, "method": "int8_weight_only"}]}
    found = dtypes(build(AsTransformers, policy=policy, source=source, rename=TO_TRANSFORMERS))
    assert [name for name, dtype in found.items() if dtype == torch.int8] == [
        f"model.layers.{i}.mlp.down_proj" for i in range(BLOCKS)
    ]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("layers.*.feed_forward.w4", r"layers\.0\.feed_forward\.w"),
        ("decoder.*.mlp.gate", r"decoder\.\*\.mlp\.gate_proj"),
        ("*.attention.wqq", r"attention\.wq"),
    ],
)
def test_a_pattern_that_reaches_nothing_is_told_with_the_nearest(source: Path, pattern: str, near: str) -> None:
    with pytest.raises(BuildError, match=rf"PQ101: .*{near}"):
        build(AsMeta, policy={"layers": {pattern: "fp8"}}, source=source)


def test_a_name_that_rename_forgot_is_told_with_the_nearest_on_both_sides(source: Path) -> None:
    rename = {pattern: text for pattern, text in TO_TRANSFORMERS.items() if "w2" not in pattern}
    with pytest.raises(BuildError, match="2 problems") as raised:
        build(AsTransformers, policy=None, source=source, rename=rename)
    message = str(raised.value)
    assert "'model.layers.{0..1}.mlp.down_proj.weight' is in the model, but the source has no such tensor" in message
    assert "'layers.{0..1}.feed_forward.w2.weight'" in message
    assert "is in the source, but nothing in the model takes it" in message


def test_two_layers_that_rename_makes_one_are_refused(source: Path) -> None:
    rename = {**TO_TRANSFORMERS, r"^layers\.(\d+)\.feed_forward\.w3\.": r"model.layers.\1.mlp.gate_proj."}
    message = (
        r"rename makes 'model\.layers\.{0\.\.1}\.mlp\.gate_proj' of both 'layers\.{0\.\.1}\.feed_forward\.w1' and"
        r" 'layers\.{0\.\.1}\.feed_forward\.w3'"
    )
    with pytest.raises(BuildError, match=message):
        build(AsTransformers, policy=None, source=source, rename=rename)


@pytest.mark.parametrize(
    ("rename", "problem"),
    [({"(": "x"}, "'\\(' is no regular expression"), ({r"^output\.": r"\2"}, "does not fit")],
)
def test_a_rename_that_is_no_regular_expression_is_told(source: Path, rename: dict[str, str], problem: str) -> None:
    with pytest.raises(PolicyQuantError, match=f"rename: .*{problem}"):
        build(AsTransformers, policy=None, source=source, rename=rename)
