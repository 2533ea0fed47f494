"""What there is to say about a policy as a whole on one model."""

from __future__ import annotations

from policyquant.plan.context import Context
from policyquant.plan.units import Reach, add_members
from policyquant.policy.policy import PROTECTED
from policyquant.policy.scheme import Quantization


def check_policy(context: Context) -> None:
    """Note lifted protection (PQ305) and requantized layers (PQ306); warn if nothing is quantized (PQ204)."""
    lifted = PROTECTED - context.policy.protect
    if lifted:
        place = str(context.policy.protect_location or context.policy.source)
        context.add(
            "PQ305",
            "note",
            f"{place}: protection is lifted from {', '.join(sorted(lifted))} layers",
            (),
            (place,),
        )
    quantizes = False
    requantized: dict[tuple[str, str, str], Reach] = {}
    for unit in context.units:
        stored = unit.layer.stored
        for start, stop, decision in context.assignment.runs(unit):
            scheme = decision.scheme
            quantizes = quantizes or (
                scheme.weight is not None
                or scheme.kv_cache is not None
                or isinstance(scheme.output, Quantization)
                or (scheme.method == "dequantize" and stored is not None)
            )
            if stored is not None and scheme.weight is not None:
                reached = requantized.setdefault((stored.description, scheme.method, context.places(decision)[0]), {})
                add_members(reached, unit.number, ((start, stop),))
    for (before, after, place), reached in requantized.items():
        context.add(
            "PQ306",
            "note",
            f"{place}: these layers are stored quantized ({before}) and will be requantized to {after}, which loses"
            " precision a second time; `none` leaves them as they are stored, `dequantize` turns them back",
            context.spans(reached),
            (place,),
        )
    if not quantizes and not any(finding.level == "error" for finding in context.findings):
        context.add("PQ204", "warning", f"{context.policy.source}: this policy quantizes nothing on this model")
