"""The algorithm contract, and the algorithms that ``train.method`` can name.

An algorithm is a class with a ``step`` and a few properties. One of your own lives outside of the
package and is named as "module:Class" (docs/how-to/extend.md). This module does not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paint.config.schema import Config, TrainConfig
from paint.core.errors import ConfigError, format_short
from paint.core.extensions import (
    build_options,
    extension_errors,
    load_object,
    of_type,
    require_overrides,
)
from paint.core.settings import POSITIVE, setting, within


class Algorithm:
    """One update of the student for each batch of problems.

    ``options``, set after construction, are made of ``train.options`` by the frozen dataclass with
    which the class annotates it (paint.core.extensions).
    """

    name: ClassVar[str] = ""  # as in train.method
    # It learns from the student's completions; else from solutions, and no engine is opened.
    needs_rollouts: ClassVar[bool] = True
    # The teacher reads a context, so teacher prompts are measured and the settings of context,
    # teacher and divergence apply.
    needs_context: ClassVar[bool] = False
    needs_grades: ClassVar[bool] = False  # it learns from rewards
    # It leaves out completions of which the teacher has nothing to read, as with context.source
    # "feedback" where the grader said nothing.
    passes_over: ClassVar[bool] = False
    # Fewest completions of a problem in a batch. With needs_grades and more than one, it compares
    # their rewards, and the share of groups without a difference is logged.
    min_samples: ClassVar[int] = 1
    # Tokens must be on policy and drawn at the loss's temperature.
    uses_policy_gradient: ClassVar[bool] = False
    options: Any = None

    @property
    def needs_teacher(self) -> bool:
        """Whether it scores under the teacher's weights; without, no copy of them is kept."""
        return self.needs_context

    def generates(self, config: Config) -> bool:
        """Whether a run samples from its engine: to learn from completions, or to validate."""
        return self.needs_rollouts or bool(config.validation.path)

    def check(self, config: Config) -> None:
        """Raise ConfigError for settings that it cannot take, before a model is loaded."""
        return

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        """Update the student on this rank's rows of a batch.

        Args:
            setup: a ``paint.training.train_step.Setup``.
            batch: pairs of place in the batch and problem.
            step_index: the step, from 0.
            clock: ``with clock("loss"):`` times a phase.

        Returns the rollouts of all ranks (on others than the first: their own), with the values of
        the loss in ``tokens``, and the norm of the gradient.
        """
        raise NotImplementedError


class _BuiltIn(Algorithm):
    """An algorithm of the package. The module of its step imports torch, and is imported then."""

    step_function: ClassVar[str]

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        step = load_object(self.step_function, "train.method", ALGORITHMS)
        return step(setup, batch, step_index, clock)


class Distillation(_BuiltIn):
    """PAINT, and OPSD where nothing is masked or interpolated (paper: Algorithm 1)."""

    name = "distillation"
    step_function = "paint.algorithms.paint:paint_step"
    needs_context = True
    passes_over = True


@dataclass(frozen=True)
class GrpoOptions:
    """Options of GRPO (paint.algorithms.grpo)."""

    clip: float = setting(0.2, within("(0, 1)"))
    """Clip range ε of the ratio of new to old probability around 1, in (0, 1) (OPSD's scripts,
    0.2)."""
    kl: float = setting(0.0, within("[0, inf)"))
    """Weight β of the KL to the model before training, at least 0 (OPSD's scripts: none)."""
    iterations: int = setting(1, POSITIVE)
    """Optimizer updates on the same completions; with 1 the ratio is 1 and nothing is clipped
    (OPSD's scripts, 1)."""


class Grpo(_BuiltIn):
    """Group-relative policy gradient on verified answers (paper: 'GRPO')."""

    name = "grpo"
    step_function = "paint.algorithms.grpo:grpo_step"
    needs_grades = True
    # An advantage compares a completion with others of its problem.
    min_samples = 2
    uses_policy_gradient = True
    options: GrpoOptions

    @property
    def needs_teacher(self) -> bool:
        return self.options.kl > 0

    def check(self, config: Config) -> None:
        if self.options.iterations > 1 and config.objective.has_sft:
            raise ConfigError(
                f"objective.sft_weight must be 0, and objective.sft_weight_end None, with "
                f"train.options.iterations {self.options.iterations}: the solutions are learned "
                f"from in one update a step; set iterations 1"
            )


class Sft(_BuiltIn):
    """Maximum likelihood of the reference solutions (paper: 'SFT')."""

    name = "sft"
    step_function = "paint.algorithms.sft:sft_step"
    needs_rollouts = False


class RecordedAlgorithm(Algorithm):
    """What an algorithm needs, as ``needs_of`` recorded it: its code is not imported."""

    def __init__(self, needs: Mapping[str, Any]) -> None:
        self.needs_context = bool(needs.get("context"))  # type: ignore[misc]
        self.needs_rollouts = bool(needs.get("rollouts"))  # type: ignore[misc]


def needs_of(algorithm: Algorithm) -> dict[str, bool]:
    return {"context": algorithm.needs_context, "rollouts": algorithm.needs_rollouts}


ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (Distillation, Grpo, Sft)}


def find_algorithm(config: TrainConfig) -> Algorithm:
    """The algorithm of ``train.method`` with its options. Raises ConfigError for an unknown one."""
    name = config.method
    found = ALGORITHMS.get(name) or load_object(name, "train.method", ALGORITHMS)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(
            f"train.method is {format_short(name)}, an object {of_type(found)}, which is not a "
            f"subclass of paint.resolve.algorithm.Algorithm"
        )
    options = build_options(found, config.options, "train.options", f"train.method {name}")
    with extension_errors("train.method", name):
        algorithm = found()
        algorithm.options = options
    require_overrides(algorithm, f"train.method {name}")
    if type(algorithm).step is Algorithm.step:
        raise ConfigError(f"train.method {name} has no step; define it")
    return algorithm
