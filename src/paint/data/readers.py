"""Which rows does a source hold? One dict of named cells for each, from JSONL, CSV, Parquet or the hub.

    "problems.jsonl" -> (1, {"problem": "...", "answer": Number("0.10")}), (2, BadRow("invalid JSON")), ...

A row that cannot be read is an item like any other, so that whoever reads decides whether to stop, to count
or to list. Numbers stay the digits that stand in the file. No source is ever held in memory as a whole.

Left out on purpose: which cells are needed and what makes a problem good (paint.data.problems); compressed files;
JSON files that hold one list; CSV that is not UTF-8.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from paint import PaintError

Row = tuple[int, "dict[str, object] | BadRow"]


class DataError(PaintError, ValueError):
    """A file or a row that cannot be used; the message names the file, the row, the field and the way out."""


class HubError(DataError):
    """A data set that the hub does not deliver."""


class BadRow(Exception):
    """Why a row cannot be used: `reason` is the same text for all rows of its kind, str() adds the detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


class Number(str):
    """A number as its own digits, so that a gold answer 0.10 stays 0.10."""

    __slots__ = ()


_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[^@:]+))?(?:@(?P<split>[^@:]+))?")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def read_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a source, in order, each with its number from 1: a line of JSONL and CSV, a row elsewhere.

    Args:
        source: a file whose ending says what it is (.jsonl or .json: one object a line; .csv: the first line
            names the columns; .parquet), or a data set of the hub, streamed: owner/name, owner/name:config,
            with @split for another split than train.

    Raises:
        DataError: nothing that can be read; HubError where the hub does not deliver it.
    """
    path = Path(source)
    hub = _HUB.fullmatch(str(source))
    if hub and path.suffix.lower() not in _READERS and not path.exists():
        yield from read_hub(hub["name"], hub["config"], hub["split"] or "train")
        return
    try:
        with path.open("rb") as file:
            if path.suffix.lower() not in _READERS:
                raise DataError(
                    f"{path} is of no known kind; its name must end in {', '.join(_READERS)}"
                )
            yield from _READERS[path.suffix.lower()](file, path)
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; name a file, or a data set of the hub (owner/name)"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; name the file in it that holds the rows") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def data_files(path: Path) -> list[Path]:
    """The file itself; of a folder, the one data file in it or in its `data`, or all shards of the one split.

    A folder is what a download from the hub leaves, such as data/train-00000-of-00006.parquet beside a
    README. Raises DataError for a folder with no data file, or with several that are no shards of one.
    """
    if not path.is_dir():
        return [path]
    kinds = set(_READERS) - {".json"}  # beside the data, hub folders hold JSON that describes it
    for folder in (path, path / "data"):
        files = sorted(file for file in folder.glob("*") if file.suffix.lower() in kinds)
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
    """How many rows a file holds, for estimates: blank lines, and line ends inside CSV cells, are counted too."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        return int(pyarrow.parquet.read_metadata(path).num_rows)
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """The rows of a data set of the hub, streamed by `datasets`. Raises HubError when anything fails."""
    try:
        import datasets  # takes a second

        stream = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from _arrow_rows(stream.with_format("arrow").iter(batch_size=256))
    except Exception as error:  # what a hub, a network and a parser raise has no common base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        where = f"{name}{f':{config}' if config else ''}@{split}"
        raise HubError(
            f"{where} cannot be read from the hub, and is no file here: {reason}"
        ) from None


def _jsonl(file: IO[bytes], path: Path) -> Iterator[Row]:
    # Only "\n" ends a row: text may hold U+2028 and its like, at which str.splitlines would cut.
    for row, line in enumerate(file, start=1):
        line = line.removeprefix(b"\xef\xbb\xbf") if row == 1 else line
        if line.strip():
            try:
                yield row, _object(line.rstrip(b"\r\n"))
            except BadRow as bad:
                yield row, bad


def _object(line: bytes) -> dict[str, object]:
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


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow("invalid JSON", f": {name} is not a JSON number")


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # of the process; the default refuses cells over 128 KiB
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        reader = csv.reader(
            text, strict=True
        )  # else a quote that never closes swallows the rest in silence
        yield from _csv_rows(reader, path)


def _csv_rows(reader: Any, path: Path) -> Iterator[Row]:
    names: list[str] = []
    while True:
        row = reader.line_num + 1
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if not any(cells):
                continue
            if names and len(cells) != len(names):
                raise BadRow(
                    "wrong number of cells",
                    f": {len(cells)}, and the first line names {len(names)} columns",
                )
            for name, cell in zip(names or cells, cells, strict=True):
                if found := _ESCAPED_BYTE.search(cell):
                    raise BadRow(
                        "invalid UTF-8",
                        f" in column {shorten(name)}: byte 0x{ord(found[0]) - 0xDC00:02X}",
                    )
        except (csv.Error, BadRow) as error:
            bad = error if isinstance(error, BadRow) else BadRow("invalid CSV", f": {error}")
            if not names:
                raise DataError(
                    f"{path} row {row}: {bad}; the first line must name the columns, in UTF-8"
                ) from None
            yield row, bad
            continue
        if names:
            yield row, dict(zip(names, cells, strict=True))
            continue
        names = cells
        if twice := {name for name in names if name and names.count(name) > 1}:
            raise DataError(
                f"{path} row {row}: two columns are named {shorten(min(twice))}; rename one of them"
            )


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        yield from _arrow_rows(table.iter_batches(batch_size=256))
    except (
        pyarrow.ArrowException,
        KeyError,
        OSError,
    ) as error:  # KeyError: two columns of one name
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{path} is no Parquet file, or was cut or damaged: {reason}") from None


def _arrow_rows(batches: Iterable[Any]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        columns = {name: _cells(name, batch.column(name)) for name in batch.schema.names}
        for index in range(batch.num_rows):
            row += 1
            fields = {name: cells[index] for name, cells in columns.items()}
            yield row, next((cell for cell in fields.values() if isinstance(cell, BadRow)), fields)


def _cells(name: str, column: Any) -> list[object]:
    import pyarrow

    kind = column.type
    if (
        pyarrow.types.is_integer(kind)
        or pyarrow.types.is_floating(kind)
        or pyarrow.types.is_decimal(kind)
    ):
        # Arrow writes the fewest digits that give the same number back, for 32-bit floats too.
        digits = column.cast(pyarrow.string()).to_pylist()
        return [
            text if text is None else Number(text) if text[-1].isdigit() else float(text)
            for text in digits
        ]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:  # Parquet promises UTF-8, and not every writer keeps the promise
        return [_cell(name, cell) for cell in column]
    except (
        OverflowError,
        ValueError,
        pyarrow.ArrowException,
    ):  # a time that Python has no words for
        return [kind if valid else None for valid in column.is_valid().to_pylist()]


def _cell(name: str, cell: Any) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        return BadRow(
            "invalid UTF-8", f" in column {shorten(name)} at byte {error.start + 1}: {error.reason}"
        )


_READERS: dict[str, Callable[[IO[bytes], Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}


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
