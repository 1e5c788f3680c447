"""User-defined objects that a setting names as "module:name".

An object that is passed in Python gets such a name from ``spec_of``. This process finds it by that
name even where no module can be imported for it, as in a notebook.
"""

import base64
import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paint.core.errors import ConfigError, format_short

_SPEC = re.compile(r"\w+(\.\w+)*:\w+")
_passed: dict[str, Any] = {}
# Objects that were passed in Python, by their names.

PICKLED = "pickle:"


def load_object(spec: str, setting: str, known: Iterable[str]) -> Any:
    """Import the object that ``spec`` names.

    The module is searched on sys.path, then in the working directory.

    Args:
        spec: "module:name".
        setting: name of the setting, for messages.
        known: the built-in values of the setting, for messages.

    Raises:
        ConfigError: the text has another form, or the object cannot be imported.
    """
    if spec in _passed:
        return _passed[spec]
    if spec.startswith(PICKLED):
        import dill

        return dill.loads(base64.b64decode(spec.removeprefix(PICKLED)))
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


def spec_of(value: Any, name: str = "", module: str = "") -> str:
    """Name an object as "module:name"; ``load_object`` finds it by this name.

    Args:
        name: its name in its module; empty takes the last part of the __qualname__ of a function or
            class.
        module: its module; empty takes its __module__.
    """
    name = name or re.sub(r"\W", "", value.__qualname__.rpartition(".")[2])
    spec = f"{module or value.__module__}:{name}"
    _passed[spec] = value
    return spec


def portable_spec(spec: str) -> str:
    """A name by which a process that this one starts finds the object, too.

    An object that is in no module that can be imported, such as a function of a script, of a
    notebook or of another function, is pickled with the globals that it uses.
    """
    module, _, name = spec.partition(":")
    found = _passed.get(spec)
    is_importable = getattr(sys.modules.get(module), name, None) is found and module != "__main__"
    if found is None or is_importable:
        return spec
    import dill

    return PICKLED + base64.b64encode(dill.dumps(found, byref=False, recurse=True)).decode()
