"""Rows of JSONL, JSON, CSV and Parquet files and of hub data sets.

    problems.jsonl -> (1, {"problem": "...", "answer": Number("0.10")}),
                      (2, BadRow("invalid JSON")), ...

A row that cannot be read is yielded as a `BadRow`: the caller stops, counts or lists it. Where the
rest of a file cannot be read, DataError is raised. Numbers keep their digits in the file.
Compressed files, and CSV in other encodings than UTF-8, are not read.
"""

import csv
import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeGuard

from paint.core.errors import PaintError, reason, wrap_errors
from paint.core.hub import require_network
from paint.core.nesting import parse_json

NAME_IT = "name a file, or a data set of the hub (owner/name)"

Row = tuple[int, "dict[str, object] | BadRow"]


class DataError(PaintError, ValueError):
    """A file or a row that cannot be used; the message names file, row, field and a hint."""


class BadRow(Exception):
    """The error of a row: `reason` is the same for all errors of a kind, str() adds details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


class Number(str):
    """A number as its digits in the file, so that a gold answer 0.10 stays 0.10."""

    __slots__ = ()


_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")  # Path leaves one slash of two
# owner/name:config@split
_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[^@:]+))?(?:@(?P<split>[^@:]+))?")


def read_rows(source: str | Path) -> Iterator[Row]:
    """Yield the rows of a source in order, each with its number from 1.

    The number is that of the record: blank lines have none, and a record of CSV may have several
    lines.

    Args:
        source: a file whose suffix gives its format (.jsonl: one object a line; .json: the same, or
            one list of objects; .csv and .tsv: the first record names the columns; .parquet), or a
            hub data set: owner/name or owner/name:config, with @split for a split other than train.

    Raises DataError if the source cannot be read.
    """
    if _URL.match(str(source)):
        raise DataError(f"{source} is a URL; download the file and name it")
    hub = _HUB.fullmatch(str(source))
    if hub and is_on_hub(source):
        yield from read_hub(hub["name"], hub["config"], hub["split"] or "train")
        return

    path = Path(source)
    with _open(path) as file:
        kind = path.suffix.lower()
        if kind not in _READERS:
            endings = ", ".join(_READERS)
            raise DataError(f"{path} has no known format; its name must end in {endings}")
        yield from _READERS[kind](file, path)


def is_on_hub(source: str | Path) -> bool:
    """Return whether a source is a data set of the hub: owner/name, where no file has this name."""
    path = Path(source)
    # folder/rows.jsonl is a file that is missing, not a data set.
    if path.suffix.lower() in _READERS or not _HUB.fullmatch(str(source)):
        return False
    with wrap_errors(path, DataError, NAME_IT):
        return not path.exists()


def _open(path: Path) -> IO[bytes]:
    with wrap_errors(path, DataError, NAME_IT):
        if path.is_dir():
            raise DataError(f"{path} is a folder; name the file in it that holds the rows")
        if not path.exists():
            raise DataError(f"{path} does not exist; {NAME_IT}")
        return path.open("rb")


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """Yield the rows of a hub data set by `datasets`. Raises DataError if it cannot be loaded."""
    where = f"{name}{f':{config}' if config else ''}@{split} on the hub"
    hint = "check the name and the network, or name a file (of a known set: NAME=PATH)"
    with wrap_errors(where, DataError, hint):
        require_network()
        import datasets  # takes a second to import

        # As Arrow tables: Python's floats would not keep the digits of 32-bit ones.
        stream = datasets.load_dataset(
            name, config, split=split, streaming=True, trust_remote_code=False
        )
        yield from _arrow_rows(stream.with_format("arrow").iter(batch_size=256))


def _jsonl(file: IO[bytes], path: Path) -> Iterator[Row]:
    # A file of bytes ends its lines at "\n" only, str.splitlines also at U+2028 and the like.
    for row, line in enumerate(filter(bytes.strip, file), start=1):
        try:
            fields = _decode(line)
            if not isinstance(fields, dict):
                hint = f" but {kind_of(fields)}; write one object a line"
                raise BadRow("not a JSON object", hint)
            yield row, fields
        except BadRow as bad:
            yield row, bad


def _json(file: IO[bytes], path: Path) -> Iterator[Row]:
    # A list must be read at once; a .json file without one is JSONL under another name.
    text = file.read()
    if not text.decode("utf-8-sig", errors="replace").lstrip().startswith("["):
        file.seek(0)
        yield from _jsonl(file, path)
        return
    try:
        rows = _decode(text)
    except BadRow as bad:
        raise DataError(f"{path}: {bad}; correct the file") from None
    assert isinstance(rows, list)
    for row, fields in enumerate(rows, start=1):
        if isinstance(fields, dict):
            yield row, fields
        else:
            yield row, BadRow("not a JSON object", f" but {kind_of(fields)}")


def _decode(text: bytes) -> object:
    try:
        return parse_json(text, parse_int=Number, parse_float=Number)
    except ValueError as error:
        raise BadRow("invalid JSON", f": {error}") from None


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # of the process; the default refuses cells over 128 KiB
    sign, separated = (",", "commas")
    if path.suffix.lower() == ".tsv":
        sign, separated = ("\t", "tabs")
    separated = f"columns are separated by {separated}"
    # newline "": the csv module itself reads line breaks, those within cells unchanged.
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        # Without strict, an unclosed quote silently swallows the rest of the file.
        reader = csv.reader(text, strict=True, delimiter=sign)
        records = filter(None, reader)  # a blank line is no record
        row, end = 0, 0  # the last record that was read, and its last line
        try:
            names = next(records, [])
            end = reader.line_num
            if len(set(names)) < len(names):
                raise DataError(f"{path}: two columns have one name; rename one of them")
            if len(names) == 1 and re.search(r"[;,|\t]", names[0]):
                raise DataError(
                    f"{path}: {separated}, and its first record is {shorten(names[0])}; write the "
                    f"file again with them"
                )
            for row, cells in enumerate(records, start=1):
                end = reader.line_num
                if len(cells) != len(names):
                    detail = (
                        f": {len(cells)}, up to line {end}, where the first record names "
                        f"{len(names)} columns; {separated}"
                    )
                    yield row, BadRow("wrong number of cells", detail)
                elif any(cells):
                    yield row, dict(zip(names, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            # Text is decoded some lines ahead, so a wrong byte may come after this row.
            hint = "write it in UTF-8, with every quote closed and doubled within cells"
            place = f"row {row + 1} (line {end + 1}) or later"
            message = f"{path} {place}: {reason(error)}; {separated}; {hint}"
            raise DataError(message) from None


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with wrap_errors(path, DataError, "write it again as Parquet, or name another file"):
        yield from _arrow_rows(pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=64))


def _arrow_rows(batches: Iterable[Any]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        columns = [_cells(column) for column in batch.columns]
        for cells in zip(*columns, strict=True):
            row += 1
            yield row, dict(zip(batch.schema.names, cells, strict=True))


def _cells(column: Any) -> list[object]:
    import pyarrow
    from pyarrow.types import is_decimal, is_floating, is_integer

    kind = column.type
    if not (is_integer(kind) or is_floating(kind) or is_decimal(kind)):
        values: list[object] = column.to_pylist(maps_as_pydicts="strict")
        convert = _conversion(kind)
        if convert is None:
            return values
        return [None if value is None else convert(value) for value in values]
    # Arrow writes the fewest digits that round-trip, for 32-bit floats too.
    # nan has no digits, and is no answer.
    cells: list[object] = [
        text and (Number(text) if text[-1].isdigit() else float(text))
        for text in column.cast(pyarrow.string()).to_pylist()
    ]
    return cells


_Conversion = Callable[[Any], object]


def _conversion(kind: Any) -> _Conversion | None:
    """What converts the Python values of an Arrow type; None for nothing.

    Within lists and objects, too, JSON becomes its value and a number its digits: Python's floats
    would not keep those of 32-bit ones.
    """
    import numpy
    from pyarrow import JsonType, types

    if isinstance(kind, JsonType):  # the type Json of data sets
        return partial(parse_json, parse_int=Number, parse_float=Number)
    if types.is_decimal(kind):
        return Number
    if types.is_float32(kind):
        return partial(_digits, numpy.float32)
    if types.is_float16(kind):
        return partial(_digits, numpy.float16)
    if types.is_struct(kind):
        fields = {field.name: _conversion(field.type) for field in kind}
        found = {name: convert for name, convert in fields.items() if convert}
        return partial(_convert_fields, found) if found else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        convert = _conversion(kind.value_type)
        return partial(_convert_items, convert) if convert else None
    return None


def _digits(width: Callable[[float], object], value: float) -> object:
    return Number(width(value)) if math.isfinite(value) else value


def _convert_fields(conversions: Mapping[str, _Conversion], cell: dict[str, Any]) -> object:
    converted = {}
    for name, convert in conversions.items():
        if cell[name] is not None:
            converted[name] = convert(cell[name])
    return cell | converted


def _convert_items(convert: _Conversion, cell: list[Any]) -> object:
    return [None if value is None else convert(value) for value in cell]


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
    """Return the type of a cell in words: a number, a list, null, ..."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a cell is a text, and no number as its digits."""
    return isinstance(value, str) and not isinstance(value, Number)


def not_text(name: str, value: object) -> BadRow:
    return BadRow(f'field "{name}" is not text', f" but {kind_of(value)} (value {shorten(value)})")


def shorten(value: object) -> str:
    """Return a cell for a message, in at most 60 characters."""
    text = str(value) if isinstance(value, Number) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
