"""`policyquant.build` is a function and a package, in whatever order the two are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

USE = "assert isinstance(build(lambda: torch.nn.Linear(2, 2), policy=None), torch.nn.Linear)"


@pytest.mark.parametrize(
    "imports",
    [
        "from policyquant import build",
        "from policyquant import PlanConfig, build",
        "import policyquant.build.construct as construct; from policyquant import build",
        "from policyquant import build; import policyquant.build.construct as construct; construct.construct",
        "import policyquant; policyquant.build; import policyquant.build.targets; build = policyquant.build",
    ],
)
def test_build_can_be_called_whatever_was_imported_before(imports: str) -> None:
    subprocess.run([sys.executable, "-c", f"import torch\n{imports}\n{USE}"], check=True)
