"""The scheme part of a rule, a default or an expectation: nodes → `SchemeFields`, spellings normalised.

A method's name alone (`fp8`) and a mapping (`{method: fp8, weight: {…}, input: {…}, output: …, kv_cache: …}`) say the
same things; both are checked against what the method takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from policyquant.errors import Location, did_you_mean
from policyquant.policy import values
from policyquant.policy.document import Entry, MappingNode, Node, ScalarNode, describe, show
from policyquant.policy.methods import METHODS, Choices, FieldError, MethodSpec
from policyquant.policy.policy import Fields, SchemeFields
from policyquant.policy.problems import Problems
from policyquant.policy.scheme import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    INPUT_GRANULARITIES,
    QUANTIZED_DTYPES,
    SCALE_DTYPES,
    WEIGHT_GRANULARITIES,
    Quantization,
    spelled,
)

SCHEME_KEYS: Final = ("method", "weight", "input", "output", "kv_cache")

WEIGHT_FIELDS: Final[Mapping[str, values.Reader]] = {
    "dtype": values.word(QUANTIZED_DTYPES),
    "granularity": values.one_of(*WEIGHT_GRANULARITIES),
    "group": values.whole_number,
    "block": values.block,
    "symmetric": values.truth,
    "scale_dtype": values.word(SCALE_DTYPES),
    "global_scale_dtype": values.word({"fp32": "float32", "float32": "float32"}),
}
INPUT_FIELDS: Final[Mapping[str, values.Reader]] = {
    "dtype": values.word(QUANTIZED_DTYPES),
    "granularity": values.one_of(*INPUT_GRANULARITIES),
    "group": values.whole_number,
    "scheme": values.one_of("dynamic", "static"),
    "scale": values.scale,
    "scale_ub": values.scale,
    "scale_dtype": values.word(SCALE_DTYPES),
    "global_scale_dtype": values.word({"fp32": "float32", "float32": "float32"}),
}
OUTPUT_FIELDS: Final[Mapping[str, values.Reader]] = {
    "dtype": values.word({**FLOAT_DTYPES, **FP8_DTYPES}),
    "granularity": values.one_of("tensor", "token", "group"),
    "group": values.whole_number,
    "scheme": values.one_of("dynamic", "static"),
    "scale": values.scale,
}
KV_CACHE_FIELDS: Final[Mapping[str, values.Reader]] = {
    "dtype": values.word(FP8_DTYPES),
    "granularity": values.one_of("tensor", "head"),
    "scale": values.scale,
}

_OTHER_WORDS: Final[Mapping[str, str]] = {
    "activation": "input",
    "activations": "input",
    "block_size": "block",
    "cache": "kv_cache",
    "group_size": "group",
    "input_activations": "input",
    "kv_cache_dtype": "kv_cache",
    "output_activations": "output",
    "quant_method": "method",
    "strategy": "granularity",
    "weights": "weight",
    "weight_block_size": "block",
}
"""What other tools call our fields."""


class _Written(NamedTuple):
    """Fields of one tensor with the places of their values."""

    fields: Fields
    key: Location
    places: Mapping[str, Location]

    def place(self, name: str | None) -> Location:
        """Of a field's value; of the whole if the field was not written."""
        return self.places.get(name or "", self.key)

    def place_of(self, first: str, second: str) -> Location:
        """Of the first field if it was written, else of the second."""
        return self.place(first if first in self.places else second)


def unknown_key(entry: Entry, known: Iterable[str], problems: Problems, what: str = "key") -> None:
    """Note a key that is not known, with the nearest that is: by spelling, or as other tools call it."""
    known = tuple(known)
    other = _OTHER_WORDS.get(entry.name)
    problems.unknown(entry.key, what, known, f"; did you mean {other!r}?" if other in known else "")


def read_scheme(node: Node, name: str, problems: Problems) -> SchemeFields:
    """A method's name or a mapping of scheme fields: the value of a pattern, or a default. `name` is its key."""
    if not isinstance(node, MappingNode):
        return SchemeFields(method=_method(node, name, problems, "a method's name or a mapping"))
    for entry in node.entries:
        if entry.name in ("match", "kind", "optional"):
            problems.add(
                entry.key.location,
                f"`{entry.name}` does not stand here; only a rule of a list has it:"
                " `layers: [{match: pattern, kind: linear, optional: true, method: fp8}, …]`",
            )
        elif entry.name not in SCHEME_KEYS:
            unknown_key(entry, SCHEME_KEYS, problems, "key of a scheme")
    return scheme_of(node, SCHEME_KEYS, problems)


def scheme_of(node: MappingNode, known: Iterable[str], problems: Problems) -> SchemeFields:
    """The scheme fields of a mapping. The caller reads its other keys and notes those that are not `known`."""
    by_name = {entry.name: entry for entry in node.entries if entry.name in SCHEME_KEYS}
    if not by_name:
        if all(entry.name in known for entry in node.entries):  # Else a key of it is misspelled, and that was noted.
            words = ", ".join(SCHEME_KEYS)
            problems.add(node.location, f"no scheme here; expected a method's name or one of: {words}")
        return SchemeFields()
    method = _method(by_name["method"].value, "method", problems, "a method's name") if "method" in by_name else None
    weight = _read_fields("weight", by_name["weight"], WEIGHT_FIELDS, problems) if "weight" in by_name else None
    input = _read_fields("input", by_name["input"], INPUT_FIELDS, problems) if "input" in by_name else None
    written = {side: fields for side, fields in (("weight", weight), ("input", input)) if fields is not None}
    if written and ("method" not in by_name or method is not None):
        _check_against_methods(method, written, problems)
    return SchemeFields(
        method,
        weight and weight.fields,
        input and input.fields,
        _output(by_name.get("output"), problems),
        _kv_cache(by_name.get("kv_cache"), problems),
    )


def _method(node: Node, name: str, problems: Problems, expected: str) -> str | None:
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, str) and value in METHODS:
        return value
    if isinstance(value, str) and value:
        known = ", ".join(METHODS.names())
        problems.add(node.location, f"unknown method {show(value)}{_method_advice(value)} (known: {known})")
    else:
        nothing = isinstance(node, ScalarNode) and (value is None or value is False)
        values.wrong(node, name, expected, problems, values.WRITE_NONE if nothing else "")
    return None


def _method_advice(written: str) -> str:
    from policyquant.policy.presets import is_preset

    if is_preset(written):
        return "; a preset's name stands in `extends`"
    return did_you_mean(written, METHODS.names())


def _read_fields(name: str, entry: Entry, readers: Mapping[str, values.Reader], problems: Problems) -> _Written | None:
    if not isinstance(entry.value, MappingNode):
        advice = ""
        if isinstance(entry.value, ScalarNode) and entry.value.value in ("none", None, False):
            advice = "; methods that leave activations alone end in _weight_only" if name == "input" else ""
        values.wrong(entry.value, name, f"a mapping of {', '.join(readers)}", problems, advice)
        return None
    fields: dict[str, object] = {}
    places: dict[str, Location] = {}
    for field in entry.value.entries:
        reader = readers.get(field.name)
        if reader is None:
            unknown_key(field, readers, problems, f"field of `{name}`")
            continue
        places[field.name] = field.value.location
        value = reader(field.value, field.name, problems)
        if value is not None:
            fields[field.name] = value
    if not entry.value.entries:
        problems.add(entry.value.location, f"`{name}` says nothing; expected at least one of {', '.join(readers)}")
    if not fields or len(fields) != len(entry.value.entries):
        return None
    written = _Written(Fields(_with_granularity(fields)), entry.key.location, places)
    contradictions = list(_contradictions(name, written))
    for place, message in contradictions:
        problems.add(place, message)
    return None if contradictions else written


def _with_granularity(fields: Mapping[str, object]) -> dict[str, object]:
    """The same fields, with the granularity that they imply if they do not say one."""
    if "group" in fields:
        implied = "group"
    elif "block" in fields:
        implied = "block"
    elif fields.get("scheme") == "static":
        implied = "tensor"  # One fixed scale cannot follow tokens.
    else:
        return dict(fields)
    return {**fields, "granularity": fields.get("granularity", implied)}


def _contradictions(name: str, written: _Written) -> Iterator[tuple[Location, str]]:
    """Fields that disagree with each other."""
    fields = written.fields
    for field in ("group", "block"):
        if field in fields and fields["granularity"] != field:
            yield (
                written.place_of("granularity", field),
                f"`{field}` contradicts granularity {fields['granularity']} of `{name}`",
            )
    if fields.get("scheme") == "static" and fields["granularity"] == "token":
        yield written.place("granularity"), f"a static {name} scale is fixed beforehand and cannot be per token"
    for field, scheme in (("scale", "static"), ("scale_ub", "dynamic")):
        if field in fields and fields.get("scheme", scheme) != scheme:
            yield written.place("scheme"), f"`{field}` needs scheme: {scheme}"
    granularity = fields.get("granularity", "tensor")
    if "scale" in fields and granularity != "tensor":
        yield (
            written.place_of("granularity", "scale"),
            f"`scale` is one number for the whole {name}, which contradicts granularity {granularity}",
        )


def _check_against_methods(method: str | None, written: Mapping[str, _Written], problems: Problems) -> None:
    if method == "none":
        for side, fields in written.items():
            problems.add(fields.key, f"method none leaves a layer as stored; it takes no `{side}`")
    elif method is not None:
        for side, fields in written.items():
            _check_against_method(METHODS[method], side, fields, problems)
    else:
        _check_without_method(written, problems)


def _check_against_method(spec: MethodSpec, side: str, written: _Written, problems: Problems) -> None:
    sides = (written.fields, None) if side == "weight" else (None, written.fields)
    try:
        spec.refine(spec.weight, spec.input, *sides)
    except FieldError as error:
        problems.add(written.place(error.field), str(error))


def _check_without_method(written: Mapping[str, _Written], problems: Problems) -> None:
    """A rule without a method refines what stands; some method must be able to stand there."""
    refused = _refused_by(METHODS.values(), written)
    # Methods that packages bring are loaded only if none of ours can be meant.
    if refused is not None and _refused_by((*METHODS.values(), *METHODS.brought()), written) is not None:
        problems.add(*refused)


def _refused_by(specs: Iterable[MethodSpec], written: Mapping[str, _Written]) -> tuple[Location, str] | None:
    """The first field, and why, after which none of these methods could take all that is written; None if one can."""
    able = list(specs)
    for side, fields in written.items():
        for name, value in fields.fields.items():
            still_able = [spec for spec in able if _could_take(spec, side, name, value)]
            if not still_able:
                return fields.place(name), f"no method takes this {side}{_who_takes(able, side, name)}"
            able = still_able
    return None


def _could_take(spec: MethodSpec, side: str, name: str, value: object) -> bool:
    base, choices = _side(spec, side)
    return base is not None and choices.allow(base, name, value)


def _side(spec: MethodSpec, side: str) -> tuple[Quantization | None, Choices]:
    return (spec.weight, spec.weight_choices) if side == "weight" else (spec.input, spec.input_choices)


def _who_takes(able: list[MethodSpec], side: str, name: str) -> str:
    """What the methods that could have taken the rest have in this field."""
    takers = []
    for spec in able:
        base, choices = _side(spec, side)
        own = None if base is None else getattr(base, name)
        allowed = choices.values(name) or (() if own is None else (own,))
        if allowed:
            takers.append(f"{spec.name} takes {name} {', '.join(map(spelled, allowed))}")
    return f": {'; '.join(takers)}" if takers else ""


def _output(entry: Entry | None, problems: Problems) -> str | Fields | None:
    if entry is None:
        return None
    if isinstance(entry.value, MappingNode):
        fields = _with_dtype("output", entry, OUTPUT_FIELDS, problems)
        if fields is None:
            return None
        dtype = fields["dtype"]
        if dtype in FLOAT_DTYPES:
            if len(fields) == 1:
                return str(dtype)
            problems.add(entry.value.location, f"`output`: {dtype} is not quantized; it takes no further field")
        elif "scale" in fields and "scheme" not in fields:
            problems.add(entry.value.location, "`output`: `scale` needs scheme: static")
        elif fields.get("granularity") == "group" and "group" not in fields:
            problems.add(entry.value.location, "`output`: granularity group needs `group`")
        return fields
    return _short("output", entry.value, {**FLOAT_DTYPES, **FP8_DTYPES}, problems)


def _kv_cache(entry: Entry | None, problems: Problems) -> str | Fields | None:
    if entry is None:
        return None
    if isinstance(entry.value, MappingNode):
        return _with_dtype("kv_cache", entry, KV_CACHE_FIELDS, problems)
    return _short("kv_cache", entry.value, FP8_DTYPES, problems)


def _with_dtype(name: str, entry: Entry, readers: Mapping[str, values.Reader], problems: Problems) -> Fields | None:
    written = _read_fields(name, entry, readers, problems)
    if written is None:
        return None
    if "dtype" not in written.fields:
        problems.add(entry.value.location, f"`{name}`: a mapping needs `dtype`")
        return None
    return written.fields


def _short(name: str, node: Node, dtypes: Mapping[str, str], problems: Problems) -> str | Fields | None:
    """A dtype alone, or `none`."""
    if isinstance(node, ScalarNode) and (node.value is None or node.value is False):
        problems.add(
            node.location,
            f"`{name}`: expected a dtype, found {describe(node)}; write `none` to take an earlier one back",
        )
        return None
    dtype = values.word({**dtypes, "none": "none"})(node, name, problems)
    if dtype is None or dtype == "none" or dtype in FLOAT_DTYPES:
        return None if dtype is None else str(dtype)
    return Fields({"dtype": dtype})
