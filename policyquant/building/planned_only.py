"""Methods that a plan decides and that nothing runs yet: told before anything is made or read."""

from __future__ import annotations

from policyquant.building.listed import listed
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.methods.registry import method_class, runnable
from policyquant.plan.plan import Plan


def check_methods_run(plan: Plan) -> None:
    """Needs no torch.

    Raises:
        BuildError: the plan gives layers a method that nothing runs; one line for each method, with the rules that
            give it.
    """
    running = {*runnable()}
    counts: dict[str, int] = {}
    rules: dict[str, dict[str, None]] = {}
    for row in plan.rows:
        name = row.scheme.method
        if name in running:
            continue
        counts[name] = counts.get(name, 0) + row.count
        given_by = rules.setdefault(name, {})
        if row.rule is not None:
            given_by[f"{row.rule.pattern!r} ({row.rule.place})"] = None
    if counts:
        problems = [f"{_why(name)}; {_given(counts[name], list(rules[name]))}" for name in counts]
        raise BuildError(listed(f"{plan.policy.source} cannot be built for {plan.model.name}", problems))


def _why(name: str) -> str:
    try:
        method_class(name)
    except PolicyQuantError as error:
        return str(error)
    raise AssertionError(f"{name} runs")


def _given(count: int, rules: list[str]) -> str:
    layers = f"{count:,} layer{'' if count == 1 else 's'}"
    return f"the plan gives it to {layers}" + (f" by {', '.join(rules)}" if rules else "")
