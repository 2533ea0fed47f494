"""`load_policy`: a file, a preset or a mapping → one Policy with everything it extends merged in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from policyquant.collector import collector_paused
from policyquant.errors import Location, PolicyError, Problem, did_you_mean
from policyquant.policy.check import Document, check
from policyquant.policy.document import DICT, MappingNode, Node, ScalarNode, describe, from_python, plain, show
from policyquant.policy.policy import PROTECTED, Origin, Policy
from policyquant.policy.problems import Problems
from policyquant.policy.text_file import decode, read_bytes

_MOST_FILES: Final = 100
"""Files of one policy: its own and all that it extends, directly and through others."""


@collector_paused()
def load_policy(source: str | os.PathLike[str] | Mapping[str, Any] | Policy) -> Policy:
    """Read a policy, check it, and merge in what it extends.

    Args:
        source: one of
            - the path of a `.yaml`, `.yml` or `.json` file; a file with another suffix is JSON if it begins with `{`,
              else YAML;
            - a `config.json` whose `quantization_config` has `quant_method: policyquant`: the policy stands in there;
            - a preset's name, such as `fp8-dynamic`. It always means the preset; a file of the same name is
              `./fp8-dynamic`;
            - the policy as Python data (relative paths in `extends` start from the working directory);
            - a Policy, which is returned as it is.

    Raises:
        PolicyError: the policy, or one that it extends, is not valid or cannot be read. Carries every problem found.
    """
    if isinstance(source, Policy):
        return source
    if isinstance(source, Mapping):
        try:
            return _from_mapping(source, with_paths=False)
        except PolicyError:
            # Once more, so that each problem says where in the data it is; rules of a good policy need not.
            return _from_mapping(source, with_paths=True)
    loading = _Loading()
    name = _path(source)
    if isinstance(source, str) and _may_be_preset(name) and _is_preset(name):
        loading.read(_preset(name), name, None)
    else:
        loading.read(_file(name, "own"), name, None)
    return loading.policy(name)


def _path(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return path if isinstance(path, str) else os.fsdecode(path)
    found = f"a policy is a path, a preset's name or a mapping, found a Python {type(source).__name__}"
    raise PolicyError([Problem(Location(DICT), found)])


def _from_mapping(source: Mapping[str, Any], with_paths: bool) -> Policy:
    loading = _Loading()
    node = from_python(source, with_paths=with_paths)
    loading.note(DICT, json.dumps(plain(node), ensure_ascii=False).encode("utf-8", "surrogatepass"))
    loading.check(_Source(DICT, DICT, "", "own"), node, in_config=False)
    return loading.policy(DICT)


class _Source(NamedTuple):
    """One document to read."""

    label: str
    """As a person would write it; the file of its locations."""
    identity: str
    """Equal for two names of the same file."""
    folder: str | None
    """Where relative paths in its `extends` start; None if it extends presets only."""
    origin: Origin


class _Loading:
    """One call of `load_policy`: what was read so far, and what was wrong with it."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.documents: list[Document] = []
        self.files: list[str] = []
        self._digest = hashlib.sha256()
        self._begun: list[_Source] = []
        self._done: set[str] = set()

    def note(self, label: str, data: bytes) -> None:
        self.files.append(label)
        self._digest.update(data)

    def read(self, source: _Source, name: str, said_at: Location | None) -> None:
        """Read a file or preset, which `said_at` calls `name`, and, before its own rules count, all that it extends."""
        try:
            if source.origin == "preset":
                from policyquant.policy.presets import preset_bytes

                data = preset_bytes(source.label)
            else:
                data = read_bytes(source.label, said_at, _preset_names() if _may_be_preset(name) else ())
            self.note(source.label, data)
            node, in_config = _policy_in(*_parse(decode(data, source.label), source.label))
        except PolicyError as error:
            for problem in error.problems:
                self.problems.add(*problem)
            return
        self.check(source, node, in_config)

    def check(self, source: _Source, node: Node, in_config: bool) -> None:
        before = len(self.problems.found)
        document = check(node, self.problems, origin=source.origin, in_config=in_config)
        if len(self.problems.found) > before:
            from policyquant.policy.schema_errors import add_from_schema

            add_from_schema(node, self.problems, in_config=in_config)
        self._begun.append(source)
        for name in document.extends:
            self._extend(name, source, in_config)
        self._begun.pop()
        self._done.add(source.identity)
        self.documents.append(document)

    def _extend(self, entry: ScalarNode, by: _Source, in_config: bool) -> None:
        name = str(entry.value)
        if _may_be_preset(name) and _is_preset(name):
            extended = _preset(name)
        elif by.folder is None or in_config:
            where = "a policy inside a config.json" if in_config else "a preset"
            names = _preset_names()
            self.problems.add(
                entry.location,
                f"`extends`: {where} extends presets only, found {show(name)}{did_you_mean(name, names)}"
                f" (known: {', '.join(names)})",
            )
            return
        else:
            extended = _file(str(Path(by.folder) / name), "extended")
        chain = [source.identity for source in self._begun]
        if extended.identity in chain:
            labels = [source.label for source in self._begun[chain.index(extended.identity) :]]
            self.problems.add(entry.location, f"`extends` goes in a circle: {' → '.join([*labels, extended.label])}")
        elif len(self.files) >= _MOST_FILES:
            self.problems.add(entry.location, f"a policy extends more than {_MOST_FILES - 1} files")
        elif extended.identity not in self._done:
            self.read(extended, name, entry.location)

    def policy(self, source: str) -> Policy:
        self.problems.raise_if_any()
        documents = self.documents
        defaults = [document.default for document in documents if document.default is not None]
        protects = [document for document in documents if document.protect is not None]
        unties = [document.untie for document in documents if document.untie is not None]
        return Policy(
            rules=tuple(rule for document in documents for rule in document.rules),
            default=defaults[-1] if defaults else None,
            protect=protects[-1].protect or frozenset() if protects else PROTECTED,
            protect_location=protects[-1].protect_location if protects else None,
            groups=tuple(group for document in documents for group in document.groups),
            groups_locations=tuple(place for document in documents for place in document.groups_locations),
            expected_layers=tuple(each for document in documents for each in document.expected_layers),
            expected_bits=tuple(each for document in documents for each in document.expected_bits),
            untie=unties[-1] if unties else False,
            source=source,
            sha256=self._digest.hexdigest(),
            files=tuple(self.files),
        )


def _file(path: str, origin: Origin) -> _Source:
    try:
        identity = str(Path(path).resolve())
    except (OSError, RuntimeError, ValueError):  # No such name can exist; reading it says so.
        identity = path
    return _Source(path, identity, str(Path(path).parent), origin)


def _may_be_preset(name: str) -> bool:
    """A preset's name has neither a folder nor a suffix; only words that could be one make us look for presets."""
    return not any(character in name for character in (".", "/", os.sep))


def _is_preset(name: str) -> bool:
    from policyquant.policy.presets import is_preset

    return is_preset(name)


def _preset_names() -> tuple[str, ...]:
    from policyquant.policy.presets import preset_names

    return preset_names()


def _preset(name: str) -> _Source:
    return _Source(name, f"preset {name}", None, "preset")


def _parse(text: str, label: str) -> tuple[Node, bool]:
    """The document, and whether it is JSON."""
    suffix = Path(label).suffix.lower()
    if suffix == ".json" or (suffix not in (".yaml", ".yml") and text.lstrip().startswith("{")):
        from policyquant.policy.json_reader import read_json

        return read_json(text, label), True
    from policyquant.policy.yaml_reader import read_yaml

    node = read_yaml(text, label)
    if node is None:
        raise PolicyError([Problem(Location(label, 1, 1), "the file has comments only; expected a policy")])
    return node, False


def _policy_in(node: Node, is_json: bool) -> tuple[Node, bool]:
    """The policy in a document: itself, or the one inside a `config.json`; and which of the two it was."""
    if not is_json or not isinstance(node, MappingNode):
        return node, False
    inner = node.get("quantization_config")
    if inner is None:
        if node.get("model_type") is not None or node.get("architectures") is not None:
            message = "a model's config.json without a policy: it has no `quantization_config`"
            raise PolicyError([Problem(node.location, message)])
        return node, False
    if not isinstance(inner, MappingNode):
        message = f"`quantization_config`: expected a mapping, found {describe(inner)}"
        raise PolicyError([Problem(inner.location, message)])
    method = inner.get("quant_method")
    if not isinstance(method, ScalarNode) or method.value != "policyquant":
        found = (
            "no `quant_method`" if method is None else f"`quant_method` {describe(method).removeprefix('the text ')}"
        )
        message = f"`quantization_config` holds no policy: expected `quant_method` 'policyquant', found {found}"
        raise PolicyError([Problem((method or inner).location, message)])
    return inner, True
