"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners.

    run = paint.train("demo-paint", output_dir="runs/x", train={"steps": 4})
    run.metrics

The commands (paint.commands), their results and the functions of the method can be imported from
here by name. Each comes from its module when it is first used, so that ``import paint`` does not
import torch.
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

from paint.commands import function_names, load_function
from paint.core.errors import ConfigError as ConfigError
from paint.core.errors import Interrupted as Interrupted
from paint.core.errors import NonFiniteError as NonFiniteError
from paint.core.errors import PaintError as PaintError
from paint.core.versions import __version__ as __version__

# tqdm's, which libraries bring, in notebooks without ipywidgets. Progress here is lines of text.
warnings.filterwarnings("ignore", "IProgress not found")

_HOMES = {
    "Algorithm": "algorithms.base",
    "Callback": "training.callbacks",
    "Config": "config.schema",
    "Divergence": "objective.divergences",
    "Evaluation": "results",
    "Grade": "grading.contract",
    "Loss": "objective.loss",
    "OptimizerFactory": "training.optim",
    "Page": "results",
    "Result": "results",
    "Run": "results",
    "anchors": "objective.masking",
    "clipped_divergence": "objective.loss",
    "entropy": "objective.loss",
    "fused_paint_loss": "objective.fused",
    "interpolate": "objective.loss",
    "load_run": "results",
    "mask_ratio": "objective.masking",
    "mask_solution": "objective.masking",
    "normalize": "objective.masking",
    "overlap": "objective.masking",
    "paint_loss": "objective.loss",
    "select_positions": "objective.loss",
    "student_messages": "objective.messages",
    "teacher_messages": "objective.messages",
}
# The public names in addition to the commands, each with its module.

_ERRORS = ("ConfigError", "Interrupted", "NonFiniteError", "PaintError")

__all__ = sorted([*_HOMES, *_ERRORS, *function_names()])

if TYPE_CHECKING:  # for type checkers, which do not see what is found at run time
    from paint.algorithms.base import Algorithm as Algorithm
    from paint.commands.ablate import ablate as ablate
    from paint.commands.advise import advise as advise
    from paint.commands.bake import bake as bake
    from paint.commands.chat import chat as chat
    from paint.commands.compare import compare as compare
    from paint.commands.doctor import doctor as doctor
    from paint.commands.evaluate import evaluate as evaluate
    from paint.commands.export import export as export
    from paint.commands.grade import grade as grade
    from paint.commands.held_out_kl import held_out_kl as held_out_kl
    from paint.commands.plan import plan as plan
    from paint.commands.prepare_openthoughts import prepare_openthoughts as prepare_openthoughts
    from paint.commands.resume import resume as resume
    from paint.commands.run_demo import run_demo as run_demo
    from paint.commands.runs import runs as runs
    from paint.commands.serve import serve as serve
    from paint.commands.show import show as show
    from paint.commands.show_config import show_config as show_config
    from paint.commands.train import train as train
    from paint.commands.validate_data import validate_data as validate_data
    from paint.config.schema import Config as Config
    from paint.grading.contract import Grade as Grade
    from paint.objective.divergences import Divergence as Divergence
    from paint.objective.fused import fused_paint_loss as fused_paint_loss
    from paint.objective.loss import Loss as Loss
    from paint.objective.loss import clipped_divergence as clipped_divergence
    from paint.objective.loss import entropy as entropy
    from paint.objective.loss import interpolate as interpolate
    from paint.objective.loss import paint_loss as paint_loss
    from paint.objective.loss import select_positions as select_positions
    from paint.objective.masking import anchors as anchors
    from paint.objective.masking import mask_ratio as mask_ratio
    from paint.objective.masking import mask_solution as mask_solution
    from paint.objective.masking import normalize as normalize
    from paint.objective.masking import overlap as overlap
    from paint.objective.messages import student_messages as student_messages
    from paint.objective.messages import teacher_messages as teacher_messages
    from paint.results import Evaluation as Evaluation
    from paint.results import Page as Page
    from paint.results import Result as Result
    from paint.results import Run as Run
    from paint.results import load_run as load_run
    from paint.training.callbacks import Callback as Callback
    from paint.training.optim import OptimizerFactory as OptimizerFactory
else:  # a type checker would take any name for one that this function knows

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"paint.{_HOMES[name]}"), name)
        if name in function_names():
            return load_function(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
