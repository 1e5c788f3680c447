"""Calls of a user's function, each in a separate process (strictgrade.processes).

What is PAINT's own of such a call: functions of notebooks, their options, whether a file that
names them is trusted, and values of arrays.
"""

import base64
import dataclasses
import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from codetrial.sandbox import SandboxError
from paint.core.errors import PaintError
from paint.core.extensions import NO_OPTIONS, bind_options, is_importable, load_object
from paint.core.trust import begin_call, vouch_for
from paint.core.user_code import describe_error, user_code
from strictgrade import processes
from strictgrade.processes import Arguments, ProcessError, Returned

PICKLED = "pickle:"
UNREADABLE = "__unreadable__"  # key of what ``to_plain`` makes


class Pool(processes.Pool):
    """Workers that call a user's function, for one thread at a time; they start when needed.

    Args:
        function: as "module:name".
        deadline: processor time of a call in seconds, from 0.01 to a day.
        workers: by default the number of cores.
        table: the options that the function declares.
    """

    def __init__(
        self,
        function: str,
        *,
        deadline: float,
        workers: int | None = None,
        table: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        opens, setup = f"{__name__}:open_function", (_portable(function), dict(table))
        super().__init__(opens, deadline=deadline, workers=workers, setup=setup)

    def start(self) -> None:
        """Import the function in a process of its own, while others go on."""
        with worker_errors():
            super().start()

    def call(self, calls: Sequence[Arguments]) -> list[Returned]:
        """Return the results in the order of the calls. Raises PaintError if no worker starts."""
        with worker_errors():
            found = super().call(calls)
        # A call that was ended has an error and no value.
        return [one if one.error else Returned(**one.value) for one in found]


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise what the libraries say of their processes as a PaintError, which is one line."""
    try:
        yield
    except (ProcessError, SandboxError) as error:
        raise PaintError(str(error)) from None


def open_function(name: str, table: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return a user's function with its options, whose calls return the fields of Returned."""
    function = bind_options(_load(name), table, "grading.options", "grading.grader")

    def call(*arguments: Any) -> dict[str, Any]:
        try:
            with user_code():
                return {"value": json.loads(json.dumps(function(*arguments), default=to_plain))}
        except (Exception, KeyboardInterrupt) as error:  # Ctrl-C does not reach this process
            return {"error": describe_error(error)}

    return call


def _portable(function: str) -> str:
    """The name of a function, or the pickled function where a worker cannot import it."""
    if is_importable(function):
        return function
    import dill

    class Pickler(dill.Pickler):  # type: ignore[misc]
        # Modules by name: dill would copy those outside of Python's folders, an editable install's.
        dispatch = type(dill.Pickler.dispatch)(dill.Pickler.dispatch)
        dispatch[ModuleType] = lambda pickler, module: pickler.save_reduce(
            import_module, (module.__name__,), obj=module
        )

    found = io.BytesIO()
    # By value, with the globals that it uses.
    pickler = Pickler(found, byref=False, recurse=True)
    pickler.dump(load_object(function, "grading.grader", ()))
    return PICKLED + base64.b64encode(found.getvalue()).decode()


def _load(function: str) -> Callable[..., Any]:
    if not function.startswith(PICKLED):
        with begin_call():  # the process that started this one has asked for it
            vouch_for([function])
            found: Callable[..., Any] = load_object(function, "grading.grader", ())
        return found
    import dill

    loaded: Callable[..., Any] = dill.loads(base64.b64decode(function.removeprefix(PICKLED)))
    return loaded


def to_plain(value: Any) -> Any:
    """Return a dataclass, or a number or array of numpy or torch, as JSON takes it.

    Anything else is {UNREADABLE: its type, "hint": what to do}.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # of numpy, torch and pandas
        plain = value.tolist()
        while isinstance(plain, list) and len(plain) == 1:  # an array of one number is a number
            [plain] = plain
        return plain
    hint = ""
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
    if inspect.isawaitable(value):
        hint = "; declare the function with async def, and await it there"
    elif isinstance(value, Iterator):
        hint = "; return a reward, or a list of them"
    return {UNREADABLE: type(value).__name__, "hint": hint}
