"""Checkpoints as streams of tensors: what a layer is loaded from, and where it lies."""
