"""`python -m policyquant` is `policyquant`."""

from __future__ import annotations

import os
import sys


def _run() -> int:
    # `-m` puts the working directory first on the path. That may be a checkpoint, and a `yaml.py` in it would run; the
    # console script never looks there. The directory stays if the package itself is in it. Nothing may be imported
    # before that, `pathlib` neither.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != home:
        del sys.path[0]
    from policyquant.cli.entry import main

    return main()


if __name__ == "__main__":
    sys.exit(_run())
