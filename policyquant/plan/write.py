"""A plan → a file: the lock that a build, a quantizer and a review share."""

from __future__ import annotations

import gzip
import os

from policyquant.output_file import write_whole
from policyquant.plan.plan import Plan


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan's JSON; compressed if the name ends in `.gz`. The file appears whole or not at all.

    Raises:
        PolicyQuantError: it cannot be written, or is the model or the policy itself; what was there is still there.
    """
    # A name of a file that is no text stands in a path as half characters, which no UTF-8 file can have.
    data = plan.to_json().encode(errors="replace")
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    write_whole(path, data, made_from=(plan.model.source, plan.policy.source))
