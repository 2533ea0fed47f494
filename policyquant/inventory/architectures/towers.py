"""Which stacks of blocks a model of an unknown family has, and what each is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.architectures.vocabulary import PREDICTION
from policyquant.inventory.layers import INDEX, StoredSet

_IN_BLOCKS = frozenset().union(
    words.ATTENTION,
    words.CROSS_ATTENTION,
    words.MIXER - {"conv"},
    words.MLP,
    words.BLOCK_LEAVES,
    {"intermediate", "fc1"},
)
"""Parts that only stacks of blocks have. `conv` alone may be a feature extractor."""

_STACKS = frozenset(
    {"encoder", "decoder", "transformer", "model", "layer", "layers", "h", "block", "blocks", "albert_layers"}
)
_TEXT_EMBEDDINGS = frozenset(
    {"embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "token_embedding"}
)


@dataclass(frozen=True, slots=True)
class Tower:
    """One stack of blocks."""

    name: str
    """`decoder`, `vision`, …"""
    blocks: str
    """What the names of its blocks begin with: `model.layers.`."""
    extra: str = ""
    """Tells it from an earlier stack with the same name."""

    @property
    def prefix(self) -> str:
        """What canonical names beside its blocks begin with, its dot left out: `vision`, `decoder.talker`."""
        return f"{self.name}.{self.extra}" if self.extra else self.name

    def holds(self, template: str) -> bool:
        """Whether a layer is inside one of its blocks, or is one."""
        return f"{template}.".startswith(f"{self.blocks}{INDEX}.")

    def tails(self, each: StoredSet, stored: Sequence[StoredSet]) -> Iterator[tuple[str, list[str]]]:
        """Row and parts inside the block of a set of layers: one, unless its inner index tells different layers apart.

        T5 and its like number the thirds of a block: `block.#.layer.#.layer_norm` is three norms.
        """
        parts = each.template[len(self.blocks) :].split(".")[1:]
        if parts[:2] != ["layer", INDEX] or len(parts) < 3:
            yield each.template, parts
            return
        rest = parts[2:]
        if rest != ["layer_norm"]:
            yield each.template, rest
            return
        before = f"{self.blocks}{INDEX}.layer"
        for number in sorted({indices[1] for indices in each.indices}):
            fellows = {
                other.template[len(before) + 3 :].partition(".")[0].lower()
                for other in stored
                if other.template.startswith(f"{before}.{INDEX}.") and any(i[1] == number for i in other.indices)
            }
            norm = "post_attention_layernorm"
            if fellows & words.CROSS_ATTENTION:
                norm = "encoder_attn_layer_norm"
            elif fellows & words.ATTENTION:
                norm = "input_layernorm"
            yield f"{before}.{number}.layer_norm", [norm]

    def canonical(self, relative: str, tail: Sequence[str]) -> str:
        """Canonical template of a place in a block; of the tail as it is if the place is not known."""
        name = "mtp" if self.name == "decoder" and relative in PREDICTION else self.name
        prefix = f"{name}.{self.extra}.{INDEX}." if self.extra else f"{name}.{INDEX}."
        if len(tail) > len(inner := inside(tail)):
            prefix += f"{INDEX}."
            tail = inner
        return prefix + (relative or ".".join(tail)) if relative or tail else prefix[:-1]


def inside(tail: Sequence[str]) -> Sequence[str]:
    """Parts inside the innermost block: Swin's stages are blocks of blocks."""
    return tail[2:] if len(tail) > 2 and tail[1] == INDEX and tail[0] in _STACKS else tail


def find_towers(stored: Sequence[StoredSet], config: Mapping[str, object]) -> list[Tower]:
    """The stacks of a model, the decoder first."""
    stacks: dict[str, bool] = {}
    for each in stored:
        before, found, tail = each.template.partition(f"{INDEX}.")
        if found and not any(word in before.lower() for word in words.PROJECTOR):
            like_blocks = not _IN_BLOCKS.isdisjoint(tail.lower().split("."))
            stacks[before] = stacks.get(before, False) or like_blocks
    towers: list[Tower] = []
    for blocks in (b for b, like_blocks in stacks.items() if like_blocks):
        name = _name(blocks.rstrip(".").split("."), [each.template for each in stored], list(stacks), config)
        extra = ""
        if any(tower.name == name for tower in towers):
            path = [part for part in blocks.rstrip(".").split(".")[:-1] if part not in _STACKS]
            extra = path[-1] if path else blocks.rstrip(".").rpartition(".")[2]
            while any(tower.name == name and tower.extra == extra for tower in towers):
                extra += "_"
        towers.append(Tower(name, blocks, extra))
    return sorted(towers, key=lambda tower: tower.name != "decoder")


def _name(path: Sequence[str], templates: Sequence[str], stacks: Sequence[str], config: Mapping[str, object]) -> str:
    lower = [part.lower() for part in path]
    for name, beginnings in (("mtp", words.PREDICTION), ("audio", words.AUDIO), ("vision", words.VISION)):
        if any(part.startswith(beginnings) for part in lower):
            return name
    model_type = str(config.get("model_type", "")).lower()
    if model_type in words.AUDIO_MODELS and "decoder" not in lower:
        return "audio"
    root = list(path[:-1])
    while root and root[-1].lower() in _STACKS:
        root.pop()
    inside = [t for t in templates if t.startswith(".".join([*root, ""]) if root else "")]
    if any("patch_embed" in t.lower() for t in inside) and not any(
        t.rpartition(".")[2].lower() in _TEXT_EMBEDDINGS for t in inside
    ):
        return "vision"
    if "decoder" in lower or "text_decoder" in lower:
        return "decoder"
    classes = architectures(config)
    if any("CausalLM" in each for each in classes) or model_type.startswith("chatglm"):
        return "encoder" if "encoder" in lower and any("decoder" in stack.lower() for stack in stacks) else "decoder"
    encodes = "encoder" in lower or any(".attn1." in t for t in inside)
    if "text_model" in lower and not encodes:
        # CLIP's and its like's read a text; Idefics' write one.
        writes = any("ConditionalGeneration" in each for each in classes)
        writes |= any(t.rpartition(".")[2] == "lm_head" for t in templates)
        encodes = not writes and not any(t.endswith(".mlp.gate_proj") for t in inside)
    alone = any(word in model_type for word in words.ENCODER_MODELS) or any("MaskedLM" in each for each in classes)
    hints = any(word in part for part in lower for word in words.ENCODER_MODELS)
    return "encoder" if encodes or alone or hints else "decoder"
