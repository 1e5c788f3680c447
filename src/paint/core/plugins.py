"""User-defined objects that a setting names as "module:name".

An object that is passed in Python gets such a name from ``spec_of``, for this process alone.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from paint.core.errors import ConfigError, format_short, reason, wrap_errors

_SPEC = re.compile(r"\w+(\.\w+)*:\w+")
_passed: dict[str, Any] = {}
# Objects that were passed in Python, by their names.


def load_object(spec: str, setting: str, known: Iterable[str]) -> Any:
    """Import the object "module:name" that ``spec`` names, from sys.path or the working directory.

    For messages, setting is the setting's name, and known are its built-in values.
    """
    if spec in _passed:
        return _passed[spec]
    if not _SPEC.fullmatch(spec):
        raise ConfigError(
            f"{setting} must be one of {', '.join(known)}, or module:name, got {format_short(spec)}"
        )
    module_name, _, name = spec.partition(":")
    here = str(Path.cwd())
    # Last, so that a file in the working directory cannot replace an installed module.
    sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{setting} is {format_short(spec)}, and {module_name} cannot be imported: "
            f"{type(error).__name__}: {reason(error)}{_line_of(error)}; correct the module, or put "
            f"its folder into PYTHONPATH"
        ) from error
    finally:
        sys.path.remove(here)
    if not hasattr(module, name):
        raise ConfigError(f"{setting} is {format_short(spec)}, and {module_name} has no {name}")
    return getattr(module, name)


def _line_of(error: BaseException) -> str:
    """Where an import failed: the file and line of a syntax error, or of the last call."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename} line {error.lineno})"
    calls = traceback.extract_tb(error.__traceback__)
    return f" ({calls[-1].filename} line {calls[-1].lineno})"


def extension_errors(setting: str, spec: str) -> AbstractContextManager[None]:
    """Turn errors of code outside of the package into ConfigErrors that name the setting.

    Those of a built-in value, which is no "module:name", pass unchanged.
    """
    if ":" not in spec:
        return nullcontext()
    return wrap_errors(f"{setting} {spec}", ConfigError, "correct it in its module")


def spec_of(value: Any, name: str = "", module: str = "") -> str:
    """Name an object as "module:name", its own unless given, by which ``load_object`` finds it."""
    name = name or re.sub(r"\W", "", value.__qualname__.rpartition(".")[2])
    spec = f"{module or value.__module__}:{name}"
    _passed[spec] = value
    return spec


def is_importable(spec: str) -> bool:
    """Whether another process finds the object by its name, too.

    False for an object that was passed in Python and is defined in a script, a notebook or another
    function.
    """
    module, _, name = spec.partition(":")
    is_there = getattr(sys.modules.get(module), name, None) is _passed.get(spec)
    return spec not in _passed or (is_there and module != "__main__")
