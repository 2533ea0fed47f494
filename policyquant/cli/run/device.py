"""The device that a model is to run on."""

from __future__ import annotations

from policyquant.errors import PolicyQuantError


def check_device(device: str) -> None:
    """See that torch can use it.

    Raises:
        PolicyQuantError: it is "cuda", and there is no GPU or torch cannot use one.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "torch finds no GPU" if built else f"torch {torch.__version__} is built without CUDA"
        raise PolicyQuantError(f"--device cuda: {why}; --device cpu runs anywhere")
