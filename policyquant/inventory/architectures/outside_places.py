"""The place of one layer outside the blocks: embeddings, final norms, heads, what joins two towers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Final

from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.architectures.towers import Tower
from policyquant.inventory.architectures.vocabulary import GLOBAL, TOWER
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX, StoredSet

Rows = list[tuple[str, str, Kind | None]]
"""Name (a number stands for that index alone), canonical template or nothing, kind where the place does not tell it."""

_INTERNVL_PROJECTOR: Final = {0: "norm", 1: "linear_1", 3: "linear_2"}
"""InternVL's `mlp1` is a sequence of norm, linear, GELU, linear."""


def shared_parts(first: Sequence[str], second: Sequence[str]) -> int:
    """How many leading parts two names have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class Outside:
    """All that is known about a model when its layers outside blocks are placed."""

    def __init__(
        self,
        stored: Sequence[StoredSet],
        towers: Sequence[Tower],
        suffixes: Mapping[str, Collection[str]],
        children: Mapping[str, Collection[str]],
    ) -> None:
        """
        Args:
            stored: All layers of the model.
            towers: Its stacks of blocks.
            suffixes: Template of each layer → the tensors that it owns.
            children: Name of each module → last parts of what is right inside it.
        """
        self._stored = stored
        self._towers = towers
        self._suffixes = suffixes
        self._children = children
        names = [tower.name for tower in towers]
        self._main = next((name for name in ("decoder", "encoder") if name in names), "")
        self._shares_embedding = any(each.template.rpartition(".")[2] == "shared" for each in stored)

    def rows(self, each: StoredSet) -> Rows:
        """Place one set of layers: one row, unless its index tells different layers apart."""
        template = each.template
        parts = words.unwrapped(template).lower().split(".")
        tower = self._tower(parts)
        if any(word in part for part in parts for word in words.PROJECTOR) and parts[-1] not in words.HEADS:
            return self._projector(each)
        finders: tuple[Callable[[str, Sequence[str], str], tuple[str, Kind | None] | None], ...] = (
            self._prediction,
            self._patches,
            self._head,
            self._embedding,
            self._norm,
            self._other,
        )
        for find in finders:
            found = find(template, parts, tower)
            if found is not None:
                canonical, kind = found
                if "." in tower and kind is None:  # The vocabulary has names for one tower of each modality only.
                    word = canonical.removeprefix(f"{tower}.")
                    role = TOWER.get(word) or GLOBAL.get(word)
                    kind = role.kind if role else None
                return [(template, canonical, kind)]
        return [(template, "", None)]

    def spelled(self, template: str) -> str:
        """A canonical name of its own for a layer whose place is not known or belongs to another layer."""
        parts = template.lower().split(".")
        at = next((at for at, part in enumerate(parts) if any(word in part for word in words.PROJECTOR)), None)
        if at is not None:
            return ".".join(["projector", *parts[at:]])
        prefix = self._prefix(self._tower(parts))
        if prefix:
            paths = [tower.blocks.lower().split(".") for tower in self._towers if f"{tower.prefix}." == prefix]
            shared = max((shared_parts(path, parts) for path in paths), default=0)
            if not shared:
                words_of_tower = (*words.VISION, *words.AUDIO)
                shared = next((at + 1 for at, part in enumerate(parts) if part.startswith(words_of_tower)), 0)
            parts = parts[shared:] or parts[-1:]
        below = [part for part in parts if part not in ("encoder", "decoder", "model", "transformer")]
        return f"{prefix}{'.'.join(below or parts)}"

    def _tower(self, parts: Sequence[str]) -> str:
        """The prefix of the tower that a layer belongs to; empty if it stands apart from all."""
        for name, beginnings in (("mtp", words.PREDICTION), ("audio", words.AUDIO), ("vision", words.VISION)):
            if any(part.startswith(beginnings) for part in parts):
                return name
        if len(self._towers) == 1:
            return self._towers[0].prefix
        best = ("", 0)
        for tower in self._towers:
            path = tower.blocks.lower().split(".")[:-2]
            shared = 0
            while shared < min(len(path), len(parts) - 1) and path[shared] == parts[shared]:
                shared += 1
            if shared > best[1]:
                best = (tower.prefix, shared)
        return best[0]

    def _prefix(self, tower: str) -> str:
        return "" if tower in (self._main, "") else f"{tower}."

    def _prediction(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        if tower != "mtp":
            return None
        word = next((part for part in reversed(parts) if part != INDEX), "")
        found = words.PREDICTION_LEAVES.get(word)
        # Models with one prediction layer leave its number out.
        return (f"mtp.{INDEX if INDEX in parts else 0}.{found}" if found else "", None)

    def _patches(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        if parts[-1] == "vision_embed_tokens" and "weight" in self._suffixes[template]:
            return "vision.patch_embedding", "linear"  # Fuyu's patches are read by a linear layer.
        if not any("patch_embed" in part for part in parts):
            return None
        if words.EMBEDDINGS.get(parts[-1]) == "position_embedding":
            return f"{tower or 'vision'}.position_embedding", None
        if words.kind_by_word(parts[-1], "") == "norm":
            return "", "norm"
        return f"{tower or 'vision'}.patch_embedding", "conv"

    def _head(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        last, two = parts[-1], ".".join(parts[-2:])
        transform = words.HEAD_TRANSFORMS.get(two) or words.HEAD_TRANSFORMS.get(last)
        if transform and not self._prefix(tower):
            return f"head_transform.{transform}", None
        if two == "text_model.head" and self._prefix("vision"):
            return "encoder.projection", None  # SigLIP's, as CLIP's text_projection.
        if two.endswith("pooler.dense") or (last == "pooler" and "weight" in self._suffixes[template]):
            return "pooler.proj", None
        if last == "seq_relationship":
            return "head.next_sentence", None
        if last == "predictions":
            return "head.bias", None
        if last in words.HEADS or two in words.HEADS or template == "decoder":
            if set(self._suffixes[template]) <= {"bias"} and self._children.get(template):
                return "head.bias", None
            if not self._prefix(tower) or all(each.name == tower for each in self._towers):
                return "head", None
            if tower.startswith("decoder."):
                return f"{tower}.head", None
        return None

    def _embedding(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        last, two = parts[-1], ".".join(parts[-2:])
        prefix = self._prefix(tower)
        suffixes = self._suffixes[template]
        if all(any(word in suffix for word in words.BARE_EMBEDDINGS) for suffix in suffixes):
            return f"{prefix}embedding", None
        found = words.EMBEDDINGS.get(two) or words.EMBEDDINGS.get(last)
        if not found or (last == "embeddings" and "weight" not in suffixes):
            return None
        if tower == "decoder" and found == "embedding" and self._shares_embedding and last != "shared":
            prefix = "decoder."
        return f"{prefix}{found}", None

    def _norm(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        prefix = self._prefix(tower)
        found = words.FINAL_NORMS.get(parts[-1])
        if parts[-1] == "embedding_norm" and "layers" in self._children[template.rpartition(".")[0]]:
            found = "final_norm"  # LFM2 calls its last norm so.
        return (f"{prefix}{found}", None) if found and (prefix or found == "final_norm") else None

    def _other(self, template: str, parts: Sequence[str], tower: str) -> tuple[str, Kind | None] | None:
        last = parts[-1]
        if last in ("text_projection", "visual_projection"):
            return f"{'encoder' if last == 'text_projection' else 'vision'}.projection", None
        if tower == "audio" and last in ("conv1", "conv2"):
            return f"audio.{last}", None
        return (self.spelled(template), None) if self._prefix(tower) else None

    def _projector(self, each: StoredSet) -> Rows:
        template = each.template
        parts = template.lower().split(".")
        last = parts[-1]
        if last == INDEX and template.count(INDEX) == 1:
            places = self._sequence(template)
            if places:
                stem = template.removesuffix(INDEX)
                return [(f"{stem}{i}", f"projector.{places[i]}" if i in places else "", None) for (i,) in each.indices]
        if INDEX not in parts:
            found = "norm" if words.kind_by_word(last, "") == "norm" else last
            found = {"up_proj": "linear_1", "down_proj": "linear_2"}.get(words.MLP_LEAVES.get(last, ""), found)
            if found in ("norm", "linear_1", "linear_2"):
                return [(template, f"projector.{found}", None)]
        at = next(i for i, part in enumerate(parts) if any(word in part for word in words.PROJECTOR))
        rest = template.split(".")[at + 1 :]
        bare = not rest and "weight" not in self._suffixes[template]
        return [(template, ".".join(["projector", *rest]), "other" if bare else None)]

    def _sequence(self, template: str) -> Mapping[int, str]:
        """Places by index of a projector that is an `nn.Sequential`; empty if they are not known."""
        if template.lower().endswith(f"mlp1.{INDEX}"):
            return _INTERNVL_PROJECTOR
        numbers = sorted({i[-1] for s in self._stored if s.template == template for i in s.indices})
        return {numbers[0]: "linear_1", numbers[1]: "linear_2"} if len(numbers) == 2 else {}
