"""The model card of an exported checkpoint, from its run and its evaluations.

Its text is the template card.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCard, ModelCardData

from paint.config.recipe import differences
from paint.config.schema import Config
from paint.core.demo_files import model_path
from paint.core.errors import escape_markdown_cell
from paint.evaluation.frame import read_report, select_rows, to_markdown
from paint.evaluation.generate import checkpoint_digest
from paint.evaluation.store import StoreError, find_stores, read_settings
from paint.evaluation.summary import SUMMARY
from paint.models.exports import Rounding
from paint.objective.messages import student_messages

LOCAL = (
    *("model.path", "data.path", "validation.path", "log."),
    *("rollout.server", "rollout.urls"),
)
"""Settings of this machine, which the list of settings leaves out."""

SAMPLING = ("samples", "thinking", "temperature", "top_p", "top_k", "max_new_tokens", "seed")
"""Settings of an evaluation that the card names."""


@dataclass(frozen=True)
class Export:
    name: str
    config: Config
    run_info: Mapping[str, Any]  # run.json
    step: int
    merged: bool
    dtype: str
    rounding: Rounding
    nats: float | None  # of a merged model: distance of its log-probs from the policy's
    license: str = ""


@dataclass(frozen=True)
class CheckpointEvaluation:
    """An evaluation with this checkpoint among its policies."""

    policy: str  # the checkpoint's name in it
    tables: str  # of every policy, as Markdown
    settings: Mapping[str, Any]  # how it sampled
    graders: Sequence[str]  # by name, without the folder of a file
    is_reward: bool  # the grader gives numbers, so the tables have the mean reward


def find_evaluation(folder: Path, trained: Path) -> CheckpointEvaluation:
    """Find a checkpoint in an evaluation, by the digest of its weights.

    Raises StoreError if the evaluation does not have it.
    """
    identity = checkpoint_digest(trained)
    for store in find_stores(folder):
        settings = read_settings(store)
        # Stores name a full model by its weights, and an adapter as such.
        if identity in (settings.get("adapter"), settings.get("weights")):
            hint = f"`paint grade {folder}` writes it again"
            report = read_report(folder / f"{SUMMARY}.json", hint)
            tables = to_markdown(report.tables).strip()
            is_reward = bool(select_rows(report.rows, metric="reward", against=...))
            graders = [escape_markdown_cell(Path(g).name) for g in settings["grading"]["grader"]]
            return CheckpointEvaluation(store.parent.name, tables, settings, graders, is_reward)
    raise StoreError(f"{folder} has no samples of {trained.parent}; evaluate it with paint eval")


def write_card(export: Export, evaluations: Sequence[CheckpointEvaluation], folder: Path) -> None:
    """Write README.md."""
    config = export.config
    base, data = config.model.path, config.data.paths
    is_hub_model = not Path(model_path(base)).exists()
    on_hub = [path for path in data if "/" in path and not Path(path).exists()]
    # What the hub links; a folder of this machine is no link.
    links: dict[str, Any] = {}
    if is_hub_model:
        links["base_model"] = base
        # By it the hub lists a model under its base.
        links["base_model_relation"] = "finetune" if export.merged else "adapter"
    if on_hub:
        # A revision or a subset may follow the name of a data set.
        names = [path.split("@")[0].split(":")[0] for path in on_hub]
        links["datasets"] = list(dict.fromkeys(names))
    card_data = ModelCardData(
        **links,
        library_name="transformers" if export.merged else "peft",
        license=export.license or None,
        model_name=export.name,
        pipeline_tag="text-generation",
        tags=["paint", "self-distillation"],
    )
    # No autoescape: it would write HTML's entities into Markdown.
    environment = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files("paint.lab.publish") / "card.md").read_text("utf-8"))
    settings = []
    for line in differences(Config(), config):
        name = line.partition(": ")[0]
        if "options." in name:  # their values may be addresses, or somebody's names
            settings.append(f"{name} is set")
        elif not line.startswith(LOCAL):
            settings.append(line)
    text = template.render(
        export=export,
        config=config,
        run_info=export.run_info,
        base=_public(base),
        served=_public(base) if is_hub_model else "BASE",
        data=", ".join(map(_public, data)),
        prompt=config.prompts.student or student_messages("PROBLEM")[0]["content"],
        settings=settings,
        evaluations=evaluations,
        sampling=SAMPLING,
    )
    ModelCard(f"---\n{card_data}\n---\n\n{text}").save(folder / "README.md")


def _public(path: str) -> str:
    """Return a hub name, or the last part of a path of this machine."""
    return escape_markdown_cell(Path(path).name if Path(path).exists() else path)
