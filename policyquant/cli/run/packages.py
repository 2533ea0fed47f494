"""The packages that only running a model needs, and what is set before they are imported."""

from __future__ import annotations

import os
import sys

from policyquant import extras


def require(*packages: str) -> None:
    """See that packages are installed; none is imported.

    Raises:
        PolicyQuantError: some are missing; names them and the extra that installs them.
    """
    extras.require(*packages, extra="run", by="running a model")


def let_others_compute() -> None:
    """Let torch's threads sleep while they wait for each other, unless the environment says otherwise.

    By default they spin. On a machine that computes something else too, that made a model of 135M parameters write 0.5
    tokens a second instead of 5, as the thread that the others wait for had no core left. It counts only before torch
    is imported.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
