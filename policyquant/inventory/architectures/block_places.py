"""The place of one layer inside a block, told from what it and its fellows are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX

_GATED_BY_SECOND = "c_proj"
"""Qwen 1 calls gate and up w2 and w1, and down c_proj."""

_ONLY_PREDICTION = frozenset({"eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head"})
"""What a block of a decoder has only if it is a prediction layer behind the last."""


_STACKED = frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj", "input_linear", "output_linear"})
"""What the projections of all experts are called where they stand right in the module of the mixture."""

_CORRECTIONS = frozenset({"e_score_correction_bias", "expert_bias", "router_bias"})

_GROK = {"linear": "gate_proj", "linear_v": "up_proj", "linear_1": "down_proj"}


class Block:
    """One layer of a block."""

    def __init__(
        self,
        tail: Sequence[str],
        name: str,
        children: Mapping[str, AbstractSet[str]],
        suffixes: Collection[str],
        *,
        linear_attention: bool = False,
    ) -> None:
        """
        Args:
            tail: Parts of the name inside the block.
            name: The whole name.
            children: Name of each module → last parts of what is right inside it, in lower case. Made once for all:
                a module may hold very many.
            suffixes: The tensors that the layer owns.
            linear_attention: Whether the attention module that it is in, if any, is a mixer.
        """
        bare = words.unwrapped(name)
        tail = tail[: len(tail) - (name.count(".") - bare.count("."))]
        name = bare
        parts = [part for part in tail if part.lower() not in words.WRAPPERS]
        if parts[-1:] == [INDEX] and parts[-2:-1] and parts[-2].lower() == "to_out":
            parts = parts[:-1]
        self._exact_leaf = parts[-1] if parts else ""
        self._exact = parts
        self._parts = [part.lower() for part in parts]
        self._leaf = self._parts[-1] if parts else ""
        self._before = self._parts[:-1]
        parent = name.rpartition(".")[0]
        self._fellows = children.get(parent, frozenset())
        self._inside = children.get(name, frozenset())
        self._suffixes = frozenset(suffixes)
        self._linear_attention = linear_attention
        self.kind: Kind | None = None
        """Set by `place` where the place is not in the vocabulary but the kind is known."""

    def place(self, tower: str) -> str:
        """Place relative to the block; empty if it is not known."""
        finders = (self._correction, self._expert, self._router, self._attention, self._mixer, self._flat, self._norm)
        for find in (*finders, self._mlp):
            found = find()
            if found is not None:
                return found
        two = ".".join(self._parts[-2:])
        if tower == "mtp" or self._leaf in _ONLY_PREDICTION or two in _ONLY_PREDICTION:
            return words.PREDICTION_LEAVES.get(two) or words.PREDICTION_LEAVES.get(self._leaf, "")
        return ""

    def _expert(self) -> str | None:
        parts = self._parts
        shared = next((at for at, p in enumerate(self._before) if p.startswith(words.SHARED_EXPERTS)), None)
        if shared is not None:
            found = self._mlp_leaf()
            return f"moe.shared_experts.{found}" if found else self._as_spelled("moe.shared_experts", shared)
        if "router" in parts:
            return None
        if "experts" in parts:
            at = parts.index("experts")
            attention = next((i for i, part in enumerate(parts[:at]) if part in words.ATTENTION), None)
            if attention is not None:  # JetMoE's queries have experts too.
                self.kind = "moe"
                return self._as_spelled("attention", attention)
            rest = [part for part in parts[at + 1 :] if part != INDEX]
            if not rest or rest == ["mlp"]:
                return "moe.experts"
            found = self._mlp_leaf()
            self.kind = None if found else "moe"
            return f"moe.experts.{found}" if found else self._as_spelled("moe.experts", at)
        if self._before and self._holds_all_experts():
            found = self._mlp_leaf()
            return f"moe.experts.{found}" if found else None
        return None

    def _holds_all_experts(self) -> bool:
        """Whether the module right around is a mixture of experts without a module for them: 3-D projections."""
        if "experts" in self._fellows:
            return False
        stacked = self._leaf in _STACKED
        routed = "router" in self._fellows or ("gate" in self._fellows and stacked)
        return stacked and (self._before[-1] in words.MOE or (routed and self._before[-1] in words.MLP))

    def _correction(self) -> str | None:
        bare = bool(self._suffixes) and self._suffixes <= _CORRECTIONS
        return "moe.router_correction" if bare or self._leaf == "moe_statics" else None

    def _router(self) -> str | None:
        leaf = self._leaf
        if leaf.startswith("shared_expert") and leaf.endswith("gate"):
            return "moe.shared_expert_gate"
        with_experts = "experts" in self._fellows or not words.MOE.isdisjoint(self._before)
        if "router" in self._parts and leaf != "router" and words.kind_by_word(leaf, "") == "norm":
            return self._as_spelled("moe.router", self._parts.index("router"))
        if leaf == "router" or "router" in self._before or (leaf == "gate" and with_experts):
            if not words.ATTENTION.isdisjoint(self._before):
                self.kind = "router"
                return self._as_spelled("attention", self._at(words.ATTENTION))
            return "moe.router"
        if self._before[-1:] == ["gate"] and leaf in ("wg", "linear", "proj"):
            return "moe.router"
        return None

    def _attention(self) -> str | None:
        at, container = self._container(words.CROSS_ATTENTION), "cross_attention"
        if at is None:
            at, container = self._container(words.ATTENTION), "attention"
        if at is None or self._linear_attention:
            return None
        rest = [part for part in self._parts[at + 1 :] if part not in words.ATTENTION]
        if not rest:
            return container
        if rest[:1] == ["output"] and len(rest) == 2:
            if rest[1] == "dense":
                return f"{container}.o_proj"
            if words.kind_by_word(rest[1], "") == "norm" and container == "attention":
                return "post_attention_norm"
        found = words.ATTENTION_LEAVES.get(rest[0]) if len(rest) == 1 else None
        return f"{container}.{found}" if found else self._as_spelled(container, at)

    def _mixer(self) -> str | None:
        at = self._container(words.ATTENTION if self._linear_attention else words.MIXER)
        if at is None:
            return None
        rest = self._parts[at + 1 :]
        if not rest:
            return "mixer"
        if len(rest) > 1:
            return self._as_spelled("mixer", at)
        if self._parts[at] in words.ANY_MIXER:
            attention = words.ATTENTION_LEAVES.get(rest[0], "")
            own = attention in ("q_proj", "k_proj", "v_proj") or rest[0] in ("qkv_proj", "wqkv", "o_proj")
            if own or (attention == "o_proj" and "wqkv" in self._fellows and "in_proj" not in self._fellows):
                return f"attention.{attention}"
            mlp = words.MLP_LEAVES.get(rest[0])
            if mlp:
                return f"mlp.{mlp}"
        found = words.MIXER_LEAVES.get(rest[0])
        return f"mixer.{found}" if found else self._as_spelled("mixer", at)

    def _flat(self) -> str | None:
        """Right inside the block, which does itself what others have modules for."""
        leaf = self._leaf
        if len(self._parts) != 1:
            return None
        if leaf == "wo" and not {"wqkv", "wq"}.isdisjoint(self._fellows):
            return "attention.o_proj"
        if leaf == "ffn" and "ffn_output" in self._fellows:
            return "mlp.up_proj"
        return words.BLOCK_LEAVES.get(leaf)

    def _norm(self) -> str | None:
        if self._leaf in ("norm0", "norm1") and len(self._parts) == 1 and "norm0" in self._fellows:
            return "input_norm" if self._leaf == "norm0" else "post_attention_norm"
        if len(self._parts) > 2 or words.kind_by_word(self._leaf, "") != "norm":
            return None
        return words.BLOCK_NORMS.get(".".join(self._parts))

    def _mlp(self) -> str | None:
        two = ".".join(self._parts[-2:])
        if two == "intermediate.dense":
            return "mlp.up_proj"
        if two == "output.dense":
            return "mlp.down_proj"
        if self._before and words.MLP.isdisjoint(self._before):
            return None
        if not self._before and self._leaf not in words.MLP_LEAVES:
            return None
        found = self._mlp_leaf() if self._leaf not in words.MLP else None
        if self._leaf in words.ACTIVATIONS and not any("weight" in suffix for suffix in self._suffixes):
            found = "act"  # With parameters of its own, as xIELU.
        if found:
            return f"mlp.{found}"
        at = next((at for at, part in enumerate(self._before) if part in words.MLP), None)
        return None if at is None else self._as_spelled("mlp", at)

    def _mlp_leaf(self) -> str | None:
        leaf, fellows = self._leaf, self._fellows
        if leaf == INDEX:
            return None
        if "fc0" in fellows and leaf in ("fc0", "fc1"):
            return "up_proj" if leaf == "fc0" else "down_proj"
        if "linear_v" in fellows and leaf in _GROK:
            return _GROK[leaf]
        if self._exact_leaf == "Wi":  # ModernBERT: input and gate in one.
            return "gate_up_proj"
        if leaf in ("w1", "w2", "w3", "v1"):
            if "w3" in fellows or "v1" in fellows:
                return {"w1": "gate_proj", "w2": "down_proj"}.get(leaf, "up_proj")
            if _GATED_BY_SECOND in fellows:
                return {"w1": "up_proj", "w2": "gate_proj"}[leaf]
            return {"w1": "up_proj", "w2": "down_proj"}[leaf]
        return words.MLP_LEAVES.get(leaf)

    def _at(self, known: Collection[str]) -> int:
        return next(at for at, part in enumerate(self._parts) if part in known)

    def _as_spelled(self, container: str, at: int) -> str:
        """A place that the vocabulary does not have: inside a known module, as the model itself calls it."""
        rest = self._exact[at + 1 :]
        if rest[-2:] == ["net", INDEX]:  # Diffusers' feed-forward: a projection, dropout, a linear.
            self.kind = "linear"
        return ".".join([container, *rest])

    def _container(self, known: Collection[str]) -> int | None:
        """Position of the first part that is one of `known`; the last part counts only if it holds others."""
        for at, part in enumerate(self._parts):
            if part in known and (at < len(self._parts) - 1 or self._inside or part not in ("conv", "norm")):
                return at
        return None
