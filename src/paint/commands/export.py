from collections.abc import Sequence
from pathlib import Path

from paint.commands.api import arguments
from paint.commands.api.results import Evaluation, path_of
from paint.config.run_folder import checkpoint_of
from paint.config.schema import Dtype


def export(
    checkpoint: arguments.RunPath,
    to: str | Path,
    *,
    merged: bool = False,
    dtype: Dtype | None = None,
    evaluations: Sequence[Evaluation | str | Path] = (),
    license: str = "",
    push: str = "",
) -> Path:
    """Write a checkpoint as a folder that transformers, peft and vLLM load, with a model card.

    It holds the adapter or the merged model, tokenizer, generation settings, and a card made from
    the run and its evaluations (docs/how-to/export.md).

    Example: paint export runs/first exported/first --merged --dtype float32

    Args:
        checkpoint: A checkpoint, or a run: its last one.
        to: Folder to write; it must be new or empty.
        merged: Write one model instead of an adapter.
        dtype: Number format of what is written; None is float32 for an adapter, as it was trained,
            and that of the run's base for a model.
        evaluations: Evaluations whose results the card takes; they must have this checkpoint. The
            run's validation is always included.
        license: Licence as the hub names it, such as apache-2.0; empty names none.
        push: Upload to this repository of the hub, owner/name, private if it is new.
    """
    of_run = checkpoint_of(path_of(checkpoint))

    from paint.lab.publish import export

    return export.export(
        of_run,
        Path(to),
        merged=merged,
        dtype=dtype,
        evaluations=[path_of(evaluation) for evaluation in evaluations],
        license=license,
        repository=push,
    )
