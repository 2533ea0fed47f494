"""`import policyquant` beside a Python that imports nothing."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.processes import output_of, python
from benchmarks.report import Bar, Outcome, milliseconds, times
from benchmarks.timing import Contender, interleaved

HEAVY: Final = ("torch", "numpy", "rich", "jsonschema")
MOST_SECONDS: Final = 0.040

_PROGRAMS: Final = {
    "import policyquant": "import policyquant",
    "its three entry points": "from policyquant import Inventory, load_policy, resolve",
    "bare Python": "pass",
}


def run(*, tiny: bool = False) -> Outcome:
    """Start interpreters in turns."""
    contenders = [Contender(name, output_of, partial(python, program)) for name, program in _PROGRAMS.items()]
    package, entry_points, bare = interleaved(contenders, 2 if tiny else 20)
    loaded = output_of(python(f"import sys, policyquant; print(*(m for m in {HEAVY} if m in sys.modules))")).split()
    outcome = Outcome()
    outcome.tables.append(times("Starting Python", list(_PROGRAMS), (package, entry_points, bare)))
    outcome.tables.append(
        f"import policyquant adds {milliseconds(package.minimum - bare.minimum)},"
        f" its three entry points {milliseconds(entry_points.minimum - bare.minimum)}"
    )
    outcome.bars.append(
        Bar("import policyquant adds", 1000 * (package.minimum - bare.minimum), "at most", 1000 * MOST_SECONDS, "ms")
    )
    outcome.bars.append(Bar(f"of {', '.join(HEAVY)} it loads", len(loaded), "at most", 0, "modules"))
    return outcome
