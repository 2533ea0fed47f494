"""A list of modules to leave alone, 882 entries, beside `should_convert_module` of transformers for 512 modules.

Such lists are what checkpoints carry in `modules_to_not_convert`. Ours decides every layer of the model, more than the
512 that the peer is asked for; half of those are on the list.
"""

from __future__ import annotations

from typing import Final

from benchmarks.report import Bar, Outcome, times
from benchmarks.timing import Contender, Timing, interleaved
from policyquant import Inventory, Plan, load_policy, resolve

NEEDS: Final = ("torch", "transformers")
LEAST_TIMES: Final = 50

_LINEARS: Final = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def run(*, tiny: bool = False) -> Outcome:
    """Ask the peer once, which takes long, and ours several times around that."""
    listed_blocks, asked = (4, 28) if tiny else (126, 512)
    listed = [f"model.layers.{block}.{linear}" for block in range(listed_blocks) for linear in _LINEARS]
    names = [f"model.layers.{block}.{linear}" for block in range(2 * listed_blocks) for linear in _LINEARS]
    middle = len(listed)
    asked_for = names[middle - asked // 2 : middle + asked // 2]
    inventory = Inventory.open((f"{name}.weight", (64, 64), "BF16") for name in names)
    document = {
        "version": 1,
        "default": "int8",
        "layers": [{"match": entry, "method": "none"} for entry in listed],
    }

    ours = Contender("resolve", lambda policy: resolve(policy, inventory), lambda: load_policy(document))
    theirs = Contender(f"transformers should_convert_module, {asked} modules", lambda _: _converted(asked_for, listed))
    _converted(asked_for[:1], listed[:1])  # Imports what it needs, outside the measurement.
    before = interleaved([ours], 3)[0]
    peer, between = interleaved([theirs, ours], 1)
    loading, after = interleaved([Contender("load_policy", lambda _: load_policy(document)), ours], 3)
    _check_same(resolve(load_policy(document), inventory), asked_for[:: len(asked_for) // 8], listed)

    ours_all = Timing(before.seconds + between.seconds + after.seconds)
    outcome = Outcome()
    outcome.tables.append(
        times(
            f"A list of {len(listed)} modules to leave alone, {len(names):,} layers",
            ["load_policy", theirs.name, ours.name],
            [loading, peer, ours_all],
        )
    )
    outcome.bars.append(Bar("faster than transformers", peer.minimum / ours_all.median, "at least", LEAST_TIMES))
    return outcome


def _converted(names: list[str], listed: list[str]) -> list[str]:
    from transformers.quantizers.quantizers_utils import should_convert_module

    return [name for name in names if should_convert_module(name, listed)]


def _check_same(plan: Plan, names: list[str], listed: list[str]) -> None:
    """A comparison of times means something only if both give the same answer."""
    if set(_converted(names, listed)) != {name for name in names if plan[name].method != "none"}:
        raise RuntimeError("policyquant and transformers differ in which modules are left alone")
