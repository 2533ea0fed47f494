"""One layer's scheme from the rules that reached it: the precedence of the policy language, in one place.

The last rule that reaches a layer wins. What makes this more than one line is that a rule may say only part of a
scheme, may not apply to the layer's kind, and may not touch a protected layer that it does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from policyquant.inventory.kinds import Kind, layers_of
from policyquant.plan.history import History, Hit
from policyquant.policy.methods import METHODS, WEIGHT_KINDS, FieldError
from policyquant.policy.policy import Default, Fields, Policy, SchemeFields
from policyquant.policy.scheme import BITS, NONE, Quantization, Scheme

DecidedBy = Literal["rule", "default", "tie", "protection", "nothing"]

EMITTERS: Final = frozenset[Kind]({"linear", "moe", "router", "norm", "activation", "attention", "embedding", "head"})
"""Kinds that emit an activation whose dtype `output` can set."""


class Facts(NamedTuple):
    """All that precedence needs to know of a layer."""

    kind: Kind
    protected: bool
    has_kv_cache: bool
    has_weight: bool
    """Whether it owns a weight that a method could quantize: at least two dimensions, or of unknown shape."""


Effect = Literal["decides", "refines", "passes", "stopped"]

Field = Literal["method", "weight or input", "output", "kv_cache"]
"""What a rule can say, each of which applies to a layer or not."""


class Step(NamedTuple):
    """What one rule that reached a layer did to it, when its turn came."""

    hit: Hit | None
    """None: the default."""
    effect: Effect
    reason: str
    """Why it passed over the layer or was stopped; else empty."""
    took: tuple[Field, ...] = ()
    """What it says that has an effect here."""
    ignored: tuple[tuple[Field, str], ...] = ()
    """What it says that has no effect here, and why, though the rest of it has."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A layer's scheme and where it comes from."""

    scheme: Scheme
    decided_by: DecidedBy
    hit: Hit | None
    """The rule that decided, for `decided_by` "rule" (and for "tie", the rule of the layer tied to)."""
    refined_by: tuple[Hit, ...]
    """Rules that set something of the final scheme besides the one that decided, in order."""
    beaten: tuple[Hit, ...]
    """Rules that applied when their turn came and of which nothing is left."""
    steps: tuple[Step, ...]
    output_fields: Fields | None = None
    """A quantized output as written, until the layer's readers complete it."""
    output_hit: Hit | None = None
    kv_cache_hit: Hit | None = None
    default_sets: bool = False
    """Whether the output or the KV cache is the default's."""
    history: History | None = None
    tied_to_nothing: bool = False
    """Whether it was settled by a tie to a layer that nothing written decided."""

    @property
    def named(self) -> bool:
        """Whether a rule that names the layer decided it."""
        return self.decided_by == "rule" and self.hit is not None and self.hit.named


class Decider:
    """Decides layers under one policy, each combination of facts and history once."""

    def __init__(self, policy: Policy, model_dtype: str) -> None:
        self._policy = policy
        self._model_dtype = model_dtype
        self._known: dict[tuple[Facts, History], Decision] = {}

    def decide(self, facts: Facts, history: History) -> Decision:
        """The decision for a layer with these facts that these rules reached."""
        key = (facts, history)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = _Fold(self._policy, self._model_dtype, facts).run(history)
        return known


class _Fold:
    """The rules of one history applied in order."""

    def __init__(self, policy: Policy, model_dtype: str, facts: Facts) -> None:
        self.policy = policy
        self.model_dtype = model_dtype
        self.facts = facts
        self.scheme = NONE
        self.decided: Hit | Default | None = None
        self.refined: list[Hit] = []
        self.output: str | Fields | None = None
        self.output_hit: Hit | Default | None = None
        self.kv_cache: Fields | None = None
        self.kv_cache_hit: Hit | Default | None = None
        self.kept_off = False
        """Whether protection stopped a method since the last decision."""
        self.steps: list[Step] = []

    def run(self, history: History) -> Decision:
        if self.policy.default is not None:
            self._apply(self.policy.default.fields, self.policy.default)
        for hit in history.hits():
            self._apply(self.policy.rules[hit.rule].fields, hit)
        return self._decision(history)

    def _apply(self, fields: SchemeFields, who: Hit | Default) -> None:
        hit = who if isinstance(who, Hit) else None
        named = hit is not None and hit.named
        outcomes: dict[Field, tuple[Effect, str]] = {}
        if fields.method is not None:
            outcomes["method"] = self._method(fields, named, who)
        elif fields.weight is not None or fields.input is not None:
            outcomes["weight or input"] = self._refine(fields, named, hit)
        if fields.output is not None:
            outcomes["output"] = self._output(fields.output, named, who)
        if fields.kv_cache is not None:
            outcomes["kv_cache"] = self._kv_cache(fields.kv_cache, named, who)
        effects = {effect for effect, _ in outcomes.values()}
        in_vain = tuple((said, why) for said, (effect, why) in outcomes.items() if effect in ("passes", "stopped"))
        took = tuple(said for said, (effect, _) in outcomes.items() if effect in ("decides", "refines"))
        if took:
            self.steps.append(Step(hit, "decides" if "decides" in effects else "refines", "", took, in_vain))
        else:
            reason = "; ".join(dict.fromkeys(reason for _, reason in in_vain))
            self.steps.append(Step(hit, "stopped" if "stopped" in effects else "passes", reason))

    def _method(self, fields: SchemeFields, named: bool, who: Hit | Default) -> tuple[Effect, str]:
        method = fields.method
        assert method is not None
        spec = METHODS[method]
        kind = self.facts.kind
        if method == "none":
            self.output = self.output_hit = self.kv_cache = self.kv_cache_hit = None
        elif kind not in spec.kinds:
            return "passes", f"{method} does not take {layers_of(kind)}"
        elif not self.facts.has_weight:
            return "passes", "a layer without a weight matrix has nothing to quantize"
        elif self.facts.protected and not named and method != "dequantize":
            self.kept_off = True
            return self._stopped()
        elif kind == "router" and not named:
            return "passes", f"{method} takes a router only if the rule names it"
        weight, input = spec.refine(spec.weight, spec.input, fields.weight, fields.input)
        self.scheme = Scheme(method, weight, input)
        self.decided = who
        self.refined = []
        self.kept_off = False
        return "decides", ""

    def _refine(self, fields: SchemeFields, named: bool, hit: Hit | None) -> tuple[Effect, str]:
        if self.facts.protected and not named:
            return self._stopped()
        if self.scheme.method == "none":
            return "passes", "nothing stands here that could be refined"
        spec = METHODS[self.scheme.method]
        try:
            weight, input = spec.refine(self.scheme.weight, self.scheme.input, fields.weight, fields.input)
        except FieldError as error:
            return "passes", str(error)
        self.scheme = Scheme(self.scheme.method, weight, input)
        if hit is not None:
            self.refined.append(hit)
        return "refines", ""

    def _output(self, output: str | Fields, named: bool, who: Hit | Default) -> tuple[Effect, str]:
        if self.facts.kind not in EMITTERS:
            return "passes", f"{layers_of(self.facts.kind)} have no output that could be set"
        if self.facts.protected and not named and (not isinstance(output, str) or self._lowers(output)):
            return self._stopped()
        self.output = None if output == "none" else output
        self.output_hit = who
        return "refines", ""

    def _lowers(self, output: str) -> bool:
        """Whether a plain output dtype (or `none`, the model's) has fewer bits than the output that stands."""
        stands = self.output if self.output is not None else self.model_dtype
        now = BITS[stands] if isinstance(stands, str) else BITS[str(stands["dtype"])]
        return BITS[self.model_dtype if output == "none" else output] < now

    def _kv_cache(self, kv_cache: str | Fields, named: bool, who: Hit | Default) -> tuple[Effect, str]:
        if self.facts.kind != "attention":
            return "passes", f"{layers_of(self.facts.kind)} have no KV cache"
        if not self.facts.has_kv_cache:
            return "passes", "this attention keeps no KV cache"
        if self.facts.protected and not named and not isinstance(kv_cache, str):
            return self._stopped()
        self.kv_cache = None if isinstance(kv_cache, str) else kv_cache
        self.kv_cache_hit = who
        return "refines", ""

    def _stopped(self) -> tuple[Effect, str]:
        return "stopped", f"{layers_of(self.facts.kind)} are protected, and this does not name the layer"

    def _decision(self, history: History) -> Decision:
        setters = (self.output_hit, self.kv_cache_hit)
        own = [who for who in setters if isinstance(who, Hit)]
        default_sets = any(isinstance(who, Default) for who in setters)
        decided_by: DecidedBy
        hit = self.decided if isinstance(self.decided, Hit) else None
        if hit is not None:
            decided_by = "rule"
        elif own and self.facts.kind not in WEIGHT_KINDS:
            # A layer without a weight method is decided by the rule that sets its output or its cache.
            decided_by, hit = "rule", own[-1]
        elif self.kept_off:
            decided_by = "protection"
        else:
            decided_by = "default" if self.decided is not None or default_sets else "nothing"
        kept = [h for h in dict.fromkeys((*self.refined, *own)) if h != hit]
        refined = tuple(sorted(kept, key=lambda h: h.rule))
        left = {hit, *refined}
        beaten = tuple(
            step.hit
            for step in self.steps
            if step.hit is not None and step.hit not in left and step.effect in ("decides", "refines")
        )
        output = self.output
        scheme = Scheme(
            self.scheme.method,
            self.scheme.weight,
            self.scheme.input,
            output if isinstance(output, str) else None,
            None if self.kv_cache is None else kv_cache_quantization(self.kv_cache),
        )
        return Decision(
            scheme,
            decided_by,
            hit,
            refined,
            beaten,
            tuple(self.steps),
            output_fields=None if isinstance(output, str) else output,
            output_hit=self.output_hit if isinstance(self.output_hit, Hit) else None,
            kv_cache_hit=self.kv_cache_hit if isinstance(self.kv_cache_hit, Hit) else None,
            default_sets=default_sets,
            history=history,
        )


def kv_cache_quantization(fields: Fields) -> Quantization:
    """A KV cache as written, completed: one static scale per tensor unless it says otherwise."""
    values = {"granularity": "tensor", "scheme": "static", **fields}
    return Quantization(**values)  # type: ignore[arg-type]  # names and types were checked when the policy was read
