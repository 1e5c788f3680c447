"""Paths of the embedded model and its problems, and resolution of the name "demo"."""

from pathlib import Path

NAME = "demo"
NEW_RULES = "demo-new-rules"
"""Held-out problems with words that no training problem has: a control, nothing is to gain."""

MODEL = Path(__file__).parents[1] / "demo" / "model"
TRAINING_PROBLEMS = MODEL / "train.jsonl"
HELD_OUT_PROBLEMS = MODEL / "held_out.jsonl"
NEW_RULES_PROBLEMS = MODEL / "held_out_new_rules.jsonl"


def model_path(path: str) -> str:
    return str(MODEL) if path == NAME else path


def model_name(path: str) -> str:
    """Return "demo" for the embedded model's folder, any other path unchanged."""
    return NAME if Path(path) == MODEL else path


def problems_path(path: str) -> str:
    return str(TRAINING_PROBLEMS) if path == NAME else path
