"""The Makefile says what it can do, and what it compiles exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_help_names_every_target_that_somebody_would_call() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    named = re.findall(r"^#   make ([a-z-]+)  ", MAKEFILE, re.MULTILINE)
    assert sorted(named) == sorted(set(phony[1].split()) - {"help", "types"})


def test_every_install_is_followed_by_compiling_the_package() -> None:
    installs = MAKEFILE.count("--editable")
    assert installs == MAKEFILE.count("python -m compileall -q $(COMPILED)") == 3
    for name in ("policyquant", "kernels", "schemas", "policies"):
        assert (ROOT / name).is_dir()
