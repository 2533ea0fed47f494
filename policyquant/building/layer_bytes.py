"""Whether a layer's tensors take the bytes that a plan counts for its scheme."""

from __future__ import annotations

from math import prod

from policyquant.errors import BuildError
from policyquant.layers.base import WeightLayer
from policyquant.plan.sizes import scheme_bytes


def check_bytes(layer: WeightLayer) -> None:
    """Compare what the layer's method stores, its bias left out, with what is counted for the scheme.

    A plan counts each of a merged layer's parts for itself where the checkpoint stores them so, and all rows at once
    where it stores them as one and nobody knows its parts: both are right. What a scheme leaves as it is stored is not
    counted from the scheme.

    Raises:
        BuildError: the method's tensors take more or less.
    """
    scheme = layer.scheme
    if scheme.method == "none":
        return
    tensors = {**layer._parameters, **layer._buffers}
    held = {
        name: tensor.nbytes
        for name, tensor in tensors.items()
        if tensor is not None and name in layer.method_tensors and name != "bias"
    }
    leading = () if layer.num_experts is None else (layer.num_experts,)
    shapes = [(*leading, rows, layer.in_features) for rows in layer.parts.values()]
    if scheme.weight is None:
        counted = {prod(layer.weight_shape) * layer.params_dtype.itemsize}
    else:
        counted = {sum(scheme_bytes(scheme, shape) for shape in shapes), scheme_bytes(scheme, layer.weight_shape)}
    if sum(held.values()) not in counted:
        each = ", ".join(f"{name} {size:,}" for name, size in held.items())
        raise BuildError(
            f"{layer.layer_name or type(layer).__name__}: method {scheme.method!r} holds {sum(held.values()):,} bytes"
            f" ({each}), and a plan counts {max(counted):,} for {scheme}; its create_weights and its spec have to agree"
        )
