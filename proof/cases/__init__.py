"""What is compiled and what is expected of it: one table a family of kernels, of the family's stem."""
