"""The names of a layer and of its parts in the three namespaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from policyquant.inventory.architectures.family import Entry, experts_module
from policyquant.inventory.architectures.vocabulary import Place, place
from policyquant.inventory.layers import INDEX, NameForm, Namespace, own_name

Names = dict[Namespace, tuple[NameForm, ...]]


@dataclass(frozen=True, slots=True)
class Namer:
    """Makes the names of one set of layers."""

    entry: Entry
    canonical: str
    offset: int
    stored: str | None
    """The tree's own template if the source is a module tree."""
    present: Collection[str]
    """Canonical templates of all layers of the model."""

    @property
    def place(self) -> Place:
        """Where the layer stands."""
        return place(self.canonical)

    @property
    def gated(self) -> bool:
        """Whether the MLP that the layer belongs to has a gate."""
        container = self.place.prefix + self.place.relative.rpartition(".")[0]
        return f"{container}.gate_proj" in self.present or f"{container}.gate_up_proj" in self.present

    def layer(self) -> Names:
        """Own names of a layer that has parts."""
        entry = self.entry
        return {
            "checkpoint": _forms((entry.checkpoint, True)),
            "module": _forms(*self._tree((entry.module, True))),
            "canonical": self._canonical((self.canonical, True)),
        }

    def plain(self) -> Names:
        """Names of a layer that is its own only part."""
        entry, where = self.entry, self.place
        checkpoint = [(entry.checkpoint, True)]
        module = [(entry.module, True)]
        canonical = [(self.canonical, True)]
        container = experts_module(entry.checkpoint)
        fused = self._fused_name()
        if fused:
            canonical.append((where.prefix + fused, False))
            if self._spelled(fused):
                checkpoint.append((_beside(entry.checkpoint, fused), False))
                if not container:
                    module.append((_beside(entry.module, fused), False))
                if self.stored is not None:
                    module.append((_beside(self.stored, fused), False))
        if container:
            projection = (fused or self.canonical).rpartition(".")[2]
            module[0] = (f"{entry.module}.{projection}", not fused)
            module.append((entry.module, False))
            canonical.append((f"{where.prefix}moe.experts", False))
        return {
            "checkpoint": _forms(*checkpoint),
            "module": _forms(*self._tree(*module)),
            "canonical": self._canonical(*canonical),
        }

    def fused_part(self, piece: str) -> Names:
        """Names of `q_proj` in a layer that stores q, k and v together, or of `gate_proj`, `up_proj` likewise."""
        entry, where = self.entry, self.place
        fused = where.relative
        own = f"{fused.rpartition('.')[0]}.{piece}"
        checkpoint = [(_beside(entry.checkpoint, piece), True), (entry.checkpoint, False)]
        module = [(_beside(entry.module, piece), True), (entry.module, False)]
        if experts_module(entry.checkpoint):
            module[0] = (f"{entry.module}.{fused.rpartition('.')[2]}", False)
        elif self._spelled(fused):
            checkpoint.append((_beside(entry.checkpoint, fused), False))
            module.append((_beside(entry.module, fused), False))
        if self.stored is not None:
            module = [(_beside(self.stored, piece), True), (self.stored, False), *module]
        return {
            "checkpoint": _forms(*checkpoint),
            "module": _forms(*module),
            "canonical": self._canonical((where.prefix + own, True), (self.canonical, False)),
        }

    def expert_part(self, parameter: str, projection: str) -> Names:
        """Names of one 3-D parameter of a module that holds all experts, where no expert has a name of its own."""
        entry = self.entry
        tree = [] if self.stored is None else [(f"{self.stored}.{parameter}", True)]
        return {
            "checkpoint": _forms((f"{entry.checkpoint}.{parameter}", True), (entry.checkpoint, False)),
            "module": _forms(*tree, (f"{entry.module}.{parameter}", True), (entry.module, False)),
            "canonical": self._canonical((f"{self.canonical}.{projection}", True), (self.canonical, False)),
        }

    def repeated_expert_part(self, own: str, checkpoint: str, *, gated: bool) -> Names:
        """Names of one expert's projection inside a 3-D parameter: those that it has when experts are stored singly."""
        entry = self.entry
        piece = own.rpartition(".")[2]
        fused = "gate_up_proj" if gated and piece != "down_proj" else ""
        names = [(checkpoint, True)]
        canonical = [(own, True)]
        if fused:
            names.append((_beside(checkpoint, fused), False))
            canonical.append((f"{self.canonical}.{fused}", False))
        canonical.append((self.canonical, False))
        module = [(f"{entry.module}.{fused or piece}", not fused), (entry.module, False)]
        return {
            "checkpoint": _forms(*names),
            "module": _forms(*module),
            "canonical": self._canonical(*canonical),
        }

    def _fused_name(self) -> str:
        role = self.place.role
        if role is None or not role.fused:
            return ""
        return "" if role.fused.endswith(".gate_up_proj") and not self.gated else role.fused

    def _spelled(self, fused: str) -> bool:
        """Whether a fused name exists outside the canonical namespace: not for cross-attention and latent attention."""
        latent = f"{self.place.prefix}attention.kv_b_proj" in self.present
        return not fused.startswith("cross_attention.") and not (fused == "attention.qkv_proj" and latent)

    def _tree(self, *names: tuple[str, bool]) -> Iterable[tuple[str, bool]]:
        """The tree's own name goes before the aliases that transformers v5 has for it."""
        return names if self.stored is None else ((self.stored, True), *names)

    def _canonical(self, *names: tuple[str, bool]) -> tuple[NameForm, ...]:
        return tuple(
            NameForm(template, tuple(range(count)), (self.offset, *(0,) * (count - 1)) if count else (), own)
            for template, own in dict.fromkeys(names)
            for count in (template.split(".").count(INDEX),)
            if template
        )


def _beside(name: str, relative: str) -> str:
    """`relative`'s last part as a sibling of `name`; inside the same wrapper if `name` is inside one."""
    wrapper = ".base_layer" if name.endswith(".base_layer") else ""
    name = name.removesuffix(wrapper)
    return name[: name.rfind(".") + 1] + relative.rpartition(".")[2] + wrapper


def _forms(*names: tuple[str, bool]) -> tuple[NameForm, ...]:
    seen: dict[str, bool] = {}
    for name, own in names:
        seen.setdefault(name, own)
    ordered = sorted(seen.items(), key=lambda item: not item[1])
    return tuple(own_name(name)._replace(own=own) for name, own in ordered)
