"""Packages that only part of the work needs, and the extra of policyquant that installs them."""

from __future__ import annotations

from importlib.util import find_spec

from policyquant.errors import PolicyQuantError


class MissingPackageError(PolicyQuantError, ImportError):
    """A package is not installed that this part of the work needs. Names the extra that installs it."""


def require(*packages: str, extra: str, by: str) -> None:
    """See that packages are installed; none is imported.

    Args:
        packages: what is needed.
        extra: the extra of policyquant that installs them.
        by: what needs them: the beginning of the message.

    Raises:
        MissingPackageError: some are missing; names them and the extra.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(
            f"{by} needs {' and '.join(missing)}, which {are} not installed: pip install 'policyquant[{extra}]'"
        )
