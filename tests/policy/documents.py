"""Policies as Python data: good ones, and bad ones with what must be said about them.

Two tests read these tables: the checker's and the schema's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

GOOD: list[dict[str, Any]] = [
    {},
    {"version": 1},
    {"version": 1.0},
    {"$schema": "policy.schema.json", "description": "for the small model"},
    {"default": "none"},
    {"default": {"method": "int4_weight_only", "weight": {"group": 64}}},
    {"default": {"kv_cache": "fp8"}},
    {"protect": []},
    {"protect": ["head", "embedding", "router", "norm"]},
    {"extends": "fp8-dynamic"},
    {"extends": ["fp8-dynamic", "fp8-kv"]},
    {"extends": []},
    {"layers": {}},
    {"layers": []},
    {"layers": {"*": "fp8", "lm_head": "none"}},
    {"layers": {"*.mlp": {"method": "fp8", "output": "bf16", "kv_cache": "none"}}},
    {"layers": {"*.mlp": {"method": "none", "kv_cache": "fp8"}}},
    {"layers": {"*.mlp": {"weight": {"group": 128.0}}}},
    {"layers": {"*.mlp": {"input": {"scheme": "static", "scale": 0.5}}}},
    {"layers": {"*.mlp": {"input": {"scale": 1}}}},
    {"layers": {"*.mlp": {"input": {"scale_ub": 1200.0}}}},
    {"layers": {"*.mlp": {"method": "fp8_block", "weight": {"scale_dtype": "float8_e8m0fnu"}}}},
    {"layers": {"*.mlp": {"method": "nvfp4", "weight": {"global_scale_dtype": "float32"}}}},
    {"layers": {"*.act": {"output": {"dtype": "fp8", "granularity": "token", "scheme": "dynamic"}}}},
    {"layers": {"*.act": {"output": {"dtype": "fp8", "group": 128}}}},
    {"layers": {"*.act": {"output": {"dtype": "fp8", "scheme": "static", "scale": 0.1}}}},
    {"layers": {"*.act": {"output": {"dtype": "bf16"}}}},
    {"layers": {"*.attn": {"kv_cache": {"dtype": "fp8", "granularity": "head"}}}},
    {"layers": {"*.attn": {"kv_cache": {"dtype": "fp8_e5m2", "scale": 2}}}},
    {"layers": [{"match": "*.mlp", "method": "fp8"}]},
    {"layers": [{"match": ["*.mlp", "re:.*\\.attn"], "kind": "linear", "optional": True, "method": "fp8"}]},
    {"layers": [{"kind": ["linear", "moe"], "weight": {"granularity": "tensor"}}]},
    {"groups": [["*.to_q", "*.to_k", "*.to_v"], ["*.{w1,w3}"]]},
    {"untie": True},
    {"expect": {}},
    {"expect": {"layers": {"head": "none", "*.router": {"method": "none", "optional": True}}}},
    {"expect": {"layers": {"*.mlp": {"weight": {"dtype": "fp8"}}}}},
    {"expect": {"bits_per_weight": "<= 11.5"}},
    {"expect": {"bits_per_weight": [">= 4", "<5", "== 4.25"]}},
]


class Bad(NamedTuple):
    """A policy that is refused."""

    policy: Any
    path: str
    """Where the problem is, after `<dict>`."""
    says: str
    """Part of the message."""
    schema: bool = True
    """Whether the schema can see it too."""


def _layers(scheme: Any) -> dict[str, Any]:
    return {"layers": {"*.mlp": scheme}}


_MLP = ".layers['*.mlp']"

BAD: list[Bad] = [
    # The document.
    Bad({"layer": {}}, ".layer", "unknown key of a policy 'layer'; did you mean 'layers'?"),
    Bad({"layer": {}}, ".layer", "known: version, $schema, description, extends, default, protect, layers, groups"),
    Bad({"version": 2}, ".version", "reads version 1, found the number 2"),
    Bad({"version": "1"}, ".version", "expected the number 1, found the text '1'"),
    Bad({"version": True}, ".version", "expected the number 1, found true"),
    Bad({"version": float("nan")}, ".version", "reads version 1, found the number nan"),
    Bad({"version": None}, ".version", "expected the number 1, found null"),
    Bad({"description": 3}, ".description", "expected text, found the number 3"),
    Bad({"$schema": []}, "['$schema']", "expected text, found an empty list"),
    Bad({"extends": 3}, ".extends", "a preset's name, a path, or a list of them"),
    Bad({"extends": ["fp8-dynamic", ""]}, ".extends[1]", "found empty text"),
    Bad({"default": "int9"}, ".default", "unknown method 'int9'; did you mean 'int8'?"),
    Bad({"default": None}, ".default", "write `none`"),
    Bad({"default": {}}, ".default", "no scheme here"),
    Bad({"default": {"weight": {"group": 64}}}, ".default", "`weight` needs a `method`"),
    Bad({"default": {"input": {"group": 64}}}, ".default", "`input` needs a `method`"),
    Bad({"default": {"method": "fp8", "optional": True}}, ".default.optional", "does not stand here"),
    Bad({"protect": "head"}, ".protect", "a list of kinds such as [head, embedding, router], or [] for none"),
    Bad({"protect": ["heads"]}, ".protect[0]", "unknown word 'heads'; did you mean 'head'?"),
    Bad({"protect": [3]}, ".protect[0]", "found the number 3"),
    Bad({"untie": "yes"}, ".untie", "expected true or false, found the text 'yes'"),
    Bad({"groups": ["*.q"]}, ".groups[0]", "expected a list of patterns, found the text '*.q'"),
    Bad({"groups": [[]]}, ".groups[0]", "found an empty list"),
    Bad({"groups": {"a": ["b"]}}, ".groups", "a list of lists of patterns"),
    Bad({"groups": [["a", 3]]}, ".groups[0][1]", "expected a pattern, found the number 3"),
    # Rules.
    Bad({"layers": "fp8"}, ".layers", "a mapping of patterns to schemes, or a list of rules"),
    Bad({"layers": {"": "fp8"}}, ".layers['']", "an empty pattern reaches nothing"),
    Bad({"layers": {"a.[b": "fp8"}}, ".layers['a.[b']", "bracket is not closed", schema=False),
    Bad({"layers": {"a.{3..1}": "fp8"}}, ".layers['a.{3..1}']", "range 3..1 is empty", schema=False),
    Bad({"layers": {"re:(?!x)": "fp8"}}, ".layers['re:(?!x)']", "later rule", schema=False),
    Bad({"layers": ["*.mlp"]}, ".layers[0]", "a rule such as {match: pattern, method: fp8}"),
    Bad({"layers": [{}]}, ".layers[0]", "needs `match` or `kind`"),
    Bad({"layers": [{"method": "fp8"}]}, ".layers[0]", "needs `match` or `kind`"),
    Bad({"layers": [{"match": "*.mlp"}]}, ".layers[0]", "no scheme here; expected a method's name or one of: method"),
    Bad({"layers": [{"kind": "norm", "optional": True}]}, ".layers[0]", "no scheme here"),
    Bad({"layers": [{"match": [], "method": "fp8"}]}, ".layers[0].match", "found an empty list"),
    Bad({"layers": [{"match": {"a": 1}, "method": "fp8"}]}, ".layers[0].match", "found a mapping"),
    Bad({"layers": [{"match": 0, "method": "fp8"}]}, ".layers[0].match", "expected a pattern, found the number 0"),
    Bad({"layers": [{"kind": [], "method": "fp8"}]}, ".layers[0].kind", "found an empty list"),
    Bad({"layers": [{"kind": "lin", "method": "fp8"}]}, ".layers[0].kind", "did you mean 'linear'?"),
    Bad({"layers": [{"kind": "moe", "methd": "fp8"}]}, ".layers[0].methd", "did you mean 'method'?"),
    Bad({"layers": [{"kind": "moe", "method": "fp8", "optional": "no"}]}, ".layers[0].optional", "true or false"),
    Bad({"layers": {"a": {"kind": "moe", "method": "fp8"}}}, ".layers.a.kind", "only a rule of a list has it"),
    Bad({"layers": {"a": {"match": "b", "method": "fp8"}}}, ".layers.a.match", "only a rule of a list has it"),
    # Methods.
    Bad(_layers(None), _MLP, "`*.mlp`: expected a method's name or a mapping, found null (`None`); write `none`"),
    Bad(_layers(False), _MLP, "write `none`"),
    Bad(_layers(8), _MLP, "found the number 8"),
    Bad(_layers(["fp8"]), _MLP, "found a list"),
    Bad(_layers(""), _MLP, "found empty text"),
    Bad(_layers("FP8"), _MLP, "unknown method 'FP8'"),
    Bad(_layers("fp8-dynamic"), _MLP, "a preset's name stands in `extends`"),
    Bad(_layers({}), _MLP, "no scheme here"),
    Bad(_layers({"method": None}), f"{_MLP}.method", "write `none`"),
    Bad(_layers({"method": ["fp8"]}), f"{_MLP}.method", "expected a method's name, found a list"),
    Bad(_layers({"method": "none", "weight": {"dtype": "fp8"}}), f"{_MLP}.weight", "it takes no `weight`"),
    Bad(_layers({"method": "none", "input": {"dtype": "fp8"}}), f"{_MLP}.input", "it takes no `input`"),
    Bad(
        _layers({"method": "dequantize", "weight": {"group": 32}}), f"{_MLP}.weight", "does not quantize", schema=False
    ),
    Bad(_layers({"method": "fp8_weight_only", "input": {"dtype": "fp8"}}), f"{_MLP}.input", "input", schema=False),
    # Weight and input.
    Bad(_layers({"weights": {"group": 64}}), f"{_MLP}.weights", "did you mean 'weight'?"),
    Bad(_layers({"activations": {"group": 64}}), f"{_MLP}.activations", "did you mean 'input'?"),
    Bad(_layers({"weight": {"group_size": 64}}), f"{_MLP}.weight.group_size", "did you mean 'group'?"),
    Bad(_layers({"weight": {"strategy": "channel"}}), f"{_MLP}.weight.strategy", "did you mean 'granularity'?"),
    Bad(_layers({"weight": "int4"}), f"{_MLP}.weight", "expected a mapping of dtype, granularity, group"),
    Bad(_layers({"input": "none"}), f"{_MLP}.input", "methods that leave activations alone end in _weight_only"),
    Bad(_layers({"weight": {}}), f"{_MLP}.weight", "`weight` says nothing"),
    Bad(_layers({"weight": {"dtype": "fp9"}}), f"{_MLP}.weight.dtype", "unknown word 'fp9'"),
    Bad(_layers({"weight": {"dtype": 8}}), f"{_MLP}.weight.dtype", "expected one of fp8, "),
    Bad(_layers({"weight": {"granularity": "token"}}), f"{_MLP}.weight.granularity", "unknown word 'token'"),
    Bad(_layers({"weight": {"group": 0}}), f"{_MLP}.weight.group", "a whole number from 1 up, found the number 0"),
    Bad(_layers({"weight": {"group": 1.5}}), f"{_MLP}.weight.group", "found the number 1.5"),
    Bad(_layers({"weight": {"group": "128"}}), f"{_MLP}.weight.group", "found the text '128'"),
    Bad(_layers({"weight": {"group": True}}), f"{_MLP}.weight.group", "found true"),
    Bad(_layers({"weight": {"group": 48}}), f"{_MLP}.weight.group", "int4_weight_only takes group 32, 64, 128", False),
    Bad(_layers({"method": "int4_weight_only", "weight": {"group": 48}}), f"{_MLP}.weight.group", "not 48", False),
    Bad(_layers({"method": "fp8", "weight": {"dtype": "int4"}}), f"{_MLP}.weight.dtype", "not int4", False),
    Bad(_layers({"weight": {"dtype": "int4", "granularity": "tensor"}}), f"{_MLP}.weight.granularity", "group", False),
    Bad(_layers({"weight": {"block": 128}}), f"{_MLP}.weight.block", "two whole numbers [out, in]"),
    Bad(_layers({"weight": {"block": [128]}}), f"{_MLP}.weight.block", "two whole numbers [out, in]"),
    Bad(_layers({"weight": {"block": [128, -1]}}), f"{_MLP}.weight.block[1]", "found the number -1"),
    Bad(_layers({"weight": {"block": [64, 64]}}), f"{_MLP}.weight.block", "fp8_block takes block [128, 128]", False),
    Bad(_layers({"weight": {"group": 32, "granularity": "channel"}}), f"{_MLP}.weight.granularity", "contradicts"),
    Bad(_layers({"weight": {"block": [128, 128], "group": 32}}), f"{_MLP}.weight.block", "contradicts"),
    Bad(_layers({"weight": {"symmetric": 1}}), f"{_MLP}.weight.symmetric", "true or false"),
    Bad(_layers({"weight": {"scale_dtype": "int8"}}), f"{_MLP}.weight.scale_dtype", "unknown word 'int8'"),
    Bad(_layers({"weight": {"scheme": "static"}}), f"{_MLP}.weight.scheme", "unknown field of `weight`"),
    Bad(_layers({"input": {"granularity": "channel"}}), f"{_MLP}.input.granularity", "unknown word 'channel'"),
    Bad(_layers({"input": {"scheme": "dynamc"}}), f"{_MLP}.input.scheme", "did you mean 'dynamic'?"),
    Bad(_layers({"input": {"scheme": "static", "granularity": "token"}}), f"{_MLP}.input.granularity", "per token"),
    Bad(_layers({"input": {"scale": 0}}), f"{_MLP}.input.scale", "a finite number above 0, found the number 0"),
    Bad(_layers({"input": {"scale": -1.0}}), f"{_MLP}.input.scale", "found the number -1.0"),
    Bad(_layers({"input": {"scale": "1e-3"}}), f"{_MLP}.input.scale", "1.0e-3"),
    Bad(
        _layers({"input": {"scale": 1e-40}}), f"{_MLP}.input.scale", "float32 can hold, from 1.17549e-38", schema=False
    ),
    Bad(_layers({"input": {"scale_ub": 1e39}}), f"{_MLP}.input.scale_ub", "to 3.40282e+38, found", schema=False),
    Bad(_layers({"input": {"scale": float("inf")}}), f"{_MLP}.input.scale", "found the number inf", schema=False),
    Bad(_layers({"input": {"scale": float("nan")}}), f"{_MLP}.input.scale", "found the number nan", schema=False),
    Bad(_layers({"input": {"scale": 1, "scheme": "dynamic"}}), f"{_MLP}.input.scheme", "needs scheme: static"),
    Bad(
        _layers({"input": {"scale": 1, "granularity": "token"}}),
        f"{_MLP}.input.granularity",
        "one number for the whole",
    ),
    Bad(_layers({"input": {"scale_ub": 1, "scheme": "static"}}), f"{_MLP}.input.scheme", "needs scheme: dynamic"),
    Bad(_layers({"method": "fp8", "input": {"scale": 1}}), f"{_MLP}.input.scale", "needs scheme: static", False),
    # Output and KV cache.
    Bad(_layers({"output": "int8"}), f"{_MLP}.output", "unknown word 'int8' (expected one of: bf16, fp16, fp32"),
    Bad(_layers({"output": None}), f"{_MLP}.output", "write `none` to take an earlier one back"),
    Bad(_layers({"output": 8}), f"{_MLP}.output", "found the number 8"),
    Bad(_layers({"output": ["fp8"]}), f"{_MLP}.output", "found a list"),
    Bad(_layers({"output": {}}), f"{_MLP}.output", "`output` says nothing"),
    Bad(_layers({"output": {"granularity": "token"}}), f"{_MLP}.output", "a mapping needs `dtype`"),
    Bad(_layers({"output": {"dtype": "bf16", "granularity": "token"}}), f"{_MLP}.output", "not quantized"),
    Bad(_layers({"output": {"dtype": "fp8", "granularity": "group"}}), f"{_MLP}.output", "needs `group`"),
    Bad(_layers({"output": {"dtype": "fp8", "granularity": "block"}}), f"{_MLP}.output.granularity", "'block'"),
    Bad(_layers({"output": {"dtype": "fp8", "scale": 2.0}}), f"{_MLP}.output", "needs scheme: static"),
    Bad(
        _layers({"output": {"dtype": "fp8", "scheme": "static", "granularity": "token"}}),
        f"{_MLP}.output.granularity",
        "per token",
    ),
    Bad(_layers({"kv_cache": "int8"}), f"{_MLP}.kv_cache", "unknown word 'int8'"),
    Bad(_layers({"kv_cache": "bf16"}), f"{_MLP}.kv_cache", "expected one of: fp8, fp8_e4m3, fp8_e5m2"),
    Bad(_layers({"kv_cache": False}), f"{_MLP}.kv_cache", "write `none`"),
    Bad(_layers({"kv_cache": {"granularity": "head"}}), f"{_MLP}.kv_cache", "a mapping needs `dtype`"),
    Bad(_layers({"kv_cache": {"dtype": "fp8", "granularity": "token"}}), f"{_MLP}.kv_cache.granularity", "'token'"),
    Bad(
        _layers({"kv_cache": {"dtype": "fp8", "granularity": "head", "scale": 1}}),
        f"{_MLP}.kv_cache.granularity",
        "one number",
    ),
    # Expectations.
    Bad({"expect": []}, ".expect", "a mapping of layers and bits_per_weight"),
    Bad({"expect": {"layer": {}}}, ".expect.layer", "did you mean 'layers'?"),
    Bad({"expect": {"layers": ["head"]}}, ".expect.layers", "a mapping of patterns to schemes"),
    Bad({"expect": {"layers": {"head": {}}}}, ".expect.layers.head", "no scheme here"),
    Bad({"expect": {"layers": {"head": {"optional": True}}}}, ".expect.layers.head", "no scheme here"),
    Bad({"expect": {"layers": {"head": {"optional": 1, "method": "none"}}}}, ".expect.layers.head.optional", "true or"),
    Bad({"expect": {"layers": {"head": {"kind": "head", "method": "none"}}}}, ".expect.layers.head.kind", "not stand"),
    Bad({"expect": {"layers": {"head": None}}}, ".expect.layers.head", "write `none`"),
    Bad({"expect": {"bits_per_weight": 11.5}}, ".expect.bits_per_weight", 'such as "<= 11.5", found the number 11.5'),
    Bad({"expect": {"bits_per_weight": "11.5"}}, ".expect.bits_per_weight", "a comparison and a number"),
    Bad({"expect": {"bits_per_weight": "=< 11.5"}}, ".expect.bits_per_weight", "a comparison and a number"),
    Bad({"expect": {"bits_per_weight": "<= inf"}}, ".expect.bits_per_weight", "a comparison and a number"),
    Bad({"expect": {"bits_per_weight": [">= 4", 5]}}, ".expect.bits_per_weight[1]", "found the number 5"),
]
