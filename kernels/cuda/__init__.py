"""The kernels in CUDA C++, for operators whose work is short: built on demand, run through torch's stable ABI."""
