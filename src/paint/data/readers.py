"""Readers of JSONL, CSV and Parquet files and of hub data sets, row by row.

    problems.jsonl -> (1, {"problem": "...", "answer": Number("0.10")}),
                      (2, BadRow("invalid JSON")), ...

A single row that cannot be read is yielded as a `BadRow`; the caller decides whether to stop, to
count or to list it. If the rest of a file cannot be read, DataError is raised. Numbers keep their
digits in the file. Files are streamed.

A prepared data set (`paint data openthoughts`) has its digest in a report next to it, and is
refused if it was changed.

Validation of rows is in paint.data.problems. Not supported: compressed files, and CSV in other
encodings than UTF-8.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from paint.core.errors import PaintError, reason, wrap_errors
from paint.core.hub import require_network
from paint.core.storage import digest_of_file

ROW_BYTES = 4 * 2**20
"""Most bytes of a row and of a CSV cell; a longer one indicates a file without line breaks."""

NAME_IT = "name a file, or a data set of the hub (owner/name)"
REWRITE = "write it again as Parquet, or name another file"

Row = tuple[int, "dict[str, object] | BadRow"]


class DataError(PaintError, ValueError):
    """A file or a row that cannot be used; the message names file, row, field and a hint."""


class HubError(DataError):
    """A hub data set that cannot be loaded."""


class BadRow(Exception):
    """The error of a row: `reason` is the same for all errors of a kind, str() adds details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


class Number(str):
    """A number as its digits in the file, so that a gold answer 0.10 stays 0.10."""

    __slots__ = ()


REPORTED = "sha256"
"""Key of a prepared data set's digest in its report."""

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")  # Path leaves one slash of two
_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[^@:]+))?(?:@(?P<split>[^@:]+))?")


def read_rows(source: str | Path) -> Iterator[Row]:
    """Yield the rows of a source in order, each with its number from 1.

    In JSONL and CSV the number is that of the row's first line, in Parquet and in a JSON list that
    of the row.

    Args:
        source: a file whose suffix gives its format (.jsonl: one object a line; .json: the same, or
            one list of objects; .csv and .tsv: the first line names the columns; .parquet), or a
            hub data set: owner/name or owner/name:config, with @split for a split other than train.

    Raises:
        DataError: a file cannot be read, or a prepared data set was changed.
        HubError: the hub data set cannot be loaded.
    """
    path = Path(source)
    kind = path.suffix.lower()
    if _URL.match(str(source)):
        raise DataError(f"{source} is a URL; download the file and name it")
    hub = _HUB.fullmatch(str(source))
    if hub and is_on_hub(source):
        yield from read_hub(hub["name"], hub["config"], hub["split"] or "train")
        return

    with _open(path) as file:
        _require_as_prepared(path)
        if kind not in _READERS:
            raise DataError(
                f"{path} has no known format; its name must end in {', '.join(_READERS)}"
            )
        yield from _READERS[kind](file, path)


def is_on_hub(source: str | Path) -> bool:
    """True for owner/name, if no file here has this name: a data set of the hub."""
    path = Path(source)
    if path.suffix.lower() in _READERS or not _HUB.fullmatch(str(source)):
        return False
    with wrap_errors(path, DataError, NAME_IT):
        return not path.exists()


def _open(path: Path) -> IO[bytes]:
    with wrap_errors(path, DataError, NAME_IT):
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise ValueError("it is a pipe or a device")  # reading it might never end
            return path.open("rb")
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; {NAME_IT}") from None
        except IsADirectoryError:
            raise DataError(
                f"{path} is a folder; name the file in it that holds the rows"
            ) from None


def report_of(path: Path) -> Path:
    """Path of the report of a prepared data set."""
    return path.with_suffix(".report.json")


def _require_as_prepared(path: Path) -> None:
    """Raise DataError if a prepared data set does not have the digest of its report.

    A report without a digest is ignored.
    """
    if path.suffix != ".jsonl" or not report_of(path).exists() or not path.exists():
        return
    report = report_of(path)
    with wrap_errors(report, DataError, f"delete it to use {path} as it is"), _open(report) as file:
        stored = json.load(file)
    if isinstance(stored, dict) and REPORTED in stored:
        with wrap_errors(path, DataError, "name a file that can be read"):
            digest = digest_of_file(path)
        if stored[REPORTED] != digest:
            raise DataError(
                f"{path} is not the file that {report} describes; make it again, or delete the "
                f"report to use the file as it is"
            )


def data_files(path: Path) -> list[Path]:
    """Return a file itself, or the one data file or all shards of the one split in a folder.

    The folder has the layout of a hub download: README.md, data/train-00000-of-00006.parquet. Data
    files are in the folder itself or in its subfolder `data`.

    Raises:
        DataError: a folder has no data file, or several that are not shards of one.
    """
    with wrap_errors(path, DataError, NAME_IT):
        if not path.is_dir():
            return [path]

    kinds = set(_READERS) - {".json"}  # in hub folders, JSON files describe the data
    for folder in (path, path / "data"):
        files = sorted(file for file in folder.glob("[!.]*") if file.suffix.lower() in kinds)
        names = set()
        for file in files:
            names.add(re.sub(r"-\d{5}-of-\d{5}(?=\.)", "", file.name))
        if len(names) > 1:
            raise DataError(
                f"{folder} holds several data files ({', '.join(sorted(names))}); name one of them"
            )
        if files:
            return files
    raise DataError(
        f"{path} holds no data file ({', '.join(sorted(kinds))}), nor does its folder data"
    )


def count_rows(path: Path) -> int:
    """Estimate the number of rows: of a text file its lines that are not blank, without a header.

    A CSV row with line breaks in its cells counts as several. 0 for a JSON list, whose rows are
    known when it is read.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        import pyarrow.parquet

        with wrap_errors(path, DataError, REWRITE), _open(path) as file:
            return int(pyarrow.parquet.read_metadata(file).num_rows)
    with _open(path) as file:
        if kind == ".json" and _is_list(file):
            return 0
        lines = sum(1 for line in _lines(file) if line.strip())
    if kind in (".csv", ".tsv"):
        return max(lines - 1, 0)
    return lines


def describe_separator(source: str | Path) -> str:
    """What separates the columns of a CSV file, as a sentence, if it is no comma; else ""."""
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".tsv") or not path.is_file():
        return ""
    with _open(path) as file:
        separator = _separator(file, path)
    names = {";": "semicolons", "\t": "tabs", "|": "bars"}
    if separator != ",":
        return f"{path}: columns are separated by {names[separator]}"
    return ""


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """Stream the rows of a hub data set by `datasets`.

    Raises:
        HubError: the data set cannot be loaded.
    """
    where = f"{name}{f':{config}' if config else ''}@{split} on the hub"
    with wrap_errors(where, HubError, "check the name and the network, or name a file"):
        require_network()
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


def _json(file: IO[bytes], path: Path) -> Iterator[Row]:
    """The rows of a file with one JSON list of objects, or with an object a line."""
    if not _is_list(file):
        yield from _jsonl(file, path)
        return
    try:
        rows = _decode(file.read().removeprefix(b"\xef\xbb\xbf"))
    except BadRow as bad:
        raise DataError(f"{path}: {bad}; correct the file") from None
    if not isinstance(rows, list):
        raise DataError(f"{path} holds {kind_of(rows)}; it must be a list of objects")
    for row, fields in enumerate(rows, start=1):
        if isinstance(fields, dict):
            yield row, fields
        else:
            yield row, BadRow("not a JSON object", f" but {kind_of(fields)}")


def _is_list(file: IO[bytes]) -> bool:
    """Whether a JSON file holds one list; it is left at its beginning."""
    start = file.read(ROW_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    return start.startswith(b"[")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, cut after ROW_BYTES + 1 bytes."""
    # Only "\\n" ends a line: str.splitlines would also split at U+2028 and the like.
    while line := file.readline(ROW_BYTES + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(ROW_BYTES)
        yield line


def _object(line: bytes) -> dict[str, object]:
    if len(line) > ROW_BYTES:
        raise _too_long()
    fields = _decode(line)
    if not isinstance(fields, dict):
        raise BadRow("not a JSON object", f" but {kind_of(fields)}; write one object a line")
    return fields


def _decode(text: bytes) -> object:
    """The value of JSON text, with numbers as their digits. Raises BadRow."""
    try:
        return json.loads(
            text.decode("utf-8"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_fields,
        )
    except UnicodeDecodeError as error:
        raise BadRow("invalid UTF-8", f" at byte {error.start + 1}: {error.reason}") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise BadRow("invalid JSON", f" at {line}column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadRow("invalid JSON", ": nested too deeply") from None


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of some keys and values. Raises BadRow for a doubled key."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise BadRow("doubled key", f" {shorten(doubled)}; write each key once")
    return fields


def _too_long() -> BadRow:
    return BadRow("too long", f": a row has at most {ROW_BYTES:,} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow("invalid JSON", f": {name} is not a JSON number")


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    csv.field_size_limit(ROW_BYTES)  # of the process; the default refuses cells over 128 KiB
    names: list[str] = []
    line = 1
    separator = _separator(file, path)
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        # Without strict, an unclosed quote silently swallows the rest of the file.
        reader = csv.reader(text, strict=True, delimiter=separator)
        try:
            for cells in reader:
                if any("\0" in cell for cell in cells):
                    raise csv.Error("a cell has a NUL byte")
                row, line = line, reader.line_num + 1
                if not any(cells):
                    continue
                if not names:
                    names = cells
                    doubled = {name for name in names if name and names.count(name) > 1}
                    if doubled:
                        name = shorten(min(doubled))
                        raise DataError(f"{path}: two columns are named {name}; rename one of them")
                elif len(cells) == len(names):
                    yield row, dict(zip(names, cells, strict=True))
                else:
                    detail = f": {len(cells)}, and the first line names {len(names)} columns"
                    yield row, BadRow("wrong number of cells", detail)
        except (csv.Error, UnicodeDecodeError) as error:
            # Text is decoded some lines ahead, so a wrong byte may come after this row.
            hint = "write it in UTF-8, with every quote closed and doubled within cells"
            raise DataError(f"{path} row {line} or later: {reason(error)}; {hint}") from None


def _separator(file: IO[bytes], path: Path) -> str:
    """What separates the columns of a CSV file, by its first line; it is left at its beginning."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = file.readline(ROW_BYTES).decode("utf-8-sig", errors="replace")
    file.seek(0)
    try:
        return csv.Sniffer().sniff(header, delimiters=",;\t|").delimiter
    except csv.Error:  # a single column
        return ","


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with wrap_errors(path, DataError, REWRITE):
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        yield from _arrow_rows(table.iter_batches(batch_size=64))


def _arrow_rows(batches: Iterable[Any]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        columns = {}
        for name in batch.schema.names:
            columns[name] = _cells(batch.column(name))
        for cells in zip(*columns.values(), strict=True):
            row += 1
            size = sum(len(cell.encode()) for cell in cells if isinstance(cell, str))
            yield row, dict(zip(columns, cells, strict=True)) if size <= ROW_BYTES else _too_long()


def _cells(column: Any) -> list[object]:
    """Convert the cells of an Arrow column to Python values, numbers to their digits.

    Text without digits, such as nan, becomes a float.
    """
    import pyarrow
    from pyarrow.types import is_decimal, is_floating, is_integer

    kind = column.type
    if not (is_integer(kind) or is_floating(kind) or is_decimal(kind)):
        return list(column.to_pylist())
    # Arrow writes the fewest digits that round-trip, for 32-bit floats too.
    texts = column.cast(pyarrow.string()).to_pylist()
    cells: list[object] = []
    for text in texts:
        cells.append(text and (Number(text) if text[-1].isdigit() else float(text)))
    return cells


_READERS: dict[str, Callable[[IO[bytes], Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}
ENDINGS = frozenset(_READERS)
"""Suffixes of data files."""


_KINDS: dict[Any, str] = {Number: "a number", dict: "an object", list: "a list", str: "text"}
_KINDS |= {bool: "true or false", type(None): "null"}


def kind_of(value: object) -> str:
    """Describe the type of a cell in words: a number, a list, null, ..."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def shorten(value: object) -> str:
    """Format a cell for a message, in at most 60 characters."""
    text = str(value) if isinstance(value, Number) else repr(value)
    if len(text) <= 60:
        return text
    return text[:57] + "..."
