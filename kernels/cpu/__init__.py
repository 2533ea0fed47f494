"""The operators on a CPU, in plain torch: one file per family."""
