"""`resolve` on the largest model at hand beside `json.loads` of its index: the floor of any tool that reads its names.

Kimi-K2 has 139,583 tensors; forty rules of every kind decide it.
"""

from __future__ import annotations

import json
from typing import Final

from benchmarks.models import FORTY_RULES, index_text, model_path
from benchmarks.report import Bar, Outcome, times
from benchmarks.timing import Contender, interleaved
from policyquant import Inventory, load_policy, resolve

MOST_TIMES: Final = 4


def run(*, tiny: bool = False) -> Outcome:
    """The inventory is read and the policy loaded before the clock starts."""
    name = "Mixtral-8x7B-v0.1" if tiny else "Kimi-K2-Instruct"
    text = index_text(name)
    inventory = Inventory.open(str(model_path(name)))
    contenders = (
        Contender("resolve, 40 rules", lambda policy: resolve(policy, inventory), lambda: load_policy(FORTY_RULES)),
        Contender("load_policy, 40 rules in YAML", lambda _: load_policy(FORTY_RULES)),
        Contender("Inventory.open (gzip, shapes)", lambda _: Inventory.open(str(model_path(name)))),
        Contender("floor: json.loads of its index", lambda _: json.loads(text)),
    )
    timings = interleaved(contenders, 2 if tiny else 9)
    plan = resolve(load_policy(FORTY_RULES), inventory)
    title = f"{name}: {plan.model.layers:,} layers in {len(inventory.sets)} templates, {len(plan.rows)} rows decided"
    outcome = Outcome([times(title, [each.name for each in contenders], timings)])
    ratio = timings[0].minimum / timings[-1].minimum
    outcome.bars.append(Bar(f"resolve on {name} against json.loads of its index", ratio, "at most", MOST_TIMES))
    return outcome
