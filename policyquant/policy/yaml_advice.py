"""What the YAML parser complains of, in words for people who write policies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from policyquant.policy.document import MOST_DEPTH, shorten, show

_QUOTE_IN_FLOW: Final = "a pattern in it that has `{`, `}`, `[`, `]` or `,` must be in quotes"

_TRANSLATIONS: Final[Mapping[str, str]] = {
    r"tab character that violates indentation": "a tab; YAML indents with spaces",
    r"mapping values are not allowed": "a second `key:` in one line, or an indentation that fits no line above",
    r"mapping keys are not allowed": "a key cannot stand here; look at the indentation",
    r"sequence entries are not allowed": "a list item `-` cannot stand here; look at the indentation",
    r"found unexpected ':'": "text with a `:` in it must be in quotes here",
    r"could not find expected ':'": "a line without `:`; expected `key: value`",
    r"unexpected end of stream": "text whose closing quote is missing",
    r"unexpected document (indicator|separator)": "text in quotes meets `---`; its closing quote is missing",
    r"expected ',' or '\]'": f"a list in `[ ]` goes on where `,` or `]` was expected; {_QUOTE_IN_FLOW}",
    r"expected ',' or '\}'": f"a mapping in `{{ }}` goes on where `,` or `}}` was expected; {_QUOTE_IN_FLOW}",
    r"expected '-' indicator": "a list ends and something else begins at its indentation; expected `- item`",
    r"expected key|expected <block end>": (
        "a mapping goes on where `key: value` was expected; a pattern that begins with a quote, `[` or `{` must be in"
        " quotes as a whole, and before `:` stands a key"
    ),
    r"expected (the )?node content": "a value is missing here",
    r"undefined tag handle|expected tag|tag handle|a tag|expected URI": (
        "a YAML tag (`!`); a policy has no tags, put text that begins with `!` in quotes"
    ),
    r"hexdecimal|hexadecimal|invalid Unicode character escape": (
        "a `\\x` or `\\u` escape that is no character; in double quotes a backslash is written `\\\\`, in single quotes"
        " it is itself"
    ),
    r"control characters|special characters": "a control character, which YAML text cannot have",
    r"maximum nesting depth": f"lists and mappings nest more than {MOST_DEPTH} levels deep",
    r"expected '?<document start>": "the document ends before this; look at quotes and indentation",
    r"directive|incompatible YAML document": (
        "`%` begins a YAML directive, of which a policy needs none; put text that begins with `%` in quotes"
    ),
}
"""What is found in a parser's message → what a person can do about it."""

_NOT_A_START: Final = {
    "\t": "a tab; YAML indents with spaces",
    "%": "a value cannot begin with `%` in YAML; put it in quotes",
    "@": "a value cannot begin with `@` in YAML; put it in quotes",
    "`": "a value cannot begin with a backtick in YAML; put it in quotes",
}

_FLOW_PATTERN: Final = re.compile(r"[^\s,\[\]{}]*?(?=:?(?:[\s,\[\]{}]|$))", re.MULTILINE)
_BLOCK_PATTERN: Final = re.compile(r"[^\n]*?(?=\s*:(?:\s|$)|\s+#|\s*$)", re.MULTILINE)


def quoted_pattern(text: str, index: int) -> str:
    """The pattern that begins at `index`, as its author should have written it: in quotes."""
    line_start = text.rfind("\n", 0, index) + 1
    before = text[line_start:index]
    inside_flow = any(before.count(opening) > before.count(closing) for opening, closing in ("[]", "{}"))
    match = (_FLOW_PATTERN if inside_flow else _BLOCK_PATTERN).match(text, index, index + 200)
    pattern = match[0] if match and match[0] else text[index : index + 1]
    return f"'{pattern}'" if "\\" in pattern or '"' in pattern else f'"{pattern}"'


Place = tuple[int, int]
"""Line and column, from 1."""


def explain(error: Any, text: str, unclosed: tuple[str, Place] | None) -> tuple[Place, str]:
    """Where a `yaml.YAMLError` is, and what is wrong there.

    Handles the messages of both of PyYAML's parsers, which differ. `unclosed` is the innermost `[` or `{` that was open
    when the parser gave up.
    """
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None) or ""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        index = getattr(error, "position", None) or 0
        line_start = text.rfind("\n", 0, index) + 1
        place = (text.count("\n", 0, index) + 1, index - line_start + 1)
        return place, _translated(problem)
    start = getattr(error, "context_mark", None) or mark
    at_mark, at_start = _place(mark, text), _place(start, text)

    if "alias" in context:
        pattern = quoted_pattern(text, start.index)
        return at_start, f"a pattern that begins with `*` must be in quotes (YAML reads `*` as an alias): {pattern}"
    if "anchor" in context:
        return at_start, "text that begins with `&` must be in quotes (YAML reads `&` as an anchor)"
    if "unknown escape" in problem:
        # One parser marks the backslash, the other what follows it.
        index = mark.index if text[mark.index : mark.index + 1] == "\\" else mark.index - 1
        place = (mark.line + 1, mark.column + 1 - (mark.index - index))
        return place, (
            f"unknown escape {text[index : index + 2]} inside double quotes; put a pattern with a backslash in single"
            " quotes, or write the backslash twice"
        )
    if "cannot start any token" in problem:
        character = text[mark.index : mark.index + 1]
        return at_mark, _NOT_A_START.get(character, f"a value cannot begin with {show(character)}")
    if "block scalar" in context:
        line = text[start.index :].split("\n", 1)[0].strip()
        return at_start, f'`{line[:1]}` begins a block of text in YAML; put the value in quotes: "{shorten(line, 40)}"'
    if any(each in problem for each in ("end of stream", "document indicator", "document separator", "expected ':'")):
        return at_start, _translated(problem)
    if unclosed is not None and mark.index >= len(text.rstrip()):
        bracket, place = unclosed
        return place, f"`{bracket}` is not closed"
    return at_mark, _translated(problem, context)


def _place(mark: Any, text: str) -> Place:
    """Line and column of a mark. One parser puts the end of a text without a last line break into a line of its own."""
    if 0 < len(text) <= mark.index and mark.column == 0 and text[-1] not in "\r\n\x85\u2028\u2029":
        lines = re.split(r"\r\n?|[\n\x85\u2028\u2029]", text)
        return len(lines), len(lines[-1]) + 1
    return mark.line + 1, mark.column + 1


def _translated(problem: str, context: str = "") -> str:
    for expression, message in _TRANSLATIONS.items():
        if re.search(expression, problem) or (context and re.search(expression, context)):
            return message
    return f"not YAML: {' '.join(filter(None, (context, problem)))}"
