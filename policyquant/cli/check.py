"""`policyquant check`: is a policy valid, and does it fit a model."""

from __future__ import annotations

import argparse

from policyquant.cli import output
from policyquant.cli.arguments import MODEL, example
from policyquant.cli.findings_text import print_findings, verdict
from policyquant.cli.given import policy_in, what_is
from policyquant.cli.opening import open_model, open_policy
from policyquant.cli.sizes_text import count_text
from policyquant.cli.status import Status
from policyquant.cli.totals_text import outcome_text
from policyquant.errors import PolicyQuantError
from policyquant.policy.policy import Policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Say whether a policy is valid; with a model, also what inspection finds and whether what the policy expects"
        " holds."
    )
    parser.epilog = example("check policy.yaml", "check policy.yaml path/to/model --strict")
    parser.add_argument("policy", metavar="POLICY", help="a policy file, or the name of a preset")
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; a policy that is not valid raises."""
    try:
        policy = open_policy(arguments.policy)
    except PolicyQuantError:
        _check_order(arguments.policy, arguments.model)
        raise
    if arguments.model is None:
        output.write(f"{policy.source}: valid ({_contents(policy)})\n")
        return Status.FINE
    from policyquant.plan.resolve import resolve

    plan = resolve(policy, open_model(arguments.model))
    print_findings(plan.findings)
    fails = bool(plan.errors(strict=arguments.strict))
    found = verdict(plan.findings)
    model = plan.model.name or plan.model.source
    output.write(f"{policy.source} {'does not fit' if fails else 'fits'} {model}{f': {found}' if found else ''}\n")
    if not fails:
        output.write(f"{outcome_text(plan)}{_kept(policy)}\n")
    return Status.NO if fails else Status.FINE


def _check_order(first: str, second: str | None) -> None:
    """Say so if what is no policy is a model that stands before one."""
    if what_is(first) != "model" or (second is not None and what_is(second) in ("model", "plan")):
        return
    policy = second or policy_in(first) or "POLICY"
    raise PolicyQuantError(f"{first}: a model; check takes the policy first: policyquant check {policy} {first}")


def _contents(policy: Policy) -> str:
    extended = [file for file in policy.files if file != policy.source]
    others = sum(rule.location.file != policy.source for rule in policy.rules)
    texts = [count_text(len(policy.rules) - others, "rule")]
    if extended:
        texts.append(f"{others:,} more from {', '.join(extended)}")
    if policy.default is not None:
        texts.append("a default")
    expectations = len(policy.expected_layers) + len(policy.expected_bits)
    if expectations:
        texts.append(count_text(expectations, "expectation"))
    return ", ".join(texts)


def _kept(policy: Policy) -> str:
    count = len(policy.expected_layers) + len(policy.expected_bits)
    return f"; {count_text(count, 'expectation')} met" if count else ""
