"""``paint export``."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from paint.api import export
from paint.cli.options import Place
from paint.config.schema import Dtype


@dataclass(frozen=True)
class Export:
    """Write a checkpoint as a folder that transformers, peft and vLLM load, with a model card.

    It holds the adapter or the merged model, tokenizer, generation settings, and a card made from
    the run and its evaluations (docs/how-to/export.md).

    Example: paint export runs/first --to exported/first --merged --dtype bfloat16
    """

    checkpoint: Annotated[Positional[Place], arg(metavar="CHECKPOINT")]
    """A checkpoint, or a run: its last one."""
    to: Place
    """Folder to write; it must be new or empty."""
    merged: bool = False
    """Write one model instead of an adapter."""
    dtype: Dtype | None = None
    """Number format of what is written; None is float32 for an adapter, as it was trained, and
    that of the run's base for a model."""
    evaluations: tuple[Place, ...] = ()
    """Folders of `paint eval` whose figures the card takes; they must have this checkpoint. The
    run's validation is always included."""
    license: str = ""
    """Licence as the hub names it, such as apache-2.0; empty is that of the base's card."""
    push: str = ""
    """Upload to this repository of the hub, owner/name, private if it is new. Without a token, what
    would be uploaded is listed."""

    def run(self) -> int:
        export(
            self.checkpoint,
            self.to,
            merged=self.merged,
            dtype=self.dtype,
            evaluations=self.evaluations,
            license=self.license,
            push=self.push,
        )
        return 0
