"""How time grows with the number of experts and with the number of rules.

Names are folded, so work should grow with what is distinct about a model and not with its experts; with rules it can
at best be linear. Beside each time stands `json.loads` of the same model's index, which is linear in its tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.models import index_of, moe_config, moe_tensors
from benchmarks.report import Bar, Outcome, milliseconds, table
from benchmarks.timing import Contender, interleaved
from policyquant import Inventory, Plan, Policy, load_policy, resolve

MOST_EXPONENT: Final = 1.2
"""Of a power law through the upper half of the measurements; 1 is linear, and caches and collectors add a little."""


def run(*, tiny: bool = False) -> Outcome:
    """Both tables."""
    outcome = Outcome()
    rounds = 1 if tiny else 5
    _experts(outcome, (4, 8) if tiny else (8, 16, 32, 64, 128, 256, 512, 1_024), rounds)
    _rules(outcome, (2, 8) if tiny else (10, 30, 100, 300, 1_000, 3_000, 10_000), rounds, tiny)
    return outcome


def _experts(outcome: Outcome, counts: Sequence[int], rounds: int) -> None:
    rows = []
    opening: list[float] = []
    resolving: list[float] = []
    for count in counts:
        blocks = 48
        tensors = list(moe_tensors(blocks, count))
        config = moe_config(blocks, count)
        text = index_of([name for name, _, _ in tensors], 0)
        inventory = Inventory.from_tensors(tensors, config=config)
        resolve_time, open_time, parse_time = interleaved(
            (
                Contender("", partial(_resolved, inventory), partial(load_policy, _MIXED)),
                Contender("", partial(_listed, tensors, config)),
                Contender("", json.loads, partial(str, text)),
            ),
            rounds,
        )
        opening.append(open_time.minimum)
        resolving.append(resolve_time.minimum)
        rows.append(
            (
                f"{count:,}",
                f"{len(tensors):,}",
                milliseconds(open_time.minimum),
                milliseconds(resolve_time.minimum),
                f"{1e6 * resolve_time.minimum / len(tensors):.3g} µs",
                milliseconds(parse_time.minimum),
                f"{resolve_time.minimum / parse_time.minimum:.3g}×",
            )
        )
    header = ("experts", "tensors", "Inventory", "resolve", "per tensor", "floor: json.loads", "resolve / floor")
    outcome.tables.append(table("48 blocks, 12 rules, experts in each block", header, rows))
    outcome.bars.append(
        Bar("resolve grows with experts to the power", _exponent(counts, resolving), "at most", MOST_EXPONENT, "")
    )
    outcome.bars.append(
        Bar("Inventory grows with experts to the power", _exponent(counts, opening), "at most", MOST_EXPONENT, "")
    )


def _rules(outcome: Outcome, counts: Sequence[int], rounds: int, tiny: bool) -> None:
    blocks, experts = (4, 4) if tiny else (64, 128)
    inventory = Inventory.from_tensors(moe_tensors(blocks, experts), config=moe_config(blocks, experts))
    rows = []
    loading: list[float] = []
    resolving: list[float] = []
    for count in counts:
        document = {
            "version": 1,
            "layers": [{"match": "*", "method": "fp8"}, *_mixed_rules(count - 1, blocks, experts)],
        }
        text = json.dumps(document)
        resolve_time, load_time, parse_time = interleaved(
            (
                Contender("", partial(_resolved, inventory), partial(load_policy, document)),
                Contender("", load_policy, partial(dict, document)),
                Contender("", json.loads, partial(str, text)),
            ),
            rounds,
        )
        resolving.append(resolve_time.minimum)
        loading.append(load_time.minimum)
        rows.append(
            (
                f"{count:,}",
                milliseconds(load_time.minimum),
                milliseconds(resolve_time.minimum),
                f"{1e6 * resolve_time.minimum / count:,.3g} µs",
                milliseconds(parse_time.minimum),
            )
        )
    header = ("rules", "load_policy", "resolve", "per rule", "floor: json.loads of the policy")
    outcome.tables.append(
        table(
            f"{len(inventory):,} layers; rules are exact names, globs, ranges and canonical names in turns",
            header,
            rows,
        )
    )
    outcome.bars.append(
        Bar("resolve grows with rules to the power", _exponent(counts, resolving), "at most", MOST_EXPONENT, "")
    )
    outcome.bars.append(
        Bar("load_policy grows with rules to the power", _exponent(counts, loading), "at most", MOST_EXPONENT, "")
    )


def _resolved(inventory: Inventory, policy: Policy) -> Plan:
    return resolve(policy, inventory)


def _listed(tensors: Any, config: dict[str, object], _: object) -> Inventory:
    return Inventory.from_tensors(tensors, config=config)


_MIXED: Final[dict[str, Any]] = {
    "version": 1,
    "default": "none",
    "layers": {
        "decoder.*.attention": "fp8",
        "decoder.*.moe": "fp8",
        "*.qkv_proj": "none",
        "*.self_attn": {"kv_cache": "fp8"},
        "*.experts.*.down_proj": "int8",
        "model.layers.{0..3,-4..-1}": "none",
        "model.layers.{4..7}.mlp.experts": "fp8",
        "model.layers.[12]?.mlp.experts.*.{gate,up}_proj": "int8",
        "model.layers.5.self_attn.o_proj": "none",
        "model.layers.{-8..-5}.mlp.experts.*.down_proj": "fp8",
        "*.mlp.gate": "none",
        "lm_head": "none",
    },
}


def _mixed_rules(count: int, blocks: int, experts: int) -> list[dict[str, str]]:
    """Different rules that each reach something: first some for a module of one block, then single layers, experts and
    their neighbours. All have one method, so that no fused group is divided."""
    modules = [f"decoder.{block}.{module}" for module in _MODULES for block in range(blocks)][: count // 16]
    patterns = []
    for number in range(count - len(modules)):
        turn, form = divmod(number, 3)
        expert, block = turn // blocks % experts, turn % blocks
        patterns.append(
            (
                f"model.layers.{block}.mlp.experts.{expert}.up_proj",
                f"*.layers.{block}.mlp.experts.{expert}.*_proj",
                f"model.layers.{{{block - blocks}..{block + 1}}}.mlp.experts.{{{expert}..{expert + 2}}}.[gu]*",
            )[form]
        )
    return [{"match": pattern, "method": "fp8"} for pattern in (*modules, *patterns)]


_MODULES: Final = (
    "attention",
    "attention.o_proj",
    "attention.qkv_proj",
    "attention.*_proj",
    "moe",
    "moe.experts",
    "moe.experts.down_proj",
    "moe.experts.gate_up_proj",
    "moe.experts.*_proj",
    "moe.*",
)


def _exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Of the power law between the middle and the largest size; below that, what does not grow dominates."""
    middle = len(sizes) // 2
    return math.log(seconds[-1] / seconds[middle - 1]) / math.log(sizes[-1] / sizes[middle - 1])
