"""What was measured on a GPU is kept in the user's cache, and goes before what is shipped."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from policyquant.kernels import tuning
from policyquant.kernels.tuning import configuration, measured, shipped
from policyquant.kernels.tuning.measured import VARIABLE, Gpu
from tests.kernels.tuned import HERE, own_cache, without_gpu

__all__ = ["own_cache"]

HOPPER = (9, 0)
SHIPPED = shipped("kv_cache", HOPPER, "few tokens")
FASTER = {"ELEMENTS": 2048, "num_warps": 4}

pytestmark = [without_gpu, pytest.mark.usefixtures("own_cache")]


def entry(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"configuration": dict(chosen), "seconds": 1e-5, "before": 2e-5}


def few_tokens() -> Mapping[str, Any]:
    return read_anew(("kv_cache", "few tokens"))[0]


def read_anew(*asked: tuple[str, str]) -> list[Mapping[str, Any]]:
    """The configurations for families and classes of shapes, after the file is read again."""
    tuning.forget()
    return [configuration(family, HOPPER, shape_class) for family, shape_class in asked]


def test_what_was_measured_goes_before_what_is_shipped() -> None:
    assert few_tokens() == SHIPPED
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    assert few_tokens() == FASTER
    assert configuration("kv_cache", HOPPER, "many tokens") == shipped("kv_cache", HOPPER, "many tokens")
    assert configuration("quantize", HOPPER, "tile") == shipped("quantize", HOPPER, "tile")


def test_gpus_of_another_compute_capability_keep_their_own() -> None:
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    tuning.forget()
    assert configuration("kv_cache", (10, 0), "few tokens") == SHIPPED


def test_the_file_is_read_once(own_cache: Path) -> None:
    assert few_tokens() == SHIPPED
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    assert configuration("kv_cache", HOPPER, "few tokens") == SHIPPED


def test_the_environment_leaves_it_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    monkeypatch.setenv(VARIABLE, "0")
    assert few_tokens() == SHIPPED
    assert measured.tiles_in_use(HOPPER) == "shipped, as POLICYQUANT_TUNING=0 asks for"


def test_families_and_classes_are_added_to_what_is_there() -> None:
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    measured.add(HERE, "norm", {"row 128": entry({"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 8})})
    measured.add(HERE, "kv_cache", {"many tokens": entry({"ELEMENTS": 8192, "num_warps": 8})})
    found = measured.read(HERE)
    assert {family: list(classes) for family, classes in found.items()} == {
        "kv_cache": ["few tokens", "many tokens"],
        "norm": ["row 128"],
    }
    tuning.forget()
    assert measured.tiles_in_use(HOPPER) == f"3 measured here, the others shipped ({HERE.path})"


def test_a_file_is_for_one_kind_of_gpu_and_one_version_of_triton(own_cache: Path) -> None:
    gpu = Gpu("NVIDIA H200 / 141 GB", HOPPER, "3.6.0")
    assert gpu.path == own_cache / "policyquant/tuning/NVIDIA_H200_141_GB-sm_90-triton-3.6.0.json"
    measured.add(gpu, "kv_cache", {"few tokens": entry(FASTER)})
    assert few_tokens() == SHIPPED


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is not used: Expecting value"),
        (b"{", "it is not used: Expecting property name"),
        (b"\xff\xfe\x00", "it is not used: "),
        (b"[" * 100_000, "it is not used: "),
        (b"[]", "it holds no table"),
        (b'"x"', "it holds no table"),
        ({"format": 2}, "format is 2, here it is 1"),
        ({"GPU": "NVIDIA H100"}, "GPU is 'NVIDIA H100', here it is \"Triton's interpreter\""),
        ({"compute capability": "8.9"}, "compute capability is '8.9', here it is '9.0'"),
        ({"triton": "1.0"}, "triton is '1.0'"),
        ({"families": []}, "its families are no tables"),
        ({"families": {"kv_cache": 3}}, "its families are no tables"),
        ({"families": {"kv_cache": {"few tokens": FASTER}}}, "an entry has no configuration"),
    ],
)
def test_a_file_that_is_broken_or_foreign_is_left_unread_with_one_warning(content: Any, said: str) -> None:
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    if isinstance(content, dict):
        content = json.dumps({**json.loads(HERE.path.read_bytes()), **content}).encode()
    HERE.path.write_bytes(content)
    with pytest.warns(RuntimeWarning) as warned:
        found = read_anew(("kv_cache", "few tokens"), ("kv_cache", "many tokens"))
    assert found == [SHIPPED, shipped("kv_cache", HOPPER, "many tokens")]
    assert len(warned) == 1
    assert str(warned[0].message).startswith(f"{HERE.path}: ")
    assert said in str(warned[0].message)


def test_a_folder_in_its_place_is_left_alone_with_a_warning() -> None:
    HERE.path.mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="it is not used: .*directory"):
        assert few_tokens() == SHIPPED
    with pytest.raises(OSError, match="directory"):
        measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    assert list(HERE.path.parent.iterdir()) == [HERE.path]


@pytest.mark.parametrize(
    ("family", "shape_class", "chosen", "said"),
    [
        ("kv_cache", "few tokens", {"ELEMENTS": 3000, "num_warps": 4}, "ELEMENTS is 3000"),
        ("kv_cache", "few tokens", {"ELEMENTS": 2048}, "it has ELEMENTS; expected ELEMENTS, num_warps"),
        ("kv_cache", "few tokens", {"ELEMENTS": "2048", "num_warps": 4}, "ELEMENTS is '2048'"),
        ("kv_cache", "few tokens", {"ELEMENTS": 8192, "num_warps": 1}, "256 elements a thread"),
        ("kv_cache", "three tokens", FASTER, "there is no such class of shapes"),
        ("../kv_cache", "few tokens", FASTER, "there is no such class of shapes"),
    ],
)
def test_a_configuration_that_would_not_be_tried_is_not_used_and_the_others_are(
    family: str, shape_class: str, chosen: dict[str, Any], said: str
) -> None:
    measured.add(HERE, "norm", {"row 128": entry({"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 8})})
    measured.add(HERE, family, {shape_class: entry(chosen)})
    with pytest.warns(RuntimeWarning, match="not all of it is used: ") as warned:
        found = read_anew(("kv_cache", "few tokens"), ("norm", "row 128"))
    assert found == [SHIPPED, {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 8}]
    assert len(warned) == 1
    assert said in str(warned[0].message)


def test_what_cannot_be_read_is_replaced() -> None:
    HERE.path.parent.mkdir(parents=True)
    HERE.path.write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    assert few_tokens() == FASTER


def test_an_answer_goes_before_all_tables() -> None:
    measured.add(HERE, "kv_cache", {"few tokens": entry(FASTER)})
    tried = {"ELEMENTS": 4096, "num_warps": 8}
    with tuning.answering(lambda *asked: tried if asked == ("kv_cache", "few tokens") else None):
        assert few_tokens() == tried
        assert configuration("kv_cache", HOPPER, "many tokens") == shipped("kv_cache", HOPPER, "many tokens")
    assert few_tokens() == FASTER
