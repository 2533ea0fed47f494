"""Where a process starts: nothing is imported before Ctrl-C is minded, so that it is as silent then as later."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; gives its exit status."""
    try:
        from policyquant.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # As `Status.INTERRUPTED`, which may not have been imported yet.
