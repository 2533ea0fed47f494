"""What all tests share: an environment that does not depend on who runs them."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis

# Each of these changes what the command line prints or where it reads from; a test that wants one sets it itself.
for variable in (
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_TOKEN",
    "LINES",
    "NO_COLOR",
    "PYTHONHASHSEED",
    "TTY_COMPATIBLE",
):
    os.environ.pop(variable, None)

# Tiles are those of the repository, whatever was measured on this machine.
os.environ["POLICYQUANT_TUNING"] = "0"

# Triton reads it when a kernel is defined: without a GPU, kernels are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
    # A CUDA library that the user has built, and tiles that were measured, are not what the pages tell of.
    os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / "build" / "no_cache")

# Time limits per example measure how busy the machine is, and a test that fails only sometimes helps nobody.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
# For mutants, of which some example is known to fail: which one is of no interest.
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile(
    os.environ.get("POLICYQUANT_TEST_PROFILE", "ci" if os.environ.get("CI") else "default")
)
