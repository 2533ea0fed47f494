"""The canonical names: one small tree into which every architecture's layers are put, and what each place in it means.

A canonical template begins with a tower (`decoder`, `mtp`, `encoder`, `vision`, `audio`) and a block index, or names
something outside the blocks. The tables below say, for each place, its kind, its fused name, its fused group, and what
reads its output in a pre-norm transformer; families where the last differs say so in their own data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX

TOWERS: Final = ("decoder", "mtp", "encoder", "vision", "audio")
"""A tower is named by its modality, else `encoder` or `decoder`; `mtp` holds multi-token-prediction layers."""

CACHING_TOWERS: Final = frozenset({"decoder", "mtp"})
"""Towers that generate token by token, whose attention layers hence keep a KV cache."""


class Role(NamedTuple):
    """What one place in the tree means. Names are relative to the block."""

    kind: Kind
    fused: str = ""
    """Fused name that stands for this place and its fellows; empty: none."""
    group: str = ""
    """What the fused group it belongs to makes together; empty: none."""
    feeds: tuple[str, ...] | None = ()
    """Everything that reads its output; () if only attention, activations, norms or the residual stream do; None if
    that differs between families."""


_QKV: Final = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
_MLA: Final = ("attention.q_a_proj", "attention.kv_a_proj")
_MLP_INPUTS: Final = (
    "mlp.gate_proj",
    "mlp.up_proj",
    "moe.router",
    "moe.experts.gate_proj",
    "moe.experts.up_proj",
    "moe.experts.gate_up_proj",
    "moe.shared_experts.gate_proj",
    "moe.shared_experts.up_proj",
    "moe.shared_expert_gate",
)
_QKV_MEMBER: Final = Role("linear", "attention.qkv_proj", "attention.qkv_proj")
_CROSS_MEMBER: Final = Role("linear", "cross_attention.qkv_proj")


def _gated(container: str, kind: Kind) -> dict[str, Role]:
    """Gate, up, activation and down of one MLP, of all routed experts, or of the shared experts."""
    fused = f"{container}.gate_up_proj"
    down = f"{container}.down_proj"
    return {
        f"{container}.gate_proj": Role(kind, fused, fused),
        f"{container}.up_proj": Role(kind, fused, fused),
        fused: Role(kind, group=fused),
        f"{container}.act": Role("activation", feeds=(down,)),
        down: Role(kind, group=down if kind == "moe" else ""),
    }


BLOCK: Final[Mapping[str, Role]] = {
    "input_norm": Role("norm", feeds=(*_QKV, *_MLA, "mixer.in_proj")),
    "post_attention_norm": Role("norm", feeds=_MLP_INPUTS),
    "cross_attention_norm": Role("norm", feeds=("cross_attention.q_proj",)),
    "pre_mlp_norm": Role("norm", feeds=_MLP_INPUTS),
    "post_mlp_norm": Role("norm"),
    "attention": Role("attention", feeds=("attention.o_proj",)),
    "attention.q_proj": _QKV_MEMBER,
    "attention.k_proj": _QKV_MEMBER,
    "attention.v_proj": _QKV_MEMBER,
    "attention.qkv_proj": Role("linear", group="attention.qkv_proj"),
    "attention.q_a_proj": Role("linear", "attention.qkv_proj", "attention.qkv_a_proj"),
    "attention.kv_a_proj": Role("linear", "attention.qkv_proj", "attention.qkv_a_proj"),
    "attention.q_b_proj": Role("linear", "attention.qkv_proj"),
    "attention.kv_b_proj": Role("linear", "attention.qkv_proj"),
    "attention.q_a_norm": Role("norm", feeds=("attention.q_b_proj",)),
    "attention.kv_a_norm": Role("norm", feeds=("attention.kv_b_proj",)),
    "attention.q_norm": Role("norm"),
    "attention.k_norm": Role("norm"),
    "attention.o_proj": Role("linear"),
    "attention.relative_position": Role("embedding"),
    "cross_attention": Role("attention", feeds=("cross_attention.o_proj",)),
    "cross_attention.q_proj": _CROSS_MEMBER,
    "cross_attention.k_proj": _CROSS_MEMBER,
    "cross_attention.v_proj": _CROSS_MEMBER,
    "cross_attention.qkv_proj": Role("linear"),
    "cross_attention.q_norm": Role("norm"),
    "cross_attention.k_norm": Role("norm"),
    "cross_attention.o_proj": Role("linear"),
    "cross_attention.relative_position": Role("embedding"),
    **_gated("mlp", "linear"),
    "moe.router": Role("router"),
    "moe.router_correction": Role("router"),
    "moe.experts": Role("moe"),
    **_gated("moe.experts", "moe"),
    **_gated("moe.shared_experts", "linear"),
    "moe.shared_expert_gate": Role("router"),
    # State-space and linear attention. Its projections agree with nothing: engines do not fuse them.
    "mixer": Role("other"),
    "mixer.in_proj": Role("linear"),
    "mixer.in_proj_qkvz": Role("linear"),
    "mixer.in_proj_qkv": Role("linear"),
    "mixer.in_proj_z": Role("linear"),
    "mixer.in_proj_ba": Role("linear"),
    "mixer.in_proj_b": Role("linear"),
    "mixer.in_proj_a": Role("linear"),
    "mixer.x_proj": Role("linear"),
    "mixer.dt_proj": Role("linear"),
    "mixer.conv1d": Role("conv"),
    "mixer.act": Role("activation"),
    "mixer.norm": Role("norm", feeds=("mixer.out_proj",)),
    "mixer.dt_norm": Role("norm", feeds=("mixer.dt_proj",)),
    "mixer.b_norm": Role("norm"),
    "mixer.c_norm": Role("norm"),
    "mixer.out_proj": Role("linear"),
}
"""Inside a block of any tower, relative to it."""

PREDICTION: Final[Mapping[str, Role]] = {
    "embedding": Role("embedding"),
    # Both are concatenated before eh_proj reads them: one quantized output cannot serve.
    "embedding_norm": Role("norm", feeds=None),
    "hidden_norm": Role("norm", feeds=None),
    "eh_proj": Role("linear"),
    "final_norm": Role("norm", feeds=("head",)),
    "head": Role("head"),
}
"""Inside a block of `mtp`, besides what every block may have."""

TOWER: Final[Mapping[str, Role]] = {
    "embedding": Role("embedding"),
    "position_embedding": Role("embedding"),
    "type_embedding": Role("embedding"),
    "patch_embedding": Role("conv"),
    "conv1": Role("conv"),
    "conv2": Role("conv"),
    "embedding_norm": Role("norm", feeds=None),
    "pre_norm": Role("norm"),
    "final_norm": Role("norm", feeds=None),
    "projection": Role("linear"),
}
"""Beside the blocks of a tower, relative to it: `vision.patch_embedding`."""

GLOBAL: Final[Mapping[str, Role]] = {
    "embedding": Role("embedding"),
    "position_embedding": Role("embedding"),
    "type_embedding": Role("embedding"),
    "embedding_norm": Role("norm", feeds=None),
    "final_norm": Role("norm", feeds=("head",)),
    "head": Role("head"),
    "head.next_sentence": Role("head"),
    "head.bias": Role("other"),
    "head_transform.proj": Role("linear"),
    "head_transform.act": Role("activation"),
    "head_transform.norm": Role("norm", feeds=None),
    "pooler.proj": Role("linear"),
    "pooler.act": Role("activation", feeds=None),
    "projector": Role("linear"),
    "projector.norm": Role("norm", feeds=None),
    "projector.linear_1": Role("linear"),
    "projector.act": Role("activation", feeds=("projector.linear_2",)),
    "projector.linear_2": Role("linear"),
}
"""Outside the blocks."""

FUSED_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "cross_attention.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
    "moe.shared_experts.gate_up_proj": ("gate_proj", "up_proj"),
    "moe.experts.gate_up_proj": ("gate_proj", "up_proj"),
}
"""What a layer that is stored fused holds, in the order in which it is stored."""

IMPLIED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("attention.q_proj", "attention.qkv_proj", "attention.kv_a_proj", "attention.kv_proj"),
    "cross_attention": ("cross_attention.q_proj", "cross_attention.qkv_proj"),
    "mlp.act": ("mlp.down_proj",),
    "moe.experts.act": ("moe.experts.down_proj", "moe.experts"),
    "moe.shared_experts.act": ("moe.shared_experts.down_proj",),
    "mixer.act": ("mixer.conv1d",),
    "head_transform.act": ("head_transform.proj",),
    "pooler.act": ("pooler.proj",),
    "projector.act": ("projector.linear_1",),
}
"""Layers that own no tensor → the layers whose presence shows that they are there."""


class Place(NamedTuple):
    """A canonical template taken apart."""

    prefix: str
    """Up to the part that roles are relative to, its dot included: `decoder.#.`, `vision.`, empty."""
    relative: str
    role: Role | None
    """None if the place is not in the vocabulary."""

    @property
    def tower(self) -> str:
        """`decoder`, `vision`, …; empty outside towers."""
        return self.prefix.partition(".")[0]

    @property
    def in_block(self) -> bool:
        """Whether it is inside a numbered block."""
        return any(part == INDEX or part.isdecimal() for part in self.prefix.split("."))

    @property
    def block_indices(self) -> int:
        """How many indices name the block."""
        return self.prefix.count(INDEX)


@cache
def place(canonical: str) -> Place:
    """Where a canonical template stands and what that means."""
    tower, _, rest = canonical.partition(".")
    if tower not in TOWERS or not rest:
        return Place("", canonical, GLOBAL.get(canonical))
    prefix = f"{tower}."
    in_block = False
    word, _, after = rest.partition(".")
    if after.startswith(f"{INDEX}.") and word != INDEX:
        # A second stack of the same modality: `vision.global_transformer.#`.
        prefix += f"{word}."
        rest = after
    while (first := rest.partition("."))[1] and (first[0] == INDEX or first[0].isdecimal()):
        prefix += f"{first[0]}."
        rest = first[2]
        in_block = True
    if not in_block:
        return Place(prefix, rest, TOWER.get(rest))
    found = BLOCK.get(rest)
    if found is None and tower == "mtp":
        found = PREDICTION.get(rest)
    return Place(prefix, rest, found)


def canonical_names() -> Iterator[str]:
    """Every canonical template of the vocabulary, whatever the model."""
    for tower in TOWERS:
        for relative in BLOCK:
            yield f"{tower}.{INDEX}.{relative}"
        for relative in TOWER:
            yield f"{tower}.{relative}"
    for relative in PREDICTION:
        yield f"mtp.{INDEX}.{relative}"
    yield from GLOBAL
