"""A user's message in the model's chat template: a Jinja template out of somebody's file, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from policyquant.cli.run.model_directory import ModelDirectory
from policyquant.errors import PolicyQuantError
from policyquant.inventory.echo import value_shown

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_MOST_CHARACTERS: Final = 1_000_000
"""Of a prompt, and of what one multiplication in a template may make; no model reads a longer text."""

_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def in_chat_template(directory: ModelDirectory, message: str) -> str:
    """The prompt that makes the model answer a user's message.

    Raises:
        PolicyQuantError: the model has no chat template, or it cannot be used.
    """
    file, template = _template(directory)
    try:
        # In pieces, so that a template that repeats itself is stopped before it fills the memory.
        pieces: list[str] = []
        length = 0
        for piece in (
            _environment()
            .from_string(template)
            .generate(
                **_special_tokens(directory.tokenizer_config),
                messages=[{"role": "user", "content": message}],
                add_generation_prompt=True,
            )
        ):
            pieces.append(piece)
            length += len(piece)
            if length > _MOST_CHARACTERS:
                raise PolicyQuantError(f"{file}: the chat template makes more than {_MOST_CHARACTERS:,} characters")
        return "".join(pieces)
    except PolicyQuantError:
        raise
    except Exception as failure:  # A template may raise anything that an expression of it can.
        raise PolicyQuantError(
            f"{file}: the chat template cannot be used: {str(failure) or type(failure).__name__}"
        ) from failure


def _template(directory: ModelDirectory) -> tuple[str, str]:
    """The template, and the file that it is in."""
    if directory.chat_template is not None:
        return directory.file("chat_template.jinja"), directory.chat_template
    file = directory.file("tokenizer_config.json")
    found = directory.tokenizer_config.get("chat_template")
    if isinstance(found, list):  # Several, by name.
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is None:
        raise PolicyQuantError(f"{directory.label}: no chat template is there; run without --chat continues a text")
    if not isinstance(found, str):
        raise PolicyQuantError(f"{file}: chat_template is to be a text; found {value_shown(found)}")
    return file, found


def _special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """The texts of special tokens, which are given as such or as objects."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives templates, and no more."""
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Also refuses expressions that make large values out of small ones."""

        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" or (operator == "%" and isinstance(left, str)):
                raise SecurityError(f"the operator {operator} is not available")
            if operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
                items, times = (left, right) if hasattr(left, "__len__") else (right, left)
                if not isinstance(times, int) or len(items) * times > _MOST_CHARACTERS:
                    raise SecurityError("a repetition is too long")
            return super().call_binop(context, operator, left, right)

    class Generation(Extension):
        """`{% generation %}` marks what an assistant said, for training; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012  (as its base has it)

        def parse(self, parser: Parser) -> Node | list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment
