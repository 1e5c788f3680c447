"""Declaration and validation of settings: sections, their fields' ranges, paths.

A section is a frozen dataclass that derives from ``Section``. Its ranges are in its fields:

    top_p: float = setting(0.95, within("(0, 1]"), "1 is off; default: 0.95")
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from paint.core.errors import (
    NAME_BYTES,
    ConfigError,
    format_short,
    has_control_characters,
    path_error,
)

MAX_COUNT = 10_000_000
"""Largest number of steps, rows, tokens or samples; more is a typo that would fill the memory."""

MAX_FLOAT = 2.0**128 - 2.0**104  # the largest number of float32


class Check(NamedTuple):
    """A condition on a value; messages say that it "must be" what is allowed."""

    allowed: str
    accepts: Callable[[Any], bool]


NOT_NEGATIVE = [Check("at least 0", lambda value: value >= 0)]
POSITIVE = [
    Check("at least 1", lambda value: value >= 1),
    Check(f"at most {MAX_COUNT}", lambda value: value <= MAX_COUNT),
]
PATH = [
    Check(
        f"a path, with names of at most {NAME_BYTES} bytes",
        lambda path: not path or not path_error(path),
    )
]


def setting(default: Any, checks: Sequence[Check], note: str) -> Any:
    """Declare a field of a section with its range; the note ends the message of a refusal."""
    return dataclasses.field(default=default, metadata={"checks": checks, "note": note})


def within(interval: str) -> Sequence[Check]:
    """Check that a value is in an interval, written as in mathematics: "(0, 1]"."""
    low, high = map(float, interval[1:-1].split(","))
    low_open, high_open = interval[0] == "(", interval[-1] == ")"

    def accepts(value: float) -> bool:
        is_outside = (low_open and value == low) or (high_open and value == high)
        return low <= value <= high and not is_outside

    return [Check(f"in {interval}", accepts)]


class Section:
    """A section of the settings, whose values are checked whenever one is built.

    Text has no control characters other than line ends and tabs. Integers fit in 64 bits. Floats
    are at most MAX_FLOAT, or infinite. Every field is in its range, or a ConfigError names it.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        for field in fields:
            value = getattr(self, field.name)
            texts = value if isinstance(value, tuple) else (value,)
            are_plain = not any(
                isinstance(text, str) and has_control_characters(text) for text in texts
            )
            allowed = "text without control characters"
            require(self, field.name, are_plain, allowed, "line ends and tabs are allowed")
            is_number = not isinstance(value, int) or abs(value) < 2**63
            require(self, field.name, is_number, "below 2**63", "a number of 64 bits")
            is_real = isinstance(value, float) and math.isfinite(value)
            has_range = not is_real or abs(value) <= MAX_FLOAT
            require(self, field.name, has_range, "a number of 32 bits", "at most 3.4e38")
        for field in fields:
            for allowed, accepts in field.metadata.get("checks", ()):
                is_allowed = accepts(getattr(self, field.name))
                require(self, field.name, is_allowed, allowed, field.metadata["note"])


def require(section: object, key: str, is_allowed: bool, allowed: str, note: str) -> None:
    """Raise ConfigError with section.key, its value and the allowed ones, unless allowed."""
    if not is_allowed:
        name, value = section_name(type(section)), format_short(getattr(section, key))
        raise ConfigError(f"{name}.{key} must be {allowed}, got {value} ({note})")


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ConfigError for an argument that is no integer from ``least`` to MAX_COUNT."""
    if type(value) is not int or not least <= value <= MAX_COUNT:
        raise ConfigError(
            f"{name} must be an integer from {least} to {MAX_COUNT}, got {format_short(value)}"
        )


def section_name(section: type) -> str:
    """Return the name of a config class in a recipe: "rollout" for RolloutConfig."""
    return section.__name__.removesuffix("Config").lower()
