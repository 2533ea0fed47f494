"""The operators by family: schema, shapes, implementations, and a Python function for each. `ops` has them all."""
