"""What can be shown of the kernels without a GPU: they are compiled for each one, and their machine code is read."""
