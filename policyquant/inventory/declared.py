"""What a config declares about the whole model's quantization, as far as tensors leave it open.

This is no reader of any format's rules: which layers a config means is never asked here, since the tensors tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policyquant.inventory.layers import StoredScheme

_FORMATS: Final[Mapping[str, StoredScheme]] = {
    "float-quantized": StoredScheme("fp8", "FP8, as declared", 8),
    "naive-quantized": StoredScheme("unknown", "quantized, as declared", 0),
    "int-quantized": StoredScheme("int8", "INT8, as declared", 8),
    "nvfp4-pack-quantized": StoredScheme("nvfp4", "NVFP4, as declared", 4),
    "mxfp4-pack-quantized": StoredScheme("mxfp4", "MXFP4, as declared", 4),
    "mxfp8-quantized": StoredScheme("mxfp8", "MXFP8, as declared", 8),
    "FP8": StoredScheme("fp8", "FP8, as declared", 8),
    "NVFP4": StoredScheme("nvfp4", "NVFP4, as declared", 4),
    "MXFP8": StoredScheme("mxfp8", "MXFP8, as declared", 8),
    "fp8": StoredScheme("fp8", "FP8, as declared", 8),
    "fbgemm_fp8": StoredScheme("fp8", "FP8, as declared", 8),
    "mxfp4": StoredScheme("mxfp4", "MXFP4, as declared", 4),
}
"""compressed-tensors' `format`, ModelOpt's `quant_algo`, and others' `quant_method`."""


class Declared:
    """A view of `quantization_config`, of whatever dialect. What is malformed counts as not said."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config

    @property
    def method(self) -> str:
        """`quant_method`, in lower case."""
        return str(self._config.get("quant_method", "")).lower()

    @property
    def says_quantized(self) -> bool:
        """Whether it names a method, bits or an algorithm at all."""
        return any(self._config.get(key) for key in ("quant_method", "quant_algo", "bits", "config_groups", "format"))

    @property
    def block(self) -> tuple[int, int] | None:
        """Size of a weight block [out, in]."""
        sizes: object = self._config.get("weight_block_size")
        if sizes is None:
            sizes = next((group["block_structure"] for group in self._weights() if group.get("block_structure")), None)
        if isinstance(sizes, str):
            sizes = sizes.split("x")
        if isinstance(sizes, list) and len(sizes) == 2:
            height, width = map(_integer, sizes)
            if height and width and height > 0 and width > 0:
                return height, width
        return None

    @property
    def weight_only(self) -> bool:
        """Whether it says that inputs are not quantized."""
        groups = list(self._groups())
        return bool(groups) and all(group.get("input_activations") is None for group in groups)

    @property
    def static_inputs(self) -> bool:
        """Whether it says that inputs have scales in the checkpoint."""
        if self._config.get("activation_scheme") == "static":
            return True
        if str(self._config.get("quant_algo", "")).upper() in ("FP8", "NVFP4", "MIXED_PRECISION"):
            return True
        inputs = [group.get("input_activations") for group in self._groups()]
        return any(isinstance(each, Mapping) and not each.get("dynamic", False) for each in inputs)

    def bits_and_groups(self) -> list[tuple[int, int | None]]:
        """Each pair of bits and group size that integer weights may have, without repetition; group None: a whole
        row."""
        found: dict[tuple[int, int | None], None] = {}
        for each in (self._config, *self._weights(), *self._overrides()):
            bits = _integer(each.get("num_bits", each.get("bits", self._config.get("bits"))))
            group = _integer(each.get("group_size", self._config.get("group_size")))
            if bits is not None:
                found[bits, group if group and group > 0 else None] = None
        return list(found)

    def scheme(self) -> StoredScheme | None:
        """What it says that quantized weights are."""
        for key in ("format", "quant_algo", "quant_method"):
            word = self._config.get(key)
            scheme = _FORMATS.get(word) if isinstance(word, str) else None
            if scheme is not None:
                if scheme.method == "fp8" and self.block is not None:
                    return StoredScheme("fp8_block", "FP8, block, as declared", 8)
                return scheme
        return None

    def _groups(self) -> Iterator[Mapping[str, object]]:
        groups = self._config.get("config_groups")
        if isinstance(groups, Mapping):
            yield from (group for group in groups.values() if isinstance(group, Mapping))

    def _weights(self) -> Iterator[Mapping[str, object]]:
        for group in self._groups():
            weights = group.get("weights")
            if isinstance(weights, Mapping):
                yield weights

    def _overrides(self) -> Iterator[Mapping[str, object]]:
        """MLX writes a layer's own numbers under the layer's name."""
        yield from (value for value in self._config.values() if isinstance(value, Mapping) and "bits" in value)


def _integer(value: object) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 9:
        return int(value)
    return None
