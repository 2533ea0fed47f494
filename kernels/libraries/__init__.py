"""Other libraries' kernels that run an operator where they can: what each asks for, and how it is called."""
