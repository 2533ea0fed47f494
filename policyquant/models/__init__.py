"""Reference models made of the package's layers."""
