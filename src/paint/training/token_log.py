"""Per-token values of the loss, in one Parquet file a step.

    tokens/step-000001.parquet      a row a token, for the first ``log.token_rows`` rows of the step

docs/reference/run-folder.md lists the columns. Pages with a wrong checksum are refused.
"""

from collections.abc import Sequence
from io import BytesIO
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
from paint.inference.rollouts import Rollout

FLAGS = ("selected", "clipped")  # values that are 0 or 1

ABOUT = ("row", "problem_id", "position", "token_id", "token")


def tokens_path(folder: Path, step: int) -> Path:
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
    """Return the columns of a token file in token order, by row."""
    hint = (
        f"restore it, or delete it: `paint show --steps {step_of(path)}` computes the values again"
    )
    with wrap_errors(path, CorruptFileError, hint):
        table = pq.read_table(BytesIO(path.read_bytes()), page_checksum_verification=True)
    rows = {}
    for number, part in table.to_pandas().groupby("row"):
        rows[int(number)] = {name: part[name].to_numpy() for name in part}
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
    of_tokens = [(s, position) for s in kept for position in range(len(s.completion.ids))]
    ids = [s.completion.ids[position] for s, position in of_tokens]
    engine: list[float] = []
    for s in kept:  # a reference has no log-probs of an engine
        engine += s.completion.log_probs or [float("nan")] * len(s.completion.ids)
    # A token may be a part of a character.
    texts = [text.decode("utf-8", "backslashreplace") for text in token_bytes(tokenizer, ids)]
    columns: dict[str, pa.Array] = {
        "row": _numbers([s.row for s, _ in of_tokens], np.int32),
        "problem_id": _strings([s.problem.id for s, _ in of_tokens]),
        "position": _numbers([position for _, position in of_tokens], np.int32),
        "token_id": _numbers(ids, np.int32),
        "token": _strings(texts),
        "engine_log_prob": _numbers(engine, np.float32),
    }
    for name in kept[0].tokens:
        numbers = [value for s in kept for value in s.tokens[name]]
        columns[name] = _flags(numbers) if name in FLAGS else _numbers(numbers, np.float32)
    return pa.table(columns)


# Columns are made of bytes: pa.array imports pandas, which takes 0.4 s of every run.


def _numbers(values: Sequence[float], dtype: type[np.number[Any]]) -> pa.Array:
    numbers = np.array(values, dtype)
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _flags(values: Sequence[float]) -> pa.Array:
    bits = np.packbits(np.array(values) != 0, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _strings(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode("utf-8") for value in values]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)
