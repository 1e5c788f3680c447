"""Where the embedded model and its problems lie: what the name "demo" stands for."""

from pathlib import Path

NAME = "demo"
MODEL = Path(__file__).parent / "model"
TRAINING_PROBLEMS = MODEL / "train.jsonl"
HELD_OUT_PROBLEMS = MODEL / "held_out.jsonl"


def model_path(path: str) -> str:
    """The folder or hub name that ``model.path`` stands for."""
    return str(MODEL) if path == NAME else path


def model_name(path: str) -> str:
    """The name under which a folder is known: the way back."""
    return NAME if Path(path) == MODEL else path


def problems_path(path: str) -> str:
    """The source of problems that ``data.path`` stands for."""
    return str(TRAINING_PROBLEMS) if path == NAME else path
