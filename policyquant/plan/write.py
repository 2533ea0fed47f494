"""A plan → a file: the lock that a build, a quantizer and a review share."""

from __future__ import annotations

import gzip
import os

from policyquant.output_file import write_whole
from policyquant.plan.plan import Plan


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan's JSON; compressed if the name ends in `.gz`. The file appears whole or not at all.

    Raises:
        PolicyQuantError: it cannot be written; what was there is still there.
    """
    data = plan.to_json().encode()
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    write_whole(path, data)
