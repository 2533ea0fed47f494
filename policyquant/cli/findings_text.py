"""Findings on standard error: errors and warnings in full, notes in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policyquant.cli import output
from policyquant.cli.output import one_line
from policyquant.cli.sizes_text import count_text
from policyquant.cli.terminal import Style
from policyquant.findings import Finding, Level

_STYLES: Final[dict[Level, Style]] = {"error": "red", "warning": "yellow", "note": "cyan"}

_MOST_LAYERS: Final = 5
"""Names (folded) that a finding lists without `--verbose`."""

_MOST_FINDINGS: Final[dict[Level, int]] = {"error": 50, "warning": 50, "note": 10}
"""How many of a level are printed without `--verbose`: a policy for another model can have thousands."""


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what there is to say, worst first; with `--quiet` errors only."""
    levels: tuple[Level, ...] = ("error",) if output.settings.quiet else ("error", "warning", "note")
    for level in levels:
        of_level = [finding for finding in findings if finding.level == level]
        shown = of_level if output.settings.verbose else of_level[: _MOST_FINDINGS[level]]
        for finding in shown:
            _print(finding)
        if len(shown) < len(of_level):
            more = count_text(len(of_level) - len(shown), f"more {level}", f"more {level}s")
            output.message(f"{more} (--verbose prints all)")


def _print(finding: Finding) -> None:
    label = f"{finding.level} {finding.code}:"
    output.message(f" {one_line(finding.message)}", label=label, style=_STYLES[finding.level])
    if finding.level == "note" and not output.settings.verbose:
        return
    layers = finding.layers if output.settings.verbose else finding.layers[:_MOST_LAYERS]
    for name in layers:
        output.message(f"    {one_line(name)}")
    if len(layers) < len(finding.layers):
        output.message(f"    and {len(finding.layers) - len(layers):,} more (--verbose lists all)")
    # Most messages name the rules that they are about.
    elsewhere = [rule for rule in finding.rules if rule not in finding.message]
    if elsewhere:
        output.message(f"    at {', '.join(map(one_line, elsewhere))}")


def verdict(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning`; empty if there are none."""
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    return ", ".join(count_text(count, level) for level, count in counts.items() if count)
