"""Rows of a JSONL, CSV or Parquet file, or of a hub data set: a dict of named cells each.

    problems.jsonl -> (1, {"problem": "...", "answer": Number("0.10")}),
                      (2, BadRow("invalid JSON")), ...

A row that cannot be read on its own is yielded as a `BadRow`; the caller decides whether to stop,
to count or to list. A file that cannot be read on is refused. Numbers keep the digits that stand in
the file. No file is held in memory as a whole.

A prepared data set (`paint data openthoughts`) has its digest in the report beside it, and is
refused where it was changed since.

Left out on purpose: which cells are needed and what makes a problem good (paint.data.problems);
compressed files; JSON files that hold one list; CSV that is not UTF-8.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from paint.core.errors import PaintError, reason, wrap_errors
from paint.core.storage import digest_of_file

ROW_BYTES = 4 * 2**20
"""The longest row, and the longest cell of CSV: what is longer is a file without lines."""

NAME_IT = "name a file, or a data set of the hub (owner/name)"
REWRITE = "write it again as Parquet, or name another file"

Row = tuple[int, "dict[str, object] | BadRow"]


class DataError(PaintError, ValueError):
    """A file or a row that cannot be used; the message names file, row, field and the way out."""


class HubError(DataError):
    """A data set that the hub does not deliver."""


class BadRow(Exception):
    """Why a row cannot be used: `reason` is the same for all rows of a kind, str() adds detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


class Number(str):
    """A number as its own digits, so that a gold answer 0.10 stays 0.10."""

    __slots__ = ()


REPORTED = "sha256"
"""The name of a prepared data set's digest in its report."""

_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[^@:]+))?(?:@(?P<split>[^@:]+))?")


def read_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a source, in order, each with its number from 1.

    The number is that of the line where the row starts, in JSONL and CSV, and else that of the row.

    Args:
        source: a file whose ending says what it is (.jsonl or .json: one object a line; .csv: the
            first line names the columns; .parquet), or a data set of the hub, streamed: owner/name
            or owner/name:config, with @split for another split than train.

    Raises:
        DataError: a file that cannot be read (on), or a prepared data set that was changed.
        HubError: the hub does not deliver the data set.
    """
    path = Path(source)
    kind = path.suffix.lower()
    hub = _HUB.fullmatch(str(source))
    with wrap_errors(path, DataError, NAME_IT):
        is_on_hub = hub is not None and kind not in _READERS and not path.exists()
    if hub and is_on_hub:
        yield from read_hub(hub["name"], hub["config"], hub["split"] or "train")
        return

    _require_as_prepared(path)
    with _open(path) as file:
        if kind not in _READERS:
            raise DataError(
                f"{path} is of no known kind; its name must end in {', '.join(_READERS)}"
            )
        yield from _READERS[kind](file, path)


def _open(path: Path) -> IO[bytes]:
    """The file, to read. Raises DataError."""
    with wrap_errors(path, DataError, NAME_IT):
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; {NAME_IT}") from None
        except IsADirectoryError:
            raise DataError(
                f"{path} is a folder; name the file in it that holds the rows"
            ) from None


def report_of(path: Path) -> Path:
    """The place of the report on a prepared data set."""
    return path.with_suffix(".report.json")


def _require_as_prepared(path: Path) -> None:
    """Refuse a prepared data set that is not the one of the report beside it.

    A report without a digest says nothing about the file.
    """
    report = report_of(path) if path.suffix == ".jsonl" else None
    if report is None or not report.exists() or not path.exists():
        return

    advice = f"delete it to use {path} as it is"
    with wrap_errors(report, DataError, advice):
        said = json.loads(report.read_bytes())
    if isinstance(said, dict) and REPORTED in said:
        with wrap_errors(path, DataError, "name a file that can be read"):
            digest = digest_of_file(path)
        if said[REPORTED] != digest:
            raise DataError(
                f"{path} is not the file that {report} describes; make it again, or delete the "
                f"report to use the file as it is"
            )


def data_files(path: Path) -> list[Path]:
    """The file itself; of a folder, its one data file, or all shards of its one split.

    A folder is what a download from the hub leaves, such as a README beside
    data/train-00000-of-00006.parquet. The data lie in the folder itself or in its folder `data`.

    Raises:
        DataError: a folder with no data file, or with several that are not shards of one.
    """
    with wrap_errors(path, DataError, NAME_IT):
        if not path.is_dir():
            return [path]

    kinds = set(_READERS) - {".json"}  # beside the data, hub folders hold JSON that describes it
    for folder in (path, path / "data"):
        files = sorted(file for file in folder.glob("[!.]*") if file.suffix.lower() in kinds)
        wholes = {re.sub(r"-\d{5}-of-\d{5}(?=\.)", "", file.name) for file in files}
        if len(wholes) > 1:
            raise DataError(
                f"{folder} holds several data files ({', '.join(sorted(wholes))}); name one of them"
            )
        if files:
            return files
    raise DataError(
        f"{path} holds no data file ({', '.join(sorted(kinds))}), nor does its folder data"
    )


def count_rows(path: Path) -> int:
    """About how many rows a file holds: blank lines and line ends in CSV cells count, too."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with wrap_errors(path, DataError, REWRITE):
            return int(pyarrow.parquet.read_metadata(path).num_rows)
    with _open(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """The rows of a data set of the hub, streamed by `datasets`.

    Raises:
        HubError: anything fails.
    """
    where = f"{name}{f':{config}' if config else ''}@{split} on the hub"
    with wrap_errors(where, HubError, "check the name and the network, or name a file"):
        import datasets  # takes a second to import

        stream = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from _arrow_rows(stream.with_format("arrow").iter(batch_size=256))


def _jsonl(file: IO[bytes], path: Path) -> Iterator[Row]:
    for row, line in enumerate(_lines(file), start=1):
        line = line.removeprefix(b"\xef\xbb\xbf") if row == 1 else line
        if line.strip():
            try:
                yield row, _object(line.rstrip(b"\r\n"))
            except BadRow as bad:
                yield row, bad


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines; of one that is longer than a row may be, its beginning alone, which is too long.

    Only "\\n" ends a line: text may hold U+2028 and its like, at which str.splitlines would cut.
    """
    while line := file.readline(ROW_BYTES + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(ROW_BYTES)
        yield line


def _object(line: bytes) -> dict[str, object]:
    """The JSON object in a line. Raises BadRow."""
    if len(line) > ROW_BYTES:
        raise _too_long()
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow("invalid UTF-8", f" at byte {error.start + 1}: {error.reason}") from None

    try:
        fields = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise BadRow("invalid JSON", f" at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadRow("invalid JSON", ": nested too deeply") from None

    if not isinstance(fields, dict):
        raise BadRow("not a JSON object", f" but {kind_of(fields)}; write one object a line")
    return fields


def _too_long() -> BadRow:
    return BadRow("too long", f": a row has at most {ROW_BYTES:,} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow("invalid JSON", f": {name} is not a JSON number")


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    csv.field_size_limit(ROW_BYTES)  # of the process; the default refuses cells over 128 KiB
    names: list[str] = []
    line = 1
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        # Unless it is strict, a quote that never closes swallows the rest in silence.
        reader = csv.reader(text, strict=True)
        try:
            for cells in reader:
                row, line = line, reader.line_num + 1
                if not any(cells):
                    continue
                if not names:
                    names = cells
                    if doubled := {name for name in names if name and names.count(name) > 1}:
                        name = shorten(min(doubled))
                        raise DataError(f"{path}: two columns are named {name}; rename one of them")
                elif len(cells) == len(names):
                    yield row, dict(zip(names, cells, strict=True))
                else:
                    detail = f": {len(cells)}, and the first line names {len(names)} columns"
                    yield row, BadRow("wrong number of cells", detail)
        except (csv.Error, UnicodeDecodeError) as error:
            # Text is decoded some lines ahead, so a wrong byte may stand after this row.
            advice = "write it in UTF-8, with every quote closed and doubled within cells"
            raise DataError(f"{path} row {line} or later: {reason(error)}; {advice}") from None


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with wrap_errors(path, DataError, REWRITE):
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        yield from _arrow_rows(table.iter_batches(batch_size=64))


def _arrow_rows(batches: Iterable[Any]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        columns = {name: _cells(batch.column(name)) for name in batch.schema.names}
        for cells in zip(*columns.values(), strict=True):
            row += 1
            size = sum(len(cell.encode()) for cell in cells if isinstance(cell, str))
            yield row, dict(zip(columns, cells, strict=True)) if size <= ROW_BYTES else _too_long()


def _cells(column: Any) -> list[object]:
    """The cells of an Arrow column as Python's values, numbers as their digits."""
    import pyarrow
    from pyarrow.types import is_decimal, is_floating, is_integer

    kind = column.type
    if not (is_integer(kind) or is_floating(kind) or is_decimal(kind)):
        return list(column.to_pylist())
    # Arrow writes the fewest digits that give the same number back, for 32-bit floats too.
    return [_number(digits) for digits in column.cast(pyarrow.string()).to_pylist()]


def _number(digits: str | None) -> Number | float | None:
    """None for null, and a float for what has no digits, such as nan."""
    if digits is None:
        return None
    return Number(digits) if digits[-1].isdigit() else float(digits)


_READERS: dict[str, Callable[[IO[bytes], Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
ENDINGS = frozenset(_READERS)
"""How the names of data files end."""


def kind_of(value: object) -> str:
    """What a cell holds, in words: a number, a list, null, ..."""
    if isinstance(value, Number):
        return "a number"
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), f"a value of type {type(value).__name__}")


def shorten(value: object) -> str:
    """A cell as it is shown in a message, at most 60 characters."""
    shown = str(value) if isinstance(value, Number) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
