"""The callback contract: methods that are called while a run trains.

    class StopWhenSolved(paint.Callback):
        def on_step(self, step, metrics, rollouts):
            return metrics["accuracy"] == 1

    paint.train("demo-paint", callbacks=[StopWhenSolved()])

Callbacks run in the training process, on the first rank.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paint.core.errors import ConfigError, format_short
from paint.core.plugins import load_object


class Callback:
    """Methods that the trainer calls on the first rank; override those that are needed.

    An exception ends the training as any other error does: what is complete is saved.
    """

    def on_step(
        self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]
    ) -> bool | None:
        """Called after a step is logged; True ends the training with a checkpoint.

        Args:
            step: from 1.
            metrics: docs/reference/metrics.md has the names.
            rollouts: one dict per rollout, as stored in rollouts/ (docs/reference/run-folder.md).
        """

    def on_checkpoint(self, path: Path) -> None:
        """Called after a checkpoint is complete."""

    def on_end(self, run: Any) -> None:
        """Called after the last step, with the ``paint.Run``."""


METHODS = ("on_step", "on_checkpoint", "on_end")


class _Completed(Callback):
    """An object with some of the methods; the others do nothing."""

    def __init__(self, methods: Mapping[str, Any]) -> None:
        for name, method in methods.items():
            setattr(self, name, method)


def complete_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks with every method, from objects that have at least one.

    Text names an object as "module:name", or a class that is called without arguments. Raises
    ConfigError for what is no list of such objects, before anything is trained.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks must be a list of objects, got {format_short(callbacks)}")
    completed: list[Callback] = []
    for callback in callbacks:
        if isinstance(callback, str):
            callback = _load(callback)
        methods = {}
        for name in METHODS:
            if hasattr(callback, name):
                methods[name] = getattr(callback, name)
        is_object = not isinstance(callback, type) and bool(methods)
        if not is_object or not all(map(callable, methods.values())):
            raise ConfigError(
                f"callbacks must be objects with one of the methods {', '.join(METHODS)}, got "
                f"{format_short(callback)}"
            )
        if isinstance(callback, Callback):
            completed.append(callback)
        else:
            completed.append(_Completed(methods))
    return completed


def _load(spec: str) -> Any:
    """The object that "module:name" names, or an instance of the class."""
    found = load_object(spec, "callbacks", ())
    if isinstance(found, type):
        return found()
    return found
