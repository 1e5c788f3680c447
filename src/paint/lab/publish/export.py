"""`paint export`: a checkpoint as a folder that other programs load, and its upload to the hub.

adapter_model.safetensors, adapter_config.json    or model.safetensors and config.json
tokenizer.json, chat_template.jinja, ...          the base's, unchanged
generation_config.json                            the base's, if it has one
README.md                                         the model card (paint.lab.publish.card)
SHA256SUMS                                        checksums of these files

A merged model is read again, and the folder gets its name when that is the trained policy.
"""

import gc
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import HfApi, get_token

from paint.config import schema as cfg
from paint.config.run_folder import (
    checkpoint_of,
    read_history,
    read_run,
    read_run_json,
    require_checkpoint,
    step_of,
)
from paint.core.demo_files import model_path
from paint.core.display import Display
from paint.core.errors import ConfigError, PaintError, wrap_errors
from paint.core.storage import atomic_dir
from paint.lab.publish.card import CheckpointEvaluation, Export, find_evaluation, write_card
from paint.models.exports import Rounding, export_adapter, export_merged, merged_difference
from paint.models.policy import load_policy, load_tokenizer
from paint.models.weights import save_generation_settings, trained_in
from paint.resolve.plan import Machine, dtype_on

# Shares of the update: an export that loses more of it warns, or is refused (ours).
# Where the rounding of the base is larger than the update, it may seem to be kept several times.
LITTLE_LOST = 0.1
MOST_LOST = 0.5


class ExportError(PaintError):
    """A checkpoint cannot be exported or uploaded; the message has the reason and a hint."""


def export(
    target: Path,
    folder: Path,
    *,
    merged: bool = False,
    dtype: cfg.Dtype | None = None,
    evaluations: Sequence[Path] = (),
    license: str = "",
    repository: str = "",
) -> Path:
    """Write a checkpoint for other programs (``paint.export``; ``repository`` is its ``push``).

    Raises PolicyError, and leaves nothing, if what was written is not the trained policy.
    """
    display, checkpoint = Display(), checkpoint_of(target)
    run = checkpoint.resolve().parent.parent
    config = read_run(run)
    trained = trained_in(checkpoint, config.model.train_mode)
    require_checkpoint(checkpoint, trained.name)
    step = step_of(checkpoint)
    read_history(run, step)  # a run that lost its metrics is refused, as by resume
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{folder} exists; name a new folder, or remove it")
    measured = _find_evaluations(evaluations, run, trained)
    # Adapters are trained in float32 (fidelity C30), in which they lose nothing.
    has_adapter = config.model.train_mode != "full"
    merges_adapter = merged and has_adapter
    merged = merged or not has_adapter
    dtype = dtype or (dtype_on(config.model, Machine()) if merged else "float32")
    with (
        wrap_errors(folder, ExportError, "free some space, or name another folder"),
        atomic_dir(folder.resolve()) as partial,
    ):
        with display.working("exporting"):
            rounding, nats = _write(config.model, trained, partial, dtype, merged=merged)
        kept = _require_little_lost(rounding, dtype, display, merges_adapter=merges_adapter)
        name, info = repository or folder.resolve().name, read_run_json(run)
        made = Export(name, config, info, step, merged, dtype, rounding, nats, license)
        write_card(made, measured, partial)

    display.note(f"written to {folder}: {kept}")
    if nats is not None:
        display.note(
            f"read again: log-probs of a text are those of the trained policy within {nats:.2g} "
            f"nats a token"
        )
    if not merged and Path(model_path(config.model.path)).exists():
        display.note(
            f"the adapter's base is a folder of this machine, {model_path(config.model.path)}; for "
            f"others, export with --merged"
        )
    if repository:
        upload(folder, repository, display)
    return folder


def _find_evaluations(
    evaluations: Sequence[Path], run: Path, trained: Path
) -> list[CheckpointEvaluation]:
    """Return what the card says of evaluations, among which the run's validation always is."""
    places = list(evaluations)
    if (run / "validation" / "summary.json").exists():
        places.append(run / "validation")
    return [find_evaluation(place, trained) for place in places]


def _write(
    model: cfg.ModelConfig, trained: Path, folder: Path, dtype: cfg.Dtype, *, merged: bool
) -> tuple[Rounding, float | None]:
    if merged:
        # The seed draws an adapter that the trained weights replace.
        policy = load_policy(model, seed=0)
        written = export_merged(policy, trained, folder, getattr(torch, dtype))
        del policy  # the model that is read takes its memory
        gc.collect()
        return written.rounding, merged_difference(folder, written)
    rounding = export_adapter(trained, folder, getattr(torch, dtype))
    load_tokenizer(model.path).save_pretrained(folder)
    save_generation_settings(model.path, folder)
    return rounding, None


def _require_little_lost(
    rounding: Rounding, dtype: cfg.Dtype, display: Display, *, merges_adapter: bool
) -> str:
    """Return what is kept of the training; warn where some is lost.

    Raises ConfigError where it is most.
    """
    kept = (
        f"{dtype} keeps {rounding.kept:.2%} of the update, with an error of {rounding.error:.2%} "
        f"of its size"
    )
    remedy = "write float32 (--dtype float32)"
    if merges_adapter:
        remedy = f"export the adapter (without --merged), or {remedy}"
    lost = abs(1 - rounding.kept)  # not a number where nothing was trained
    if lost > MOST_LOST:
        raise ConfigError(f"{kept}, so nothing was written: {remedy}")
    if lost > LITTLE_LOST or rounding.error > 1:
        display.warn(f"{kept}: {remedy}")
    return kept


def upload(folder: Path, repository: str, display: Display) -> None:
    """Upload a folder to a model repository of the hub, which is created private if it is new.

    Without a token nothing is sent. Raises ExportError if the hub refuses or cannot be reached.
    """
    if get_token() is None:
        display.warn(
            f"{folder} was not uploaded: there is no token; `hf auth login`, or the environment "
            f"variable HF_TOKEN, gives one"
        )
        return
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi()
    with wrap_errors(repository, ExportError, "check its name and the rights of your token"):
        # Publishing is the user's decision. A repository that exists keeps its visibility.
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Add model"
        )
    display.note(f"uploaded: {commit.commit_url}")
