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
from paint.core.extensions import extension_errors, load_object, of_type, require_overrides
from paint.core.trust import vouch_for
from paint.core.user_code import user_errors


class Callback:
    """Methods that the trainer calls on the first rank; override those that are needed.

    One that raises ends the training with a ConfigError, which names it: what is complete is saved.
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


def load_callbacks(callbacks: Any) -> list[Callback]:
    """Return callbacks as objects; "module:name" is one, or a class. Raises ConfigError."""
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks must be a list of objects, got {format_short(callbacks)}")
    loaded: list[Callback] = []
    for callback in callbacks:
        found: Any = callback
        if isinstance(callback, str):
            vouch_for([callback])
            found = load_object(callback, "callbacks", ())
            with extension_errors("callbacks", callback):
                found = found() if isinstance(found, type) else found
        if not isinstance(found, Callback):
            named = format_short(callback) if isinstance(callback, str) else "one"
            raise ConfigError(
                f"callbacks must be objects of subclasses of paint.Callback, got {named}, an "
                f"object {of_type(found)}"
            )
        require_overrides(found, f"callbacks: {type(found).__name__}")
        loaded.append(found)
    return loaded


def tell_callbacks(callbacks: Sequence[Callback], method: str, *arguments: Any) -> list[Callback]:
    """Call a method of each callback; return those that returned True. Raises ConfigError."""
    found = []
    for callback in callbacks:
        place = f"the callback {type(callback).__name__}: {method}"
        with user_errors(place, ConfigError, "correct the callback"):
            if getattr(callback, method)(*arguments):
                found.append(callback)
    return found
