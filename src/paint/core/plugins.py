"""Objects of a user's own, named in a setting as "module:name"."""

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paint.core.errors import ConfigError, format_short

_SPEC = re.compile(r"\w+(\.\w+)*:\w+")


def load_object(spec: str, setting: str, known: Iterable[str]) -> Any:
    """Import the object that ``spec`` names.

    The module is found as Python finds any, and after that in the working directory.

    Args:
        spec: "module:name".
        setting: the setting that holds it, for messages.
        known: the names that the setting also takes, for messages.

    Raises:
        ConfigError: the text has another form, or nothing of that name can be imported.
    """
    if not _SPEC.fullmatch(spec):
        raise ConfigError(
            f"{setting} must be one of {', '.join(known)}, or module:name, got {format_short(spec)}"
        )
    module_name, _, name = spec.partition(":")
    here = str(Path.cwd())
    # Last, so that no file of the working directory replaces a module that is installed.
    sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{setting} is {format_short(spec)}, and {module_name} cannot be imported: {error}; "
            f"install it, or put its folder into PYTHONPATH"
        ) from error
    finally:
        sys.path.remove(here)
    if not hasattr(module, name):
        raise ConfigError(f"{setting} is {format_short(spec)}, and {module_name} has no {name}")
    return getattr(module, name)


def spec_of(value: Any, name: str = "") -> str:
    """The "module:name" under which an object can be imported again.

    Args:
        name: its name in its module; empty for a function or class, which knows its own.
    """
    return f"{value.__module__}:{name or value.__qualname__}"
