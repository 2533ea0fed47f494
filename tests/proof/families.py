"""The families of kernels that have a table of cases."""

from __future__ import annotations

from tests.proof.compiled import ROOT

FAMILIES = sorted(file.stem for file in (ROOT / "proof" / "cases").glob("[a-z]*.py"))
PRODUCTS = [family for family in FAMILIES if family.endswith("_mm") or family == "fused_moe"]
STREAMS = [family for family in FAMILIES if family not in PRODUCTS]
