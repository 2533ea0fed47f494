"""The arithmetic of quantized layers, installed as `policyquant.kernels`. It imports nothing of the other packages."""
