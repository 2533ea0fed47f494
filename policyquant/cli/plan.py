"""`policyquant plan`: write the resolved plan to a file."""

from __future__ import annotations

import argparse

from policyquant.cli import output
from policyquant.cli.arguments import add_model, add_policy, example
from policyquant.cli.findings_text import print_findings, verdict
from policyquant.cli.opening import resolve_model
from policyquant.cli.status import Status
from policyquant.cli.totals_text import outcome_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Resolve a policy on a model and write the plan: a scheme for every layer, and the rule that decided it.\n"
        "The file is a lock that a build, a quantizer and a review share; inspect and diff read it. It is\n"
        "overwritten if it exists; nothing is written if the policy has errors on this model."
    )
    parser.epilog = example(
        "plan path/to/model --policy policy.yaml -o plan.json",
        "plan path/to/model --policy fp8-dynamic -o plan.json.gz",
        "inspect plan.json",
    )
    add_model(parser)
    add_policy(parser, required=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="where to; compressed if it ends in .gz (default: -, stdout)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the plan, unless it has errors."""
    plan = resolve_model(arguments.model, arguments.policy, "plan")
    target: str = arguments.output
    print_findings(plan.findings)
    if plan.errors(strict=arguments.strict):
        where = "nothing is printed" if target == "-" else f"{target} is not written"
        output.error(f"{verdict(plan.findings)} in the plan; {where}")
        return Status.NO
    if target == "-":
        output.write_json(plan.json_chunks())
    else:
        from policyquant.plan.write import write_plan

        write_plan(plan, target)
    where = "" if target == "-" else f"{target}: "
    output.note(f"{where}{outcome_text(plan)}")
    return Status.FINE
