"""The operators in Triton: one file per family. Imported when one of them is to run."""
