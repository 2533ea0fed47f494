"""The version, in the one place that the build, the command line and written files read it from."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
