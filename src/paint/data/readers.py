"""Which rows does a source hold? A dict of named cells each, from JSONL, CSV, Parquet or the hub.

    problems.jsonl -> (1, {"problem": "...", "answer": Number("0.10")}),
                      (2, BadRow("invalid JSON")), ...

A row that cannot be read is an item like any other: the caller decides whether to stop, to count or
to list. Numbers keep the digits that stand in the file. No source is ever held in memory as a
whole, and no row of more than ROW_BYTES.

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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NoReturn

from paint.errors import PaintError, explained
from paint.files import digest_of_file

ROW_BYTES = 4 * 2**20
"""The longest row: a solution has some thousand bytes, and a longer row is a file without lines."""

BATCH_BYTES = 64 * 2**20
"""About how much of a Parquet file is in memory at once, as Arrow."""

NAME_IT = "name a file, or a data set of the hub (owner/name)"

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
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def read_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a source, in order, each with its number from 1.

    The number is that of the line where the row starts, in JSONL and CSV, and else that of the row.

    Args:
        source: a file whose ending says what it is (.jsonl or .json: one object a line; .csv: the
            first line names the columns; .parquet), or a data set of the hub, streamed: owner/name
            or owner/name:config, with @split for another split than train.

    Raises:
        DataError: nothing that can be read, or a prepared data set that was changed.
        HubError: the hub does not deliver the data set.
    """
    path = Path(source)
    kind = path.suffix.lower()
    hub = _HUB.fullmatch(str(source))
    with explained(path, DataError, NAME_IT):
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
    with explained(path, DataError, NAME_IT):
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
    with explained(report, DataError, advice):
        said = json.loads(report.read_bytes())
    if isinstance(said, dict) and REPORTED in said:
        with explained(path, DataError, "name a file that can be read"):
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
    with explained(path, DataError, NAME_IT):
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

        with _reading_parquet(path):
            return int(pyarrow.parquet.read_metadata(path).num_rows)
    with _open(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """The rows of a data set of the hub, streamed by `datasets`.

    Raises:
        HubError: anything fails.
    """
    try:
        import datasets  # takes a second to import

        stream = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from _arrow_rows(stream.with_format("arrow").iter(batch_size=256))
    except Exception as error:  # what a hub, a network and a parser raise has no common base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        where = f"{name}{f':{config}' if config else ''}@{split}"
        raise HubError(
            f"{where} cannot be read from the hub, and is no file here: {reason}"
        ) from None


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
    _require_short(len(line))
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


def _require_short(size: int) -> None:
    if size > ROW_BYTES:
        raise BadRow("too long", f": a row has at most {ROW_BYTES:,} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow("invalid JSON", f": {name} is not a JSON number")


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    csv.field_size_limit(ROW_BYTES)  # of the process; the default refuses cells over 128 KiB
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        # Unless it is strict, a quote that never closes swallows the rest in silence.
        yield from _csv_rows(csv.reader(_csv_lines(text, path), strict=True), path)


def _csv_lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines. Raises DataError where one is too long: what follows cannot be told apart."""
    number = 0
    while line := text.readline(ROW_BYTES + 1):
        number += 1
        if len(line) > ROW_BYTES:
            raise DataError(
                f"{path} line {number} is too long: a row has at most {ROW_BYTES:,} bytes; "
                f"end its rows with line ends"
            )
        yield line


def _csv_rows(reader: Any, path: Path) -> Iterator[Row]:
    names: list[str] = []
    for row, cells in _csv_cells(reader):
        try:
            if isinstance(cells, BadRow):
                raise cells
            if names and len(cells) != len(names):
                detail = f": {len(cells)}, and the first line names {len(names)} columns"
                raise BadRow("wrong number of cells", detail)
            _require_short(sum(map(len, cells)))
            _require_utf8(names or cells, cells)
        except BadRow as bad:
            if not names:
                must = "the first line must name the columns, in UTF-8"
                raise DataError(f"{path} row {row}: {bad}; {must}") from None
            yield row, bad
            continue

        if names:
            yield row, dict(zip(names, cells, strict=True))
            continue

        names = cells
        if doubled := {name for name in names if name and names.count(name) > 1}:
            name = shorten(min(doubled))
            raise DataError(f"{path} row {row}: two columns are named {name}; rename one of them")


def _csv_cells(reader: Any) -> Iterator[tuple[int, list[str] | BadRow]]:
    """The rows that are not blank, each with the line that it starts in."""
    while True:
        row = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield row, BadRow("invalid CSV", f": {error}")
            continue

        if cells is None:
            return
        if any(cells):
            yield row, cells


def _require_utf8(names: list[str], cells: list[str]) -> None:
    for name, cell in zip(names, cells, strict=True):
        if escaped := _ESCAPED_BYTE.search(cell):
            byte = ord(escaped[0]) - 0xDC00
            raise BadRow("invalid UTF-8", f" in column {shorten(name)}: byte 0x{byte:02X}")


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with _reading_parquet(path):
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
        row_bytes = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
        batch_size = min(max(BATCH_BYTES // max(row_bytes, 1), 1), 256)
        yield from _arrow_rows(table.iter_batches(batch_size=batch_size))


def _reading_parquet(path: Path) -> AbstractContextManager[None]:
    place = f"{path} is no Parquet file, or was cut or damaged"
    return explained(place, DataError, "write it again, or name another file")


def _arrow_rows(batches: Iterable[Any]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        sizes = [0] * batch.num_rows
        if batch.nbytes > ROW_BYTES:
            sizes = [batch.slice(index, 1).nbytes for index in range(batch.num_rows)]
            batch = batch.filter([size <= ROW_BYTES for size in sizes])
        columns = {name: _cells(name, batch.column(name)) for name in batch.schema.names}
        read = iter(range(batch.num_rows))
        for size in sizes:
            row += 1
            try:
                _require_short(size)
            except BadRow as bad:
                yield row, bad
                continue
            index = next(read)
            fields = {name: cells[index] for name, cells in columns.items()}
            yield row, next((cell for cell in fields.values() if isinstance(cell, BadRow)), fields)


def _cells(name: str, column: Any) -> list[object]:
    """The cells of an Arrow column as Python's values, numbers as their digits."""
    import pyarrow
    from pyarrow.types import is_decimal, is_floating, is_integer

    kind = column.type
    if is_integer(kind) or is_floating(kind) or is_decimal(kind):
        # Arrow writes the fewest digits that give the same number back, for 32-bit floats too.
        return [_number(digits) for digits in column.cast(pyarrow.string()).to_pylist()]

    try:
        return list(column.to_pylist())
    # Parquet promises UTF-8, and not every writer keeps the promise.
    except UnicodeDecodeError:
        return [_cell(name, cell) for cell in column]
    # A time that Python cannot represent: its type stands for it.
    except (OverflowError, ValueError, pyarrow.ArrowException):
        return [kind if valid else None for valid in column.is_valid().to_pylist()]


def _number(digits: str | None) -> Number | float | None:
    """None for null, and a float for what has no digits, such as nan."""
    if digits is None:
        return None
    return Number(digits) if digits[-1].isdigit() else float(digits)


def _cell(name: str, cell: Any) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        where = f" in column {shorten(name)} at byte {error.start + 1}"
        return BadRow("invalid UTF-8", f"{where}: {error.reason}")


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
