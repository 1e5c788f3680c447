"""The evaluations of a run by `paint eval`: where they are, and what they say of it."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from paint.config.run_folder import checkpoints, read_run, step_of
from paint.config.schema import EvaluationConfig
from paint.core.errors import PaintError
from paint.evaluation.evaluate import name_of_run
from paint.evaluation.frame import Measurement, Unit, read_report, select_rows
from paint.evaluation.generate import checkpoint_digest
from paint.evaluation.store import find_stores, read_settings
from paint.evaluation.summary import SUMMARY
from paint.lab.viewer.page import PAGE
from paint.models.weights import trained_in

UNITS: dict[str, tuple[str, Unit, str]] = {
    "reward": ("Mean reward", "hundredths", "hundredths"),
    "avg_at_k": ("Accuracy", "%", "points"),
}
"""By metric: its name in words, its unit, and that of a difference. The first that is there."""


def evaluations_of(
    run: Path, page: Path, further: Sequence[Path] = ()
) -> list[dict[str, str | None]]:
    """Return the evaluations that hold a checkpoint of a run, by the digest of its weights.

    Each has its scores in words, and its page's address for another page, if that was written. They
    are looked for in ``evals`` of the working directory and beside the folders above the run, where
    `paint eval` writes by default, and in ``further`` folders.
    """
    name = EvaluationConfig().output_dir
    places = [Path(name), *(above / name for above in run.resolve().parents), *further]
    named = {f"{name_of_run(run)}-{path.name}": path for path in checkpoints(run)}
    evaluations: dict[Path, dict[str, str | None]] = {}
    for place in places:
        for summary in sorted({*place.glob(f"*/{SUMMARY}.json"), *place.glob(f"{SUMMARY}.json")}):
            folder = summary.parent.resolve()
            policies = [policy for policy in named if (folder / policy).is_dir()]
            if folder not in evaluations and policies:
                text = _text_of(folder, policies[-1], named[policies[-1]], run)
                if text:
                    # Quoted, so that no folder's name reads as another address.
                    link = quote(os.path.relpath(folder / PAGE, page.resolve().parent))
                    evaluations[folder] = {
                        "text": text,
                        "folder": os.path.relpath(folder),
                        "link": link if (folder / PAGE).exists() else None,
                    }
    return list(evaluations.values())


def _text_of(folder: Path, policy: str, checkpoint: Path, run: Path) -> str:
    """Return the scores of a checkpoint in words; "" if they are another's, or cannot be read."""
    try:
        identity = checkpoint_digest(trained_in(checkpoint, read_run(run).model.train_mode))
        for store in find_stores(folder / policy):
            settings = read_settings(store)
            if identity not in (settings.get("adapter"), settings.get("weights")):
                return ""
        report = read_report(folder / f"{SUMMARY}.json", "")
    except PaintError:
        return ""
    for metric in UNITS:
        levels = select_rows(report.rows, metric=metric, policy=policy)
        if levels:
            sentences = [_sentence(report.rows, row, step_of(checkpoint)) for row in levels]
            return "; ".join(sentences)
    return ""


def _sentence(rows: Sequence[Measurement], row: Measurement, step: int) -> str:
    words, unit, difference = UNITS[row.metric]
    percent = " %" if unit == "%" else ""
    text = f"{words} on {row.benchmark} {row.text(unit)}{percent} after step {step}"
    same = {"metric": row.metric, "policy": row.policy, "benchmark": row.benchmark}
    for gain in select_rows(rows, against=..., **same):
        if gain.against:
            text += f", {gain.text('points')} {difference} over {gain.against}"
    return text
