"""`python -m policyquant` is `policyquant`."""

from __future__ import annotations

import sys

from policyquant.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
