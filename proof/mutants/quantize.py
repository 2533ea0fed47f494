"""Mutants of the encoder and of the quantizers with one scale for a tensor or a row."""

from __future__ import annotations

from proof.mutants.mutant import Mutant

MUTANTS: list[Mutant] = []
