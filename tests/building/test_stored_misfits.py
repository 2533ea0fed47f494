"""What is missing, too much, or of the wrong shape or type, in every stored form: one error, before a byte is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import Inventory, build
from policyquant.checkpoint.file_tensor import OpenFile
from policyquant.errors import BuildError, SourceError
from policyquant.models.families import model_factory
from tests.building.stored_forms import (
    LLAMA,
    MIXTRAL,
    QWEN3_MOE,
    State,
    experts_as_3d,
    fuse,
    one_by_one,
    same_state,
    save,
)

QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
PARTS = ("w1", "w3", "w2")
ATTENTION = "model.layers.1.self_attn"
EXPERTS = "model.layers.1.block_sparse_moe.experts"


@pytest.fixture
def places_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Start and length of all that is read of files, in whichever way."""
    places: list[tuple[int, int]] = []
    read, read_into = OpenFile.read, OpenFile.read_into

    def mapped(self: OpenFile, start: int, length: int) -> torch.Tensor:
        places.append((start, length))
        return read(self, start, length)

    def copied(self: OpenFile, target: torch.Tensor, start: int) -> None:
        places.append((start, target.nbytes))
        read_into(self, target, start)

    monkeypatch.setattr(OpenFile, "read", mapped)
    monkeypatch.setattr(OpenFile, "read_into", copied)
    return places


def fused(state: State) -> State:
    return fuse(fuse(state, QKV, "qkv_proj"), GATE_UP, "gate_up_proj")


def as_3d(state: State) -> State:
    return experts_as_3d(state, PARTS)


def same(state: State) -> State:
    return state


def grow(name: str, dimension: int = 0, by: int = 1) -> Callable[[State], None]:
    def change(state: State) -> None:
        more = state[name].narrow(dimension, 0, 1).repeat_interleave(by, dimension)
        state[name] = torch.cat([state[name], more], dimension)

    return change


def remove(name: str) -> Callable[[State], None]:
    return lambda state: state.update() if state.pop(name) is None else None


def add(name: str, like: str) -> Callable[[State], None]:
    return lambda state: state.update({name: state[like].clone()})


def convert(name: str, dtype: torch.dtype) -> Callable[[State], None]:
    return lambda state: state.update({name: state[name].to(dtype)})


CASES: Mapping[str, tuple[Mapping[str, Any], Callable[[State], State], Callable[[State], None], str]] = {
    "a fused q/k/v with a row too many": (
        LLAMA,
        fused,
        grow(f"{ATTENTION}.qkv_proj.weight"),
        r"qkv_proj\.weight' in .*safetensors has shape \[65, 32\], which holds no q_proj, k_proj and v_proj with 32",
    ),
    "a fused gate/up with an odd number of rows": (
        LLAMA,
        fused,
        grow("model.layers.0.mlp.gate_up_proj.weight"),
        r"gate_up_proj\.weight' in .* has shape \[97, 32\], which holds no gate_proj and up_proj with 48 \+ 48 rows",
    ),
    "a fused weight with a column too many": (
        LLAMA,
        fused,
        grow(f"{ATTENTION}.qkv_proj.weight", 1),
        r"self_attn\.qkv_proj, q_proj: .* has shape \[32, 33\]; expected \[32, 32\]",
    ),
    "a fused layer that is missing": (
        LLAMA,
        fused,
        remove(f"{ATTENTION}.qkv_proj.weight"),
        r"'model\.layers\.1\.self_attn\.q_proj\.weight' is in the model, but the source has no such tensor; did you",
    ),
    "a part that is missing": (
        LLAMA,
        same,
        remove(f"{ATTENTION}.k_proj.weight"),
        r"'model\.layers\.1\.self_attn\.k_proj\.weight' is in the model, but the source has no such tensor; did you",
    ),
    "a bias that the model does not have": (
        LLAMA,
        fused,
        add(f"{ATTENTION}.qkv_proj.bias", "model.norm.weight"),
        r"qkv_proj\.bias' in .* has shape \[32\], which holds no q_proj, k_proj and v_proj with 32 \+ 16 \+ 16 rows",
    ),
    "a bias of a layer without one": (
        LLAMA,
        same,
        add(f"{ATTENTION}.o_proj.bias", "model.norm.weight"),
        r"self_attn\.o_proj: '.*o_proj\.bias' in .* has no place in this layer",
    ),
    "an expert that is missing": (
        MIXTRAL,
        same,
        remove(f"{EXPERTS}.2.w3.weight"),
        r"'model\.layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight' is in the model, but the source has no such",
    ),
    "an expert too many": (
        MIXTRAL,
        same,
        add(f"{EXPERTS}.4.w2.weight", f"{EXPERTS}.3.w2.weight"),
        r"experts\.4\.w2\.weight' in .*model\.safetensors is in the source, but nothing in the model takes it",
    ),
    "an expert too many in one tensor": (
        MIXTRAL,
        as_3d,
        grow(f"{EXPERTS}.gate_up_proj"),
        r"experts\.gate_up_proj' in .* has shape \[5, 96, 32\]; the model has 4 experts, expected 4 in the first",
    ),
    "a row too many in one tensor": (
        MIXTRAL,
        as_3d,
        grow(f"{EXPERTS}.gate_up_proj", 1),
        r"experts\.gate_up_proj' in .* has shape \[4, 97, 32\], which holds no gate_proj and up_proj with 48 \+ 48",
    ),
    "a projection of all experts that is missing": (
        MIXTRAL,
        as_3d,
        remove(f"{EXPERTS}.down_proj"),
        r"experts\.{0\.\.3}\.w2\.weight' is in the model, but the source has no such tensor",
    ),
    "a tensor of nobody": (
        MIXTRAL,
        as_3d,
        add("model.layers.1.block_sparse_moe.gates.weight", "model.norm.weight"),
        r"moe\.gates\.weight' in .* but nothing in the model takes it; did you mean 'model\.layers\.1\..*gate'",
    ),
    "a weight of integers": (
        LLAMA,
        same,
        convert("model.layers.0.mlp.down_proj.weight", torch.int64),
        r"mlp\.down_proj: '.*down_proj\.weight' in .* is stored as torch\.int64; expected float32, float16 or bfloat16",
    ),
    "codes without a scale": (
        LLAMA,
        fused,
        convert(f"{ATTENTION}.qkv_proj.weight", torch.int8),
        r"PQ407: I8 tensor without scale: model\.layers\.1\.self_attn\.qkv_proj\.weight",
    ),
    "a fused weight in float64": (
        LLAMA,
        fused,
        convert(f"{ATTENTION}.qkv_proj.weight", torch.float64),
        r"qkv_proj, q_proj, k_proj, v_proj: '.*qkv_proj\.weight' in .* is stored as torch\.float64; expected float32",
    ),
    "experts in float64": (
        MIXTRAL,
        as_3d,
        convert(f"{EXPERTS}.down_proj", torch.float64),
        r"experts\.down_proj, expert {0\.\.3}, w2: '.*down_proj' in .* is stored as torch\.float64; expected float32",
    ),
    "a norm of integers": (
        LLAMA,
        same,
        convert("model.norm.weight", torch.int64),
        r"'model\.norm\.weight' in .* is stored as torch\.int64; expected a floating-point dtype",
    ),
}


@pytest.mark.parametrize("policy", ["none", "fp8-dynamic", "int8-weight-only"])
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_told_by_name_and_file(
    tmp_path: Path, places_read: list[tuple[int, int]], case: str, policy: str
) -> None:
    config, form, spoil, message = CASES[case]
    state = form(one_by_one(config))
    spoil(state)
    with pytest.raises(BuildError, match=message if policy == "none" else "does not fit"):
        build(model_factory(config), policy=None if policy == "none" else policy, source=save(tmp_path, state, config))
    assert not places_read


def test_all_of_it_is_one_error(tmp_path: Path) -> None:
    state = fused(one_by_one(LLAMA))
    remove("model.norm.weight")(state)
    grow(f"{ATTENTION}.qkv_proj.weight")(state)
    add("model.layers.7.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight")(state)
    convert("lm_head.weight", torch.float64)(state)
    with pytest.raises(BuildError) as raised:
        build(model_factory(LLAMA), policy=None, source=save(tmp_path, state, LLAMA))
    lines = str(raised.value).splitlines()
    assert len(lines) == 5, lines
    for name in ("model.norm.weight", "qkv_proj.weight", "model.layers.7.mlp.down_proj.weight", "lm_head"):
        assert any(name in line for line in lines), name


def test_rows_that_the_model_does_not_have_are_told(tmp_path: Path) -> None:
    """A model without `up_proj`, from a checkpoint that stores it under `gate_proj`."""

    def factory() -> nn.Module:
        mlp = nn.ModuleDict({"gate_proj": nn.Linear(32, 48, bias=False), "down_proj": nn.Linear(48, 32, bias=False)})
        return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": mlp})])})

    state = {
        "layers.0.mlp.gate_up_proj.weight": torch.randn(96, 32),
        "layers.0.mlp.down_proj.weight": torch.randn(32, 48),
    }
    with pytest.raises(
        BuildError, match=r"'layers\.0\.mlp\.gate_up_proj' holds up_proj, but nothing in the model takes"
    ):
        build(factory, policy=None, source=save(tmp_path, state, None))


def test_experts_that_the_model_does_not_have_are_told(tmp_path: Path) -> None:
    """Each expert a module of its own, one fewer than are stored in one tensor."""

    def factory() -> nn.Module:
        def expert() -> nn.Module:
            return nn.ModuleDict(
                {"w1": nn.Linear(32, 48, False), "w3": nn.Linear(32, 48, False), "w2": nn.Linear(48, 32, False)}
            )

        moe = nn.ModuleDict(
            {"gate": nn.Linear(32, 4, bias=False), "experts": nn.ModuleList([expert() for _ in range(3)])}
        )
        layers = nn.ModuleList([nn.ModuleDict({"block_sparse_moe": moe})])
        return nn.ModuleDict({"model": nn.ModuleDict({"layers": layers})})

    state = {n: t for n, t in as_3d(one_by_one(MIXTRAL)).items() if n.startswith("model.layers.0.block_sparse_moe")}
    message = r"experts' holds down_proj of expert 3 and 2 more parts, but nothing in the model takes it"
    with pytest.raises(BuildError, match=message):
        build(factory, policy=None, source=save(tmp_path, state, MIXTRAL))


@pytest.mark.parametrize("policy", ["none", "fp8-dynamic"])
def test_only_the_rows_that_are_needed_are_read(
    tmp_path: Path, places_read: list[tuple[int, int]], policy: str
) -> None:
    """All bytes of a checkpoint with fused layers and 3-D experts are read once."""
    state = as_3d(fuse(one_by_one(MIXTRAL), QKV, "qkv_proj"))
    source = save(tmp_path, state, MIXTRAL)
    build(model_factory(MIXTRAL), policy=None if policy == "none" else policy, source=source)
    assert sum(length for _, length in places_read) == sum(tensor.nbytes for tensor in state.values())
    assert len(set(places_read)) == len(places_read)
    assert sum(tensor.nbytes for tensor in state.values()) < (source / "model.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "source"), [("Qwen3-30B-A3B", "Mixtral-8x7B-v0.1"), ("Mixtral-8x7B-v0.1", "Qwen3-30B-A3B")]
)
def test_a_checkpoint_of_another_model_is_told_within_seconds(model: str, source: str) -> None:
    """18,000 layers that are not there; looking for the nearest name of each would take an hour. They are few lines."""
    models = Path(__file__).parents[1] / "data" / "models"
    inventories = [Inventory.open(models / f"{name}.json.gz") for name in (model, source)]
    start = time.perf_counter()
    with pytest.raises(BuildError, match=r"[0-9]{2} problems\n.*\.{0\.\..*did you mean [^\n]*{0\.\."):
        build(model_factory(inventories[0].config), policy=None, source=inventories[1], device="meta")
    assert time.perf_counter() - start < 30


ODD_SHAPES: Mapping[str, tuple[Mapping[str, Any], Callable[[State], State], str, tuple[int, ...]]] = {
    "a fused scalar": (LLAMA, fused, f"{ATTENTION}.qkv_proj.weight", ()),
    "a fused vector": (LLAMA, fused, f"{ATTENTION}.qkv_proj.weight", (64,)),
    "a fused tensor of three dimensions": (LLAMA, fused, f"{ATTENTION}.qkv_proj.weight", (64, 32, 1)),
    "no rows at all": (LLAMA, fused, f"{ATTENTION}.qkv_proj.weight", (0, 32)),
    "experts in a scalar": (MIXTRAL, as_3d, f"{EXPERTS}.down_proj", ()),
    "experts in a vector": (MIXTRAL, as_3d, f"{EXPERTS}.down_proj", (4,)),
    "experts in a matrix": (MIXTRAL, as_3d, f"{EXPERTS}.down_proj", (4, 32)),
    "experts in four dimensions": (MIXTRAL, as_3d, f"{EXPERTS}.gate_up_proj", (4, 96, 32, 2)),
    "no experts at all": (MIXTRAL, as_3d, f"{EXPERTS}.gate_up_proj", (0, 96, 32)),
}


@pytest.mark.parametrize("policy", [None, "fp8-dynamic", "int8-weight-only"])
@pytest.mark.parametrize("case", ODD_SHAPES)
def test_no_shape_is_too_odd_to_be_told(tmp_path: Path, case: str, policy: Any) -> None:
    config, form, name, shape = ODD_SHAPES[case]
    state = form(one_by_one(config))
    state[name] = torch.ones(shape, dtype=torch.bfloat16)
    with pytest.raises(BuildError, match="does not fit"):
        build(model_factory(config), policy=policy, source=save(tmp_path, state, config))


@pytest.mark.parametrize("form", [fused, as_3d])
def test_two_forms_of_one_layer_are_one_too_many(tmp_path: Path, form: Callable[[State], State]) -> None:
    config = LLAMA if form is fused else MIXTRAL
    state = one_by_one(config)
    with pytest.raises(BuildError, match="is in the source, but nothing in the model takes it"):
        build(model_factory(config), policy=None, source=save(tmp_path, {**state, **form(state)}, config))


def test_layers_may_differ_in_their_form(tmp_path: Path) -> None:
    state = one_by_one(LLAMA)
    other = {name: each for name, each in state.items() if ".layers.0." not in name}
    other |= {name: each for name, each in fused(state).items() if ".layers.0." in name}
    models = [
        build(model_factory(LLAMA), policy="fp8-dynamic", source=save(tmp_path / name, each, LLAMA))
        for name, each in (("apart", state), ("both", other))
    ]
    same_state(*models)


def test_a_header_that_claims_a_billion_experts_is_refused_at_once(tmp_path: Path) -> None:
    empty = {"gate_up_proj": (10**9, 0, 32), "down_proj": (10**9, 32, 0)}
    state = {f"{EXPERTS.replace('block_sparse_moe', 'mlp')}.{key}": torch.empty(shape) for key, shape in empty.items()}
    began = time.monotonic()
    with pytest.raises(SourceError, match="3,000,000,001 parts of layers; expected at most 1,000,000"):
        build(nn.Identity, policy=None, source=save(tmp_path, state, QWEN3_MOE))
    assert time.monotonic() - began < 5
