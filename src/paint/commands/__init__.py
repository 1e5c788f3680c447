"""The commands, one file each: ``train.py`` has the function ``train``, and nothing else names it.

Its signature and docstring are the Python API (``paint.train``), the command line (``paint train``)
and the entries of the reference pages. Parameters before ``*`` are positional on the command line,
the others are flags, and ``**sections`` stands for the flags of all settings.

A module may also have

- ``NAME``: the name on the command line, where it is not the function's;
- ``HAS_STEPS``: true where the command prints a line a step, of which ``-v`` prints all metrics;
- ``CONTINUES``: true where the same command continues after an interruption;
- ``report(result)``: the text that the command line prints for the result, or JSON with ``--json``;
- ``status(result)``: the exit status, where it is not always 0.

The folder ``api`` has what commands take and return.
"""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Annotated, Any, get_args, get_origin

from paint.core.settings import check_argument
from paint.core.trust import begin_call


@dataclass(frozen=True)
class Command:
    """A command: its function, and how the command line names it and shows its result."""

    name: str  # such as "train" or "data validate"
    function: Callable[..., Any]
    has_steps: bool = False
    continues: bool = False
    report: Callable[[Any], str] | None = None
    status: Callable[[Any], int] | None = None


def function_names() -> list[str]:
    """Return the names of the functions, which are those of the files in this folder."""
    return [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]


@cache
def load_function(name: str) -> Callable[..., Any]:
    """Import a command's function by its name. What the user says counts for one call of it."""
    function: Callable[..., Any] = getattr(import_module(f"{__name__}.{name}"), name)

    signature = inspect.signature(function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        from paint.core.display import progress_lines  # here: `import paint` need not import rich

        given = signature.bind(*arguments, **named).arguments
        for argument, value in given.items():
            check_argument(argument, value, signature.parameters[argument].annotation)
        with begin_call(), progress_lines():
            return function(*arguments, **named)

    # The types alone, for help(); the command line reads the notes of ``function`` (parameters_of).
    plain = [p.replace(annotation=plain_type(p.annotation)) for p in signature.parameters.values()]
    called.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return called


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command's function, with their ``Annotated`` types."""
    return list(inspect.signature(inspect.unwrap(function)).parameters.values())


def plain_type(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def load_commands() -> dict[str, Command]:
    """Import every command; the keys are names on the command line."""
    commands = {}
    for function_name in function_names():
        function = load_function(function_name)
        module = import_module(f"{__name__}.{function_name}")
        name = getattr(module, "NAME", function_name.replace("_", "-"))
        commands[name] = Command(
            name,
            function,
            has_steps=getattr(module, "HAS_STEPS", False),
            continues=getattr(module, "CONTINUES", False),
            report=getattr(module, "report", None),
            status=getattr(module, "status", None),
        )
    return dict(sorted(commands.items()))
