"""A thousand rules of exact names against 25,000 layers, beside `match_named_modules` of compressed-tensors.

The peer is given a real tree of `nn.Linear` (on the meta device) and the same names as targets; its time is that of
matching alone. Ours is all of `resolve`: decisions with their reasons, fused groups, shapes and findings.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.models import moe_tensors
from benchmarks.report import Bar, Outcome, times
from benchmarks.timing import Contender, Timing, interleaved
from policyquant import Inventory, Plan, load_policy, resolve

NEEDS: Final = ("torch", "compressed_tensors")
LEAST_TIMES: Final = 100


def run(*, tiny: bool = False) -> Outcome:
    """Match once with the peer, which takes long, and several times around that with ours."""
    layers, rules = (300, 20) if tiny else (25_000, 1_000)
    names = _linear_names(layers)
    targets = names[:: layers // rules][:rules]
    tree = _module_tree(names)
    inventory = Inventory.open((f"{name}.weight", (8, 8), "BF16") for name in names)
    document = {"version": 1, "layers": [{"match": target, "method": "fp8"} for target in targets]}

    ours = Contender("resolve", lambda policy: resolve(policy, inventory), lambda: load_policy(document))
    _matched(tree, targets[:1])  # Imports what it needs, outside the measurement.
    before = interleaved([ours], 3)[0]
    theirs = Contender("compressed_tensors match_named_modules", lambda _: _matched(tree, targets))
    peer, between = interleaved([theirs, ours], 1)
    loading, after = interleaved([Contender("load_policy", lambda _: load_policy(document)), ours], 3)

    _check_same(resolve(load_policy(document), inventory), _matched(tree, targets[:20]), targets[:20])
    ours_all = Timing(before.seconds + between.seconds + after.seconds)
    outcome = Outcome()
    outcome.tables.append(
        times(
            f"{rules:,} rules of exact names, {layers:,} layers",
            ["load_policy", theirs.name, ours.name],
            [loading, peer, ours_all],
        )
    )
    outcome.bars.append(Bar("faster than compressed-tensors", peer.minimum / ours_all.median, "at least", LEAST_TIMES))
    return outcome


def _linear_names(count: int) -> list[str]:
    experts = 8 if count < 1_000 else 208
    linears = (
        name.removesuffix(".weight")
        for name, shape, _ in moe_tensors(-(-count // (3 * experts)), experts)
        if len(shape) == 2 and name.startswith("model.layers.")
    )
    return [name for name, _ in zip(linears, range(count), strict=False)]


def _module_tree(names: list[str]) -> Any:
    import torch

    root = torch.nn.Module()
    for name in names:
        *parents, last = name.split(".")
        module = root
        for parent in parents:
            if parent not in module._modules:
                module.add_module(parent, torch.nn.Module())
            module = module.get_submodule(parent)
        module.add_module(last, torch.nn.Linear(8, 8, bias=False, device="meta"))
    return root


def _matched(tree: Any, targets: list[str]) -> list[str]:
    from compressed_tensors.utils.match import match_named_modules

    return [name for name, _ in match_named_modules(tree, targets)]


def _check_same(plan: Plan, matched: list[str], targets: list[str]) -> None:
    """A comparison of times means something only if both give the same answer."""
    wanted = {name for name in targets if plan[name].method == "fp8"}
    if set(matched) != wanted or wanted != set(targets):
        raise RuntimeError("policyquant and compressed-tensors differ in what exact names match")
