"""What can go wrong in every part of paint, and how a setting that is out of range is refused."""

import json


class PaintError(Exception):
    """Something that the user can mend; the message says what is wrong, where, and the way out."""


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message says which."""


class Diverged(PaintError):
    """The policy's numbers are no longer finite."""


class Stopped(Exception):
    """A signal stopped the run, which has saved its state; the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def require(section: object, key: str, is_allowed: bool, allowed: str, note: str) -> None:
    """Raise ConfigError that names section.key, its value and what is allowed, unless it is."""
    if not is_allowed:
        name, value = type(section).__name__.lower(), show(getattr(section, key))
        raise ConfigError(f"{name}.{key} must be {allowed}, got {value} ({note})")


def show(value: object) -> str:
    """A value as a TOML recipe writes it, where it is text; otherwise as Python does."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
