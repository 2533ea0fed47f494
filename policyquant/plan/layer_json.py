"""One layer of a plan's file → a row. The inverse of `Row.as_json_lines`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.kinds import KINDS, layers_of
from policyquant.inventory.layers import NAMESPACES, Indices, NameForm
from policyquant.plan import json_values as read
from policyquant.plan.decide import EMITTERS, DecidedBy
from policyquant.plan.json_values import Place
from policyquant.plan.rows import PartRow, Row, RuleRef
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import FLOAT_DTYPES, QUANTIZED_DTYPES, SCALE_DTYPES, Granularity, Quantization, Scheme

_KEYS: Final = (
    "name",
    "kind",
    "shape",
    "dtype",
    "stored",
    "method",
    "scheme",
    "output",
    "kv_cache",
    "decided_by",
    "rule",
    "refined_by",
    "beaten",
    "group",
    "parts",
    "parameters",
    "bytes_before",
    "bytes_after",
)
_OPTIONAL_OF_QUANTIZATION: Final = (
    "group",
    "block",
    "scheme",
    "symmetric",
    "scale_dtype",
    "global_scale_dtype",
    "scale",
    "scale_ub",
)


def row_from_json(
    layer: object,
    place: Place,
    form: NameForm,
    indices: tuple[Indices, ...],
    group: NameForm | None,
    parts: Sequence[NameForm],
) -> Row:
    """The row of layers that all look like `layer`, and whose names are these.

    Raises:
        SourceError: `layer` is not what `plan.schema.json` says.
    """
    value = read.fields(layer, place, _KEYS)
    kind = read.choice(value["kind"], place.key("kind"), KINDS, "a kind")
    scheme = _scheme(value, place)
    if scheme.method != "none" and kind not in METHODS[scheme.method].kinds:
        raise place.error(f"the method {scheme.method!r} does not take {layers_of(kind)}")
    if scheme.output is not None and kind not in EMITTERS:
        raise place.error(f"{layers_of(kind)} have no output")
    if scheme.kv_cache is not None and kind != "attention":
        raise place.error(f"{layers_of(kind)} have no KV cache")
    dtype = value["dtype"]
    decided_by: DecidedBy = read.choice(
        value["decided_by"], place.key("decided_by"), get_args(DecidedBy), "what decided"
    )
    return Row(
        form=form,
        indices=indices,
        kind=kind,
        shape=read.shape_or_null(value["shape"], place.key("shape")),
        dtype=None if dtype is None else read.choice(dtype, place.key("dtype"), DTYPE_BITS, "a dtype of safetensors"),
        stored=read.text_or_null(value["stored"], place.key("stored")),
        scheme=scheme,
        decided_by=decided_by,
        rule=None if value["rule"] is None else _rule(value["rule"], place.key("rule")),
        refined_by=_rules(value["refined_by"], place.key("refined_by")),
        beaten=_rules(value["beaten"], place.key("beaten")),
        group=group,
        parts=_parts(value["parts"], place.key("parts"), parts),
        parameters=read.size_or_null(value["parameters"], place.key("parameters")),
        bytes_before=read.size_or_null(value["bytes_before"], place.key("bytes_before")),
        bytes_after=read.size_or_null(value["bytes_after"], place.key("bytes_after")),
    )


def _scheme(value: Mapping[str, Any], place: Place) -> Scheme:
    method = value["method"]
    if not isinstance(method, str) or method not in METHODS:
        method = read.choice(method, place.key("method"), METHODS.names(), "a method")
    tensors = read.fields(value["scheme"], place.key("scheme"), ("weight", "input"))
    weight, input = (_quantization(tensors[side], place.key("scheme").key(side)) for side in ("weight", "input"))
    spec = METHODS[method]
    for side, found, standard in (("weight", weight, spec.weight), ("input", input, spec.input)):
        if (found is None) != (standard is None):
            does = "quantizes" if standard is not None else "does not quantize"
            raise place.key("scheme").error(f"the method {method!r} {does} the {side}")
    output = value["output"]
    if isinstance(output, str):
        output = read.choice(output, place.key("output"), _names(FLOAT_DTYPES), "a dtype")
    else:
        output = _quantization(output, place.key("output"))
    return Scheme(method, weight, input, output, _quantization(value["kv_cache"], place.key("kv_cache")))


def _names(spellings: Mapping[str, str]) -> list[str]:
    """The names that plans use, of a table of all spellings."""
    return list(dict.fromkeys(spellings.values()))


def _quantization(value: object, place: Place) -> Quantization | None:
    if value is None:
        return None
    found = read.fields(value, place, ("dtype", "granularity"), _OPTIONAL_OF_QUANTIZATION)
    granularities: tuple[Granularity, ...] = get_args(Granularity)
    known: dict[str, Any] = {
        "dtype": read.choice(found["dtype"], place.key("dtype"), _names(QUANTIZED_DTYPES), "a quantized dtype"),
        "granularity": read.choice(found["granularity"], place.key("granularity"), granularities, "a granularity"),
    }
    for key in _OPTIONAL_OF_QUANTIZATION:
        if key in found:
            known[key] = _setting(key, found[key], place.key(key))
    for key in ("group", "block"):
        if (known["granularity"] == key) != (key in known):
            what = "needs" if key not in known else "contradicts"
            raise place.error(f"granularity {known['granularity']!r} {what} {key!r}")
    return Quantization(**known)


def _setting(key: str, value: object, place: Place) -> object:
    """The value of one optional field of a quantization."""
    if key == "group":
        return _above_zero(value, place)
    if key == "block":
        block = read.items(value, place)
        if len(block) != 2:
            raise place.unexpected("two sizes", value)
        return tuple(_above_zero(each, place.item(index)) for index, each in enumerate(block))
    if key == "scheme":
        return read.choice(value, place, ("dynamic", "static"), "a scheme")
    if key == "symmetric":
        return read.truth(value, place)
    if key in ("scale", "scale_ub"):
        return read.scale(value, place)
    return read.choice(value, place, _names(SCALE_DTYPES), "a dtype of scales")


def _above_zero(value: object, place: Place) -> int:
    found = read.size(value, place)
    if found == 0:
        raise place.unexpected("a size above 0", value)
    return found


def _rule(value: object, place: Place) -> RuleRef:
    found = read.fields(value, place, RuleRef._fields)
    namespace = found["namespace"]
    return RuleRef(
        read.text(found["pattern"], place.key("pattern")),
        read.text(found["file"], place.key("file")),
        read.size_or_null(found["line"], place.key("line")),
        read.size_or_null(found["column"], place.key("column")),
        None if namespace is None else read.choice(namespace, place.key("namespace"), NAMESPACES, "a namespace"),
    )


def _rules(value: object, place: Place) -> tuple[RuleRef, ...]:
    return tuple(_rule(each, place.item(index)) for index, each in enumerate(read.items(value, place)))


def _parts(value: object, place: Place, forms: Sequence[NameForm]) -> tuple[PartRow, ...]:
    result = []
    for index, (each, form) in enumerate(zip(read.items(value, place), forms, strict=True)):
        found = read.fields(each, place.item(index), ("name", "shape"))
        result.append(PartRow(form, read.shape_or_null(found["shape"], place.item(index).key("shape"))))
    return tuple(result)
