"""Per-token values of the loss, in one Parquet file a step.

    tokens/step-000001.parquet      a row a token, for the first ``log.token_rows`` rows of the step

docs/reference/run-folder.md lists the columns. Pages with a wrong checksum are refused.
"""

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paint.config.run_folder import RunError, step_folder, step_of
from paint.core import storage
from paint.core.errors import wrap_errors
from paint.core.storage import CorruptFileError
from paint.training.rollouts import ScoredRollout

FLAGS = ("selected", "clipped")  # values that are 0 or 1

ABOUT = ("row", "problem_id", "position", "token_id", "token")


def tokens_path(folder: Path, step: int) -> Path:
    """Path of the token file of a step."""
    return step_folder(folder / "tokens", step).with_suffix(".parquet")


def write_tokens(
    folder: Path,
    step: int,
    scored: Sequence[ScoredRollout],
    rows: int | Literal["all"],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write the token values of a step's first ``rows`` rows, of those that are trained on."""
    kept = [s for s in scored if s.tokens and (rows == "all" or s.rollout.row < rows)]
    if not kept:
        return

    path, sink = tokens_path(folder, step), BytesIO()
    pq.write_table(_table(kept, tokenizer), sink, compression="zstd", write_page_checksum=True)
    with wrap_errors(path, RunError, f"free some space, then `paint resume {folder}`"):
        storage.write_atomic(path, sink.getvalue())


def read_tokens(path: Path) -> dict[int, dict[str, Any]]:
    """Read a token file: by row, its columns in token order, numbers as arrays, text as lists."""
    hint = (
        f"restore it, or delete it: `paint show --steps {step_of(path)}` computes the values again"
    )
    with wrap_errors(path, CorruptFileError, hint):
        table = pq.read_table(BytesIO(path.read_bytes()), page_checksum_verification=True)
    columns: dict[str, Any] = {
        field.name: column.to_pylist() if pa.types.is_string(field.type) else column.to_numpy()
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    ends = np.flatnonzero(np.diff(columns["row"])) + 1
    edges = [0, *ends.tolist(), len(table)]
    return {
        int(columns["row"][start]): {name: values[start:end] for name, values in columns.items()}
        for start, end in pairwise(edges)
    }


def token_bytes(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token; a character may be split over several tokens."""
    is_byte_level = "ByteLevel" in repr(getattr(tokenizer.backend_tokenizer, "decoder", None))
    added = tokenizer.added_tokens_decoder
    known: dict[int, bytes] = {}
    for i in ids:
        if i in known:
            continue
        piece = str(added[i]) if i in added else tokenizer.convert_ids_to_tokens(i)
        if piece is None:  # models have more logits than tokens
            known[i] = f"<{i}>".encode()
        elif i in added:
            known[i] = piece.encode("utf-8", "replace")
        elif is_byte_level:
            known[i] = b"".join(_BYTES.get(c) or c.encode("utf-8", "replace") for c in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):
            known[i] = bytes.fromhex(piece[3:5])
        else:
            known[i] = piece.replace("▁", " ").encode("utf-8", "replace")
    return [known[i] for i in ids]


_BYTES = {letter: bytes([byte]) for byte, letter in bytes_to_unicode().items()}
"""The byte of each character of a byte-level vocabulary."""


def _table(kept: Sequence[ScoredRollout], tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    ids = [i for s in kept for i in s.rollout.completion.ids]
    per_row = [(s.rollout.row, s.rollout.problem.id, len(s.rollout.completion.ids)) for s in kept]
    texts = [text.decode("utf-8", "backslashreplace") for text in token_bytes(tokenizer, ids)]
    engine = [
        x
        for s in kept
        for x in s.rollout.completion.log_probs or [float("nan")] * len(s.rollout.completion.ids)
    ]
    columns: dict[str, pa.Array] = {
        "row": pa.array([row for row, _, n in per_row for _ in range(n)], pa.int32()),
        "problem_id": pa.array([name for _, name, n in per_row for _ in range(n)]),
        "position": pa.array([i for _, _, n in per_row for i in range(n)], pa.int32()),
        "token_id": pa.array(ids, pa.int32()),
        "token": pa.array(texts, pa.string()),
        "engine_log_prob": pa.array(engine, pa.float32()),
    }
    for name in kept[0].tokens:
        values = [x for s in kept for x in s.tokens[name]]
        is_flag = name in FLAGS
        columns[name] = (
            pa.array([x != 0 for x in values]) if is_flag else pa.array(values, pa.float32())
        )
    return pa.table(columns)
