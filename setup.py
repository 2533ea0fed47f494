"""Lists the packages; everything else about the distribution is in pyproject.toml.

`kernels/`, `schemas/` and `policies/` lie at the top of the repository, where people look for them, and are installed
inside `policyquant`. pyproject.toml can either find packages or map directories, not both, and a list kept by hand
would some day miss one in the wheel only.
"""

from setuptools import find_packages, setup

MAPPED = ("kernels", "schemas", "policies")

packages = find_packages(include=["policyquant", "policyquant.*"])
for directory in MAPPED:
    packages.append(f"policyquant.{directory}")
    packages += [f"policyquant.{directory}.{package}" for package in find_packages(directory)]

setup(packages=packages, package_dir={f"policyquant.{directory}": directory for directory in MAPPED})
