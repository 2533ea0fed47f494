"""Where what is made on a machine, for that machine, is kept: libraries that were built, tables that were measured."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The user's folder for this, which need not exist yet: policyquant in $XDG_CACHE_HOME, or in ~/.cache."""
    # The XDG Base Directory Specification has relative paths ignored.
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "policyquant"
