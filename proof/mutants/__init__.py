"""Mutants of the kernels: one table a family. Each must be killed by the tests it names."""
