"""Values of flags before tyro parses them: switches with a value, and choices that are misspelt.

--model.teacher-thinking=False -> --model.no-teacher-thinking
--teacher.weights emma         -> ConfigError: ... must be one of frozen, ema, live, got "emma"
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from paint.core.errors import ConfigError, did_you_mean, format_short

_FLAG = re.compile(r"--(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)


def with_plain_values(kind: Any, words: Sequence[str]) -> list[str]:
    """The words of a line for a dataclass of options, with switches as tyro reads them.

    Raises ConfigError for a value that is none of a closed list, or of a switch.
    """
    types = dict(_flags_of(kind))
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        match = _FLAG.fullmatch(word)
        found = types.get(match["name"].replace("-", "_")) if match else None
        if match is None or found is None:
            plain.append(word)
        elif found is bool:
            value = match["value"]
            if value is None and rest and rest[0].lower() in ("true", "false"):
                value = rest.pop(0)
            plain.append(_switch(match["name"], value))
        else:
            several = get_origin(found) is tuple
            values = [] if match["value"] is None else [match["value"]]
            while match["value"] is None and rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
                if not several:
                    break
            _require_choices(
                match["name"], get_args(get_args(found)[0] if several else found), values
            )
            plain += [word] if match["value"] is not None else [word, *values]
    return plain


def _switch(name: str, value: str | None) -> str:
    section, dot, key = name.rpartition(".")
    off = f"--{section}{dot}no-{key}"
    if value is None or value.lower() == "true":
        return f"--{name}"
    if value.lower() == "false":
        return off
    raise ConfigError(
        f"--{name} is a switch, got {format_short(value)}; write --{name} or {off}, or =True or "
        f"=False after its name"
    )


def _require_choices(name: str, choices: Sequence[str], values: Sequence[str]) -> None:
    for value in values:
        if value not in choices:
            raise ConfigError(
                f"--{name} must be one of {', '.join(choices)}, got {format_short(value)}"
                f"{did_you_mean(value, choices)}"
            )


def _flags_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The names of switches and of flags with a closed list, and their types."""
    for field in dataclasses.fields(kind):
        annotation, name = field.type, field.name
        if get_origin(annotation) is Annotated:
            annotation, *notes = get_args(annotation)
            names = [note.name for note in notes if getattr(note, "name", None) is not None]
            name = names[0] if names else name
        path = f"{prefix}{name}".replace("-", "_")
        if dataclasses.is_dataclass(annotation):
            yield from _flags_of(annotation, f"{path}." if path else "")
        elif annotation is bool or _is_closed(annotation):
            yield path, annotation


def _is_closed(annotation: Any) -> bool:
    if get_origin(annotation) is tuple:
        return _is_closed(get_args(annotation)[0])
    is_literal = get_origin(annotation) is Literal
    return is_literal and all(isinstance(one, str) for one in get_args(annotation))
