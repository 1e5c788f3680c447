"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners.

    run = paint.train("demo-paint", output_dir="runs/x", train={"steps": 4})
    run.metrics

The functions of paint.api and those of the method can be imported from here by name. Each comes
from its module (such as paint.objective.masking or paint.objective.loss) when it is first used, so
that ``import paint`` does not import torch.
"""

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "paint runs on Linux and macOS; on Windows, install it in WSL (`wsl --install`): answers "
        "are graded with features of POSIX systems"
    )

from paint.core.errors import ConfigError, Interrupted, NonFiniteError, PaintError
from paint.core.versions import __version__ as __version__

# tqdm's, which libraries bring, in notebooks without ipywidgets. Progress here is lines of text.
warnings.filterwarnings("ignore", "IProgress not found")

if TYPE_CHECKING:
    from paint.algorithms.base import Algorithm
    from paint.api import (
        Advice,
        Bake,
        Evaluation,
        Page,
        Run,
        ablate,
        advise,
        bake,
        compare,
        doctor,
        evaluate,
        export,
        grade,
        held_out_kl,
        load_run,
        plan,
        prepare_openthoughts,
        resume,
        runs,
        show,
        train,
        validate_data,
    )
    from paint.config.schema import Config
    from paint.grading.base import Grade
    from paint.objective.divergences import Divergence
    from paint.objective.fused import fused_paint_loss
    from paint.objective.loss import (
        Loss,
        clipped_divergence,
        entropy,
        interpolate,
        paint_loss,
        select_positions,
    )
    from paint.objective.masking import anchors, mask_ratio, mask_solution, normalize, overlap
    from paint.objective.prompts import student_messages, teacher_messages
    from paint.training.callbacks import Callback
    from paint.training.optim import OptimizerFactory

__all__ = [
    "Advice",
    "Algorithm",
    "Bake",
    "Callback",
    "Config",
    "ConfigError",
    "Divergence",
    "Evaluation",
    "Grade",
    "Interrupted",
    "Loss",
    "NonFiniteError",
    "OptimizerFactory",
    "Page",
    "PaintError",
    "Run",
    "ablate",
    "advise",
    "anchors",
    "bake",
    "clipped_divergence",
    "compare",
    "doctor",
    "entropy",
    "evaluate",
    "export",
    "fused_paint_loss",
    "grade",
    "held_out_kl",
    "interpolate",
    "load_run",
    "mask_ratio",
    "mask_solution",
    "normalize",
    "overlap",
    "paint_loss",
    "plan",
    "prepare_openthoughts",
    "resume",
    "runs",
    "select_positions",
    "show",
    "student_messages",
    "teacher_messages",
    "train",
    "validate_data",
]

_EXPORTS = (
    "objective.anchors",
    "objective.masking",
    "objective.prompts",
    "objective.divergences",
    "config.schema",
    "algorithms.base",
    "grading.base",
    "training.callbacks",
    "training.optim",
    "api",
    "objective.loss",
    "objective.fused",
)
# Modules whose names are exported; the last two import torch.

if not TYPE_CHECKING:  # a type checker would take any name for one that this function knows

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for home in _EXPORTS:
                module = import_module(f"paint.{home}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
