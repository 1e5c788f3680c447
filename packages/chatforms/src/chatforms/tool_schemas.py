"""JSON schemas of Python functions as tools, and whether a call fits its schema."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from docstring_parser.google import DEFAULT_SECTIONS
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import parse_google_format_docstring

from chatforms.errors import ToolError, cut, did_you_mean, reason
from chatforms.spellings import Literals, ToolCall, UnreadCall

Schema = Mapping[str, Any]

_HELD = (str, int, float, bool, NoneType, None, list, tuple, dict, Any)
"""Annotations without parts that have a JSON schema."""

_SECTIONS = {section.title for section in DEFAULT_SECTIONS}

_USE_TYPES = "use types such as str, int, list[str] and Literal"


def tool_schemas(functions: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """Return JSON schemas of functions, by their docstrings and annotations, as transformers'.

    Raises ToolError for a function without name, docstring or annotations, and for two of one name.
    """
    schemas = [_schema(function) for function in functions]
    names = Counter(schema["function"]["name"] for schema in schemas)
    for name, count in names.items():
        if count > 1:
            raise ToolError(f"{count} tools have the name {name}; rename all but one")
    return schemas


def name_of_schema(schema: Schema) -> str:
    """Return the name of a schema's function, or "". Some write the function alone."""
    function = schema.get("function", schema)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolError(
            f"{function!r} has no name by which a model could call it; define a function with def"
        )
    _require_named_parameters(name, function)
    doc = inspect.getdoc(function)
    if not doc:
        raise ToolError(
            f"tool {name} has no docstring, which tells the model what it does; write one with a "
            f"section Args that describes each parameter"
        )
    hints = _hints(name, function)
    summary, read = _google(doc, hints)
    if not summary:
        raise ToolError(
            f"tool {name}: its docstring does not say what the tool does; write that in its first "
            f"line, above its sections"
        )
    try:
        found: dict[str, Any] = get_json_schema(_stand_in(function, hints, read))
    except Exception as error:  # transformers' own errors
        raise ToolError(f"tool {name}: {_describe(error)}") from error
    return found


def _require_named_parameters(name: str, function: Callable[..., Any]) -> None:
    """Raise ToolError for a parameter without a name or a type."""
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        is_annotated = parameter.annotation is not parameter.empty
        if number == 0 and parameter.name in ("self", "cls") and not is_annotated:
            continue  # of a method of an environment's class
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(
                f"tool {name}: the parameter {parameter} has no name of its own; models give "
                f"arguments by name: declare each as a parameter"
            )
        if not is_annotated:
            raise ToolError(
                f"tool {name}: the parameter {parameter.name} has no type; annotate it, as in "
                f"{parameter.name}: str"
            )


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function. Raises ToolError for a parameter's that has no schema."""
    try:
        hints = get_type_hints(function)
    except Exception as error:  # what the annotations of a function raise
        raise ToolError(f"tool {name}: {reason(error)}; {_USE_TYPES}") from error
    for parameter_name, hint in hints.items():
        unheld = _unheld(hint)
        if unheld and parameter_name != "return":
            raise ToolError(
                f"tool {name}: the parameter {parameter_name} is annotated "
                f"{inspect.formatannotation(hint)}, which has no JSON schema; {_advice(unheld[0])}"
            )
    if _unheld(hints.get("return")):
        del hints["return"]  # templates need none, and a result is told as text
    return hints


def _unheld(hint: Any) -> list[Any]:
    """The parts of an annotation that no JSON schema holds.

    Of these, transformers would tell the model that they are objects.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is None:
        return [] if any(hint is known for known in _HELD) else [hint]
    if origin is Literal:
        is_held = all(type(part) in _HELD for part in parts)
    elif origin is tuple:
        is_held = len(parts) != 1 and Ellipsis not in parts
    elif origin is dict:
        is_held = not parts or parts[0] in (str, Any)
    else:
        is_held = origin in (list, Union, UnionType)
    if not is_held:
        return [hint]
    if origin is Literal:
        return []
    return [unheld for part in parts for unheld in _unheld(part)]


def _advice(unheld: Any) -> str:
    """What to annotate in place of a part that no JSON schema holds."""
    if isinstance(unheld, type) and issubclass(unheld, Enum):
        values = [member.value for member in unheld]
        if not all(isinstance(value, str | int) for value in values):
            values = [*unheld.__members__]
        choices = ", ".join(map(repr, values))
        return f"annotate Literal[{choices}], and convert it inside the function"
    if get_origin(unheld) is dict:
        return "the keys of a JSON object are texts: annotate dict[str, ...]"
    if get_origin(unheld) is tuple:
        return "annotate list[...]"
    return f"{_USE_TYPES}, and convert the value inside the function"


def _google(doc: str, hints: Mapping[str, Any]) -> tuple[str, str]:
    """What a docstring says of its tool, and the docstring in the form that transformers reads.

    Other forms are Google's with types, NumPy's and Sphinx's.
    """
    summary, known, _ = parse_google_format_docstring(doc.strip())
    if all(name in (known or {}) for name in hints if name != "return"):
        return summary or "", doc
    if doc.partition("\n")[0].strip().removesuffix(":") in _SECTIONS:
        return "", doc
    # With a line in front, as the parser takes a section in the first line for the summary.
    found = docstring_parser.parse(f"A tool.\n\n{doc}")
    summary = found.long_description or ""
    lines = [summary, "", "Args:"]
    for parameter in found.params:
        text = " ".join((parameter.description or "").split())
        names = parameter.arg_name.split(",") if text else ()
        lines += [f"    {name.strip('-*` ')}: {text}" for name in names]
    if found.returns and found.returns.description:
        lines += ["", "Returns:", f"    {' '.join(found.returns.description.split())}"]
    return summary, "\n".join(lines)


def _stand_in(
    function: Callable[..., Any], hints: Mapping[str, Any], doc: str
) -> Callable[..., Any]:
    """A function with the name, signature and annotations of another one, and a docstring."""

    def stand_in() -> None: ...

    stand_in.__name__ = function.__name__
    stand_in.__doc__ = doc
    stand_in.__annotations__ = dict(hints)
    stand_in.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return stand_in


def _describe(error: Exception) -> str:
    missing = re.search(r"no description for the argument '(\w+)'", str(error))
    if missing:
        return (
            f"no description of the parameter {missing[1]} is found in its docstring, by the "
            f"forms of Google, NumPy and Sphinx; add an indented line '{missing[1]}: what it is' "
            f"below 'Args:'"
        )
    return f"{reason(error)}; {_USE_TYPES}"


def fit_arguments(schemas: Sequence[Schema], call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call that fits its tool's schema, as the function takes them.

    To JSON's schemas 3.0 is an integer; to a function it is the integer 3.
    """
    functions = {schema["function"]["name"]: schema["function"] for schema in schemas}
    found: dict[str, Any] = _fitted(functions[call.name].get("parameters", {}), call.arguments)
    return found


def _fitted(schema: Any, value: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    for choice in _choices(schema):
        if _value_fault(choice, value, "") is None:
            return _fitted(choice, value)
    if isinstance(value, float) and value.is_integer():
        types = _types(schema)
        return int(value) if "integer" in types and "number" not in types else value
    if isinstance(value, Mapping):
        inner, other = schema.get("properties", {}), schema.get("additionalProperties")
        return {key: _fitted(inner.get(key, other), item) for key, item in value.items()}
    if isinstance(value, list):
        heads, rest = schema.get("prefixItems", ()), schema.get("items")
        schemas = [*heads, *[rest] * len(value)]
        return [_fitted(inner, item) for inner, item in zip(schemas, value, strict=False)]
    return value


def check_call(schemas: Sequence[Schema], call: ToolCall) -> str | None:
    """Return what is wrong with a call, as a clause for the model; None if it fits."""
    functions = {schema["function"]["name"]: schema["function"] for schema in schemas}
    name = call.name
    if name not in functions:
        known = ", ".join(functions)
        return f"there is no tool {cut(name)}{did_you_mean(name, functions)}; the tools are {known}"
    return _object_fault(functions[name].get("parameters", {}), call.arguments, name)


def _object_fault(schema: Schema, value: Mapping[str, Any], place: str) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{place} needs {name}"
    for name, given in value.items():
        if name in properties:
            fault = _value_fault(properties[name], given, name)
        elif isinstance(schema.get("additionalProperties"), Mapping):
            fault = _value_fault(schema["additionalProperties"], given, name)
        elif "properties" in schema and not schema.get("additionalProperties"):
            known = ", ".join(properties) or "nothing"
            return f"{place} takes no {cut(name)}{did_you_mean(name, properties)}; it takes {known}"
        else:
            fault = None
        if fault:
            return fault
    return None


def _value_fault(schema: Schema, value: Any, place: str) -> str | None:
    if value is None and schema.get("nullable"):
        return None
    choices = _choices(schema)
    if choices:
        faults = [_value_fault(choice, value, place) for choice in choices]
        return faults[0] if all(faults) else None
    types = _types(schema)
    if types and not any(_TYPES.get(name, _any)(value) for name in types):
        return f"{place} is {_shown(value)}, but it must be {' or '.join(types)}"
    if "enum" in schema and not any(_equal(value, known) for known in schema["enum"]):
        known = ", ".join(map(_shown, schema["enum"]))
        return f"{place} is {_shown(value)}, but it must be one of {known}"
    if isinstance(value, Mapping):
        return _object_fault(schema, value, place)
    if isinstance(value, list):
        return _items_fault(schema, value, place)
    return None


def _items_fault(schema: Schema, items: Sequence[Any], place: str) -> str | None:
    heads = schema.get("prefixItems", ())
    if heads and len(items) != len(heads) and "items" not in schema:
        return f"{place} has {len(items)} items, but it must have {len(heads)}"
    rest = schema.get("items", {})
    for number, item in enumerate(items):
        inner = heads[number] if number < len(heads) else rest
        fault = _value_fault(
            inner if isinstance(inner, Mapping) else {}, item, f"{place}[{number}]"
        )
        if fault:
            return fault
    return None


def typed_text(schemas: Sequence[Schema], tool: str, argument: str, text: str) -> Any:
    """Return the value of an argument that a call gives as text, by the type in the schema.

    It is the text where the schema says so or says nothing, and where it is of no other type.
    """
    for schema in schemas:
        if schema["function"]["name"] == tool:
            properties = schema["function"].get("parameters", {}).get("properties", {})
            return _typed(properties.get(argument, {}), text)
    return text


def _typed(schema: Schema, text: str) -> Any:
    if schema.get("nullable") and text.strip() in ("null", "None"):
        return None
    if {*_types(schema)} <= {"string"}:
        return text
    reader = Literals(text)
    try:
        value = reader.value()
    except UnreadCall:
        return text
    fits = any(_TYPES.get(name, _any)(value) for name in _types(schema))
    return value if fits and not text[reader.place :].strip() else text


def _choices(schema: Schema) -> list[Schema]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _types(schema: Schema) -> list[str]:
    """The types that a schema allows; none if it names none."""
    named = schema.get("type", [])
    inner = [name for choice in _choices(schema) for name in _types(choice)]
    return [*([named] if isinstance(named, str) else named), *inner]


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else _JSON_NAMES.get(str(value), str(value))
    return cut(text)


def _equal(value: Any, known: Any) -> bool:
    """Equality in which true is not 1."""
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)


def _any(value: Any) -> bool:
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_JSON_NAMES = {"True": "true", "False": "false", "None": "null"}
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}
