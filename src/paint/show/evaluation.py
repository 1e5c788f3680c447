"""What the page of evaluations holds: every answer with its verdict, and the policies beside each
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paint import files
from paint.evaluation.intervals import bootstrap
from paint.evaluation.metrics import GradedSamples, figures, pass_at_k
from paint.evaluation.stages import assembled, stored_in
from paint.evaluation.store import Sample, Store, StoreError, reopen_store
from paint.evaluation.tables import comparisons

TEXT_CHARACTERS = 6_000_000
"""Of all answers of a page; of longer ones the middle is left out."""


@dataclass(frozen=True)
class Graded:
    """A store with its grades.

    Attributes:
        rows: of grades.jsonl, in the order of the store's rows.
        samples: in the same order.
    """

    store: Store
    graded: GradedSamples
    rows: list[dict[str, Any]]
    samples: list[Sample]


def read_graded(folder: Path) -> Graded:
    """An evaluation as it was graded; nothing is graded again, and nothing is written.

    Raises:
        StoreError: it is not graded, or not all of it.
        Damaged: a file was changed since it was written.
    """
    path = folder / "grades.jsonl"
    with reopen_store(folder) as store:
        if not path.exists():
            raise StoreError(f"{folder} is not graded; `paint grade {folder}` does it")
        rows = list(files.read_rows(path, f"`paint grade {folder}` writes it again"))
        wanted = [(problem.id, sample) for problem, sample in store.rows]
        if [(row["problem"], row["sample"]) for row in rows] != wanted:
            raise StoreError(
                f"{path} is not of all samples that are stored; `paint grade {folder}` grades them"
            )
        by_row = {(sample.problem, sample.sample): sample for sample in store.samples()}
        samples = [by_row[row] for row in wanted]
    return Graded(
        store, assembled(store, rows, [(s.tokens, s.truncated) for s in samples]), rows, samples
    )
