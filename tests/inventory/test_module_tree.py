"""Module trees of the real torch as a source."""

from __future__ import annotations

from typing import Any

import pytest

from policyquant.inventory.sources import open_source

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")


def tiny(**more: Any) -> Any:
    nn = torch.nn

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = nn.Linear(8, 16, bias=True, dtype=torch.bfloat16)
            self.sinks = nn.Parameter(torch.zeros(4))
            self.register_buffer("mask", torch.zeros(2, 2))
            self.register_buffer("inv_freq", torch.zeros(4), persistent=False)

    class Tiny(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(32, 8)
            self.layers = nn.ModuleList([Attention(), Attention()])
            self.act_fn = nn.SiLU()
            self.lm_head = nn.Linear(8, 32, bias=False)
            self.lm_head.weight = self.embed_tokens.weight

    model = Tiny()
    for name, value in more.items():
        setattr(model, name, value)
    return model


def test_parameters_and_persistent_buffers_are_stored() -> None:
    model = open_source(tiny())
    assert model.naming == "module"
    assert {stored.template: stored.tensors for stored in model.sets} == {
        "embed_tokens": (("weight", "F32", (32, 8)),),
        "layers.#": (("mask", "F32", (2, 2)), ("sinks", "F32", (4,))),
        "layers.#.q_proj": (("bias", "BF16", (16,)), ("weight", "BF16", (16, 8))),
        "lm_head": (("weight", "F32", (32, 8)),),
    }


def test_every_module_has_its_class() -> None:
    types = open_source(tiny()).module_types
    assert types["act_fn"] == "SiLU"
    assert types["layers.1.q_proj"] == "Linear"
    assert "" not in types


def test_a_shared_parameter_is_listed_under_each_name_and_the_first_is_told() -> None:
    assert open_source(tiny()).shared == {"lm_head.weight": "embed_tokens.weight"}


def test_a_tree_on_the_meta_device_reads_the_same() -> None:
    with torch.device("meta"):
        on_meta = tiny()
    assert open_source(on_meta).sets == open_source(tiny()).sets


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports warn.
def test_a_compiled_tree_has_the_names_of_the_tree() -> None:
    assert open_source(torch.compile(tiny())).sets == open_source(tiny()).sets


def test_the_config_is_that_of_the_module() -> None:
    class Config:
        def to_dict(self) -> dict[str, object]:
            return {"model_type": "llama", "dtype": torch.bfloat16, "sizes": (1, 2)}

    assert open_source(tiny(config=Config())).config == {
        "model_type": "llama",
        "dtype": "torch.bfloat16",
        "sizes": [1, 2],
    }


@pytest.mark.parametrize(
    ("dtype", "spelled"),
    [
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
        ("float8_e8m0fnu", "F8_E8M0"),
        ("float16", "F16"),
        ("int8", "I8"),
        ("uint8", "U8"),
        ("int64", "I64"),
        ("uint16", "U16"),
        ("bool", "BOOL"),
        ("complex64", "C64"),
    ],
)
def test_a_dtype_has_the_spelling_of_safetensors(dtype: str, spelled: str) -> None:
    module = torch.nn.Module()
    module.register_buffer("a", torch.empty(2, dtype=getattr(torch, dtype)))
    ((_, _, tensors),) = open_source(module).sets
    assert tensors == (("a", spelled, (2,)),)


def test_a_dtype_that_safetensors_lacks_is_noted() -> None:
    module = torch.nn.Module()
    module.register_buffer("a", torch.empty(2, dtype=torch.complex128))
    model = open_source(module)
    assert [finding.code for finding in model.findings] == ["PQ438"]
    assert model.sets[0].tensors == (("a", None, (2,)),)


def test_a_module_without_shapes_yet_is_refused() -> None:
    from policyquant.errors import SourceError

    with pytest.raises(SourceError, match="'weight' has no shape yet"):
        open_source(torch.nn.LazyLinear(4))
