"""JSON schemas of Python functions as tools, and whether a call fits its schema."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils import get_json_schema

from paint.core.errors import PaintError, cut, did_you_mean, reason
from paint.models.call_styles import Literals, ToolCall, UnreadCall

Schema = Mapping[str, Any]


class ToolError(PaintError, ValueError):
    """A function cannot be a tool; the message names it, the parameter and the fix."""


def tool_schemas(functions: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """JSON schemas of functions, from their docstrings and annotations, as transformers makes them.

    Raises ToolError for a function without name, docstring or annotations, and for two of one name.
    """
    schemas = [_schema(function) for function in functions]
    names = Counter(schema["function"]["name"] for schema in schemas)
    for name, count in names.items():
        if count > 1:
            raise ToolError(f"{count} tools have the name {name}; rename all but one")
    return schemas


def name_of_schema(schema: Schema) -> str:
    """The name of a schema's function; "" without one. Some write the function alone."""
    function = schema.get("function", schema)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolError(
            f"{function!r} has no name by which a model could call it; define a function with def"
        )
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(
                f"tool {name}: the parameter {parameter} has no name of its own; models give "
                f"arguments by name: declare each as a parameter"
            )
        if parameter.annotation is parameter.empty:
            raise ToolError(
                f"tool {name}: the parameter {parameter.name} has no type; annotate it, as in "
                f"{parameter.name}: str"
            )
    if not inspect.getdoc(function):
        raise ToolError(
            f"tool {name} has no docstring, which tells the model what it does; write one with a "
            f"section Args that describes each parameter"
        )
    try:
        found: dict[str, Any] = get_json_schema(function)
    # transformers' own errors, and what the annotations of a function raise
    except Exception as error:
        raise ToolError(f"tool {name}: {_describe(error, function)}") from error
    return found


def _describe(error: Exception, function: Callable[..., Any]) -> str:
    missing = re.search(r"no description for the argument '(\w+)'", str(error))
    if missing:
        return (
            f"its docstring does not describe the parameter {missing[1]}; add a line "
            f"'{missing[1]}: what it is' below 'Args:'"
        )
    return f"{reason(error)}; use types such as str, int, list[str] and Literal"


def check_call(schemas: Sequence[Schema], call: ToolCall) -> str | None:
    """What is wrong with a call, as a clause for the model; None if it fits its tool's schema."""
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
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
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
    """The value of an argument that a call gives as text, by the type in the tool's schema.

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


def _types(schema: Schema) -> list[str]:
    """The types that a schema allows; none if it names none."""
    named = schema.get("type", [])
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    inner = [name for choice in choices for name in _types(choice)]
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


_JSON_NAMES = {"True": "true", "False": "false", "None": "null"}
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}
