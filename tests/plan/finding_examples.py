"""For each finding of resolution a policy that produces it, and the same policy mended.

`docs/findings.md` shows these; `test_rule_findings` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from policyquant import Inventory
from policyquant.findings import Level
from tests.plan import models


class Example(NamedTuple):
    """One finding, by a minimal policy."""

    code: str
    level: Level
    why: str
    """What is wrong, or worth knowing."""
    model: Callable[[], Inventory]
    policy: Mapping[str, Any]
    mended: Mapping[str, Any]
    """The policy without the fault, on the same model unless `mended_model` is given."""
    mended_model: Callable[[], Inventory] | None = None


EXAMPLES = [
    Example(
        "PQ101",
        "error",
        "a rule reaches no layer: its pattern is misspelled",
        models.llama,
        {"layers": {"*.down_prj": "fp8"}},
        {"layers": {"*.down_proj": "fp8"}},
    ),
    Example(
        "PQ101",
        "error",
        "a rule by kind reaches no layer: the model has none of that kind",
        models.llama,
        {"layers": [{"kind": "conv", "method": "none"}]},
        {"layers": [{"kind": "linear", "method": "none"}]},
    ),
    Example(
        "PQ102",
        "error",
        "a pattern matches tensors, and patterns name layers",
        models.llama,
        {"layers": {"*.down_proj.weight": "fp8"}},
        {"layers": {"*.down_proj": "fp8"}},
    ),
    Example(
        "PQ103",
        "error",
        "a method takes nothing of what its rule reaches",
        models.llama,
        {"layers": {"*.embed_tokens": "fp8"}},
        {"layers": {"*.embed_tokens": "fp8_weight_only"}},
    ),
    Example(
        "PQ104",
        "error",
        "a rule without a method finds nothing to refine: these layers are at `none`",
        models.llama,
        {"layers": {"*.down_proj": {"input": {"group": 64}}}},
        {"layers": {"*.down_proj": {"method": "fp8_block", "input": {"group": 64}}}},
    ),
    Example(
        "PQ105",
        "error",
        "layers that run as one disagree",
        models.llama,
        {"layers": {"*.q_proj": "fp8"}},
        {"layers": {"*.qkv_proj": "fp8"}},
    ),
    Example(
        "PQ106",
        "error",
        "the parts of a layer that stores several things disagree",
        models.phi3,
        {"layers": {"*.qkv_proj": "fp8", "*.v_proj": "none"}},
        {"layers": {"*.qkv_proj": "fp8"}},
    ),
    Example(
        "PQ107",
        "error",
        "a shape leaves a ragged group where the method allows none",
        lambda: models.llama(inner=96),
        {"layers": {"*.down_proj": "int4_weight_only"}},
        {"layers": {"*.down_proj": {"method": "int4_weight_only", "weight": {"group": 32}}}},
    ),
    Example(
        "PQ108",
        "error",
        "tied layers are decided differently by rules that name them",
        models.tied_llama,
        {"layers": {"lm_head": "none", "*.embed_tokens": "int8_weight_only"}},
        {"layers": {"lm_head": "none", "*.embed_tokens": "int8_weight_only"}, "untie": True},
    ),
    Example(
        "PQ109",
        "error",
        "a method does not take every kind that is tied there",
        models.tied_llama,
        {"layers": {"lm_head": "fp8"}},
        {"layers": {"lm_head": "fp8_weight_only"}},
    ),
    Example(
        "PQ110",
        "error",
        "an output cannot be read by the layer that takes it",
        models.llama,
        {"layers": {"*.act_fn": {"output": "fp8"}}},
        {"layers": {"*.act_fn": {"output": "fp8"}, "*.down_proj": "fp8"}},
    ),
    Example(
        "PQ111",
        "error",
        "a layer is not as the policy expects",
        models.llama,
        {"layers": {"*.mlp": "fp8"}, "expect": {"layers": {"*.down_proj": "none"}}},
        {"layers": {"*.mlp": "fp8", "*.down_proj": "none"}, "expect": {"layers": {"*.down_proj": "none"}}},
    ),
    Example(
        "PQ112",
        "error",
        "an expectation says nothing of any layer",
        models.llama,
        {"layers": {"*.mlp": "fp8"}, "expect": {"layers": {"*.router": "none"}}},
        {"layers": {"*.mlp": "fp8"}, "expect": {"layers": {"*.router": {"method": "none", "optional": True}}}},
    ),
    Example(
        "PQ113",
        "error",
        "the bits per weight are not as expected",
        models.llama,
        {"layers": {"*.mlp": "fp8"}, "expect": {"bits_per_weight": "<= 8"}},
        {"layers": {"*.mlp": "fp8"}, "expect": {"bits_per_weight": "<= 13"}},
    ),
    Example(
        "PQ114",
        "error",
        "the bits per weight are not known, since the source does not tell the shapes",
        models.llama_without_shapes,
        {"layers": {"*.mlp": "fp8"}, "expect": {"bits_per_weight": "<= 13"}},
        {"layers": {"*.mlp": "fp8"}, "expect": {"bits_per_weight": "<= 13"}},
        models.llama,
    ),
    Example(
        "PQ115",
        "error",
        "a member of a group that the policy adds reaches no layer",
        models.llama,
        {"layers": {"*.mlp": "fp8"}, "groups": [["*.o_proj", "*.qkv_proj", "*.out_proj"]]},
        {"layers": {"*.mlp": "fp8"}, "groups": [["*.o_proj", "*.qkv_proj"]]},
    ),
    Example(
        "PQ205",
        "warning",
        "a group that the policy adds joins no two layers, since their parents differ",
        models.llama,
        {"layers": {"*.mlp": "fp8"}, "groups": [["*.o_proj", "*.down_proj"]]},
        {"layers": {"*.mlp": "fp8"}, "groups": [["*.up_proj", "*.down_proj"]]},
    ),
    Example(
        "PQ201",
        "warning",
        "later rules overrule a rule everywhere",
        models.llama,
        {"layers": {"*.down_proj": "int8", "*.mlp": "fp8"}},
        {"layers": {"*.mlp": "fp8", "*.down_proj": "int8"}},
    ),
    Example(
        "PQ202",
        "warning",
        "protection stops a rule everywhere, since it does not name what it reaches",
        models.deepseek,
        {"layers": {"*.shared_head.*": "fp8"}},
        {"layers": {"*.shared_head.head": "fp8"}},
    ),
    Example(
        "PQ203",
        "warning",
        "a pattern would reach more in another namespace",
        models.t5,
        {"layers": {"*.qkv_proj": "fp8"}},
        {"layers": {"*.SelfAttention.qkv_proj": "fp8"}},
    ),
    Example(
        "PQ204",
        "warning",
        "the policy quantizes nothing on this model",
        models.llama,
        {"layers": {"*.mlp": "none"}},
        {"layers": {"*.mlp": "fp8"}},
    ),
    Example(
        "PQ301",
        "note",
        "a rule that may reach nothing does: a canonical name that this model does not have",
        models.llama,
        {"layers": {"decoder.*.moe": "fp8", "*.mlp": "fp8"}},
        {"layers": {"decoder.*.mlp": "fp8"}},
    ),
    Example(
        "PQ301",
        "note",
        "a rule that may reach nothing does: it is optional",
        models.llama,
        {"layers": [{"match": "*.w1", "method": "fp8", "optional": True}, {"match": "*.mlp", "method": "fp8"}]},
        {"layers": [{"match": "*.mlp", "method": "fp8", "optional": True}]},
    ),
    Example(
        "PQ302",
        "note",
        "a preset's rule takes nothing of what it reaches",
        lambda: models.inventory("bert-base-uncased"),
        {"extends": "fp8-kv", "layers": {"*.mlp": "fp8"}},
        {"extends": "fp8-kv", "layers": {"*.mlp": "fp8"}},
        models.llama,
    ),
    Example(
        "PQ303",
        "note",
        "a wildcard names a protected layer",
        models.mixtral,
        {"layers": {"*.g*": "fp8"}},
        {"layers": {"*.gate": "fp8"}},
    ),
    Example(
        "PQ304",
        "note",
        "a rule for the decoder leaves the prediction layers to another decision",
        models.deepseek,
        {"layers": {"decoder.*.moe": "fp8"}},
        {"layers": {"{decoder,mtp}.*.moe": "fp8"}},
    ),
    Example(
        "PQ305",
        "note",
        "the policy lifts the protection of a kind",
        models.llama,
        {"layers": {"*": "fp8"}, "protect": ["embedding", "router"]},
        {"layers": {"*": "fp8", "lm_head": "fp8"}},
    ),
    Example(
        "PQ306",
        "note",
        "layers that are stored quantized will be quantized anew",
        lambda: models.deepseek("F8_E4M3"),
        {"layers": {"*.o_proj": "int8"}},
        {"layers": {"*.o_proj": "dequantize"}},
    ),
]
