"""Runtime checks of paint's type annotations during tests.

jaxtyping compares the dimensions of a call's arrays with each other. That takes some fifty
microseconds a call, which functions of texts and numbers would pay for nothing: two thirds of what
the tests of a training took. They are checked by beartype alone, in about one.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

# An int is a float, as type checkers have it.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))

_with_dimensions = jaxtyping.jaxtyped
_inner: set[str] = set()
"""The functions within functions that have been checked."""


def check_annotations_of(package: str) -> None:
    """From here on; the package must not have been imported."""
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]
    jaxtyping.install_import_hook(package, "shapes.check")


def _checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """What jaxtyping's import hook decorates every function and class with."""

    def decorate(of: Any) -> Any:
        function = of.__init__ if inspect.isclass(of) else of
        if any(map(_is_of_arrays, getattr(function, "__annotations__", {}).values())):
            return _with_dimensions(of, typechecker=typechecker)
        if not inspect.isclass(of):
            return _checked_where_enabled(of)
        if "__dataclass_fields__" in vars(of):
            of.__init__ = _checked_where_enabled(of.__init__)  # type: ignore[method-assign]
        return of

    return decorate


def _checked_where_enabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Heeds jaxtyping's switch, as functions of arrays do."""
    # A function within another is made at each call, and its check takes two milliseconds to
    # compile: only the first one is checked.
    name = f"{function.__module__}.{function.__qualname__}"
    if "<locals>" in name:
        if name in _inner:
            return function
        _inner.add(name)
    checked = check(function)

    @wraps(function)
    def checked_where_enabled(*args: Any, **kwargs: Any) -> Any:
        disabled = jaxtyping.config.jaxtyping_disable
        return (function if disabled else checked)(*args, **kwargs)

    return checked_where_enabled


def _is_of_arrays(annotation: Any) -> bool:
    """Whether an array is part of it; as text, it may be."""
    if isinstance(annotation, list):  # the arguments of a Callable
        return any(map(_is_of_arrays, annotation))
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return isinstance(annotation, str) or any(map(_is_of_arrays, get_args(annotation)))
