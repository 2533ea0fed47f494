"""`policyquant check`: is a policy valid, and does it fit a model."""

from __future__ import annotations

import argparse

from policyquant.cli import output
from policyquant.cli.arguments import MODEL, example
from policyquant.cli.findings_text import print_findings, verdict
from policyquant.cli.opening import open_model, open_policy
from policyquant.cli.sizes_text import count_text
from policyquant.cli.status import Status
from policyquant.cli.totals_text import change_text
from policyquant.plan.plan import Plan
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
    policy = open_policy(arguments.policy)
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
        output.write(f"{_outcome(plan)}{_kept(policy)}\n")
    return Status.NO if fails else Status.FINE


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


def _outcome(plan: Plan) -> str:
    quantized = sum(row.count for row in plan.rows if row.scheme.method != "none")
    return f"{quantized:,} of {count_text(len(plan), 'layer')} quantized, {change_text(plan.total)}"


def _kept(policy: Policy) -> str:
    count = len(policy.expected_layers) + len(policy.expected_bits)
    return f"; {count_text(count, 'expectation')} met" if count else ""
