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
from paint.training.rollouts import Rollout

FLAGS = ("selected", "clipped")  # values that are 0 or 1

ABOUT = ("row", "problem_id", "position", "token_id", "token")


def tokens_path(folder: Path, step: int) -> Path:
    """Path of the token file of a step."""
    return step_folder(folder / "tokens", step).with_suffix(".parquet")


def write_tokens(
    folder: Path,
    step: int,
    scored: Sequence[Rollout],
    rows: int | Literal["all"],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write the token values of a step's first ``rows`` rows, of those that are trained on."""
    kept = [s for s in scored if s.tokens and (rows == "all" or s.row < rows)]
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
    columns: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_string(field.type):
            columns[field.name] = column.to_pylist()
        else:
            columns[field.name] = column.to_numpy()
    # The tokens of a row stand together: a row ends where the next token has another number.
    ends = np.flatnonzero(np.diff(columns["row"])) + 1
    edges = [0, *ends.tolist(), len(table)]
    rows = {}
    for start, end in pairwise(edges):
        number = int(columns["row"][start])
        rows[number] = {name: values[start:end] for name, values in columns.items()}
    return rows


def token_bytes(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token; a character may be split over several tokens."""
    # By its repr, as the decoder may be a sequence of several.
    is_byte_level = "ByteLevel" in repr(getattr(tokenizer.backend_tokenizer, "decoder", None))
    added = tokenizer.added_tokens_decoder
    known: dict[int, bytes] = {}
    for i in ids:
        if i in known:
            continue
        if i in added:
            known[i] = str(added[i]).encode("utf-8", "replace")
            continue
        piece = tokenizer.convert_ids_to_tokens(i)
        if piece is None:  # models have more logits than tokens
            known[i] = f"<{i}>".encode()
        elif is_byte_level:
            known[i] = b"".join(_BYTES.get(c) or c.encode("utf-8", "replace") for c in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):  # a byte of SentencePiece, as <0x0A>
            known[i] = bytes.fromhex(piece[3:5])
        else:
            known[i] = piece.replace("▁", " ").encode("utf-8", "replace")
    return [known[i] for i in ids]


_BYTES = {letter: bytes([byte]) for byte, letter in bytes_to_unicode().items()}
"""The byte of each character of a byte-level vocabulary."""


def _table(kept: Sequence[Rollout], tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    ids: list[int] = []
    rows: list[int] = []
    problems: list[str] = []
    positions: list[int] = []
    engine: list[float] = []
    values: dict[str, list[float]] = {name: [] for name in kept[0].tokens}
    for rollout in kept:
        completion = rollout.completion
        length = len(completion.ids)
        ids += completion.ids
        rows += [rollout.row] * length
        problems += [rollout.problem.id] * length
        positions += range(length)
        # A reference has no log-probs of an engine.
        engine += completion.log_probs or [float("nan")] * length
        for name in values:
            values[name] += rollout.tokens[name]

    # A token may be a part of a character.
    texts = [text.decode("utf-8", "backslashreplace") for text in token_bytes(tokenizer, ids)]
    columns: dict[str, pa.Array] = {
        "row": pa.array(rows, pa.int32()),
        "problem_id": pa.array(problems),
        "position": pa.array(positions, pa.int32()),
        "token_id": pa.array(ids, pa.int32()),
        "token": pa.array(texts, pa.string()),
        "engine_log_prob": pa.array(engine, pa.float32()),
    }
    for name, numbers in values.items():
        if name in FLAGS:
            columns[name] = pa.array([number != 0 for number in numbers])
        else:
            columns[name] = pa.array(numbers, pa.float32())
    return pa.table(columns)
