"""How files are written, read and told apart: whole, unchanged, by one process at a time.

    write_json, read_json    a JSON object that carries its checksum
    write_rows, read_rows    a file of such objects, one a line, written at once
    Log, read_log            the same, growing row by row; a kill may cut its last line
    new_folder, require_whole   a folder that appears complete, with SHA256SUMS of its files
    locked                   keeps other processes out of a folder

What was changed since it was written is refused as Damaged, never mended and never read. A row's
checksum covers its values, its place and the file's name, so that rows that were lost, doubled or
exchanged are found, and a file that was copied over another one. Tools that rewrite JSON without
changing a value do no harm.

Writing raises OSError where the file system does. A caller that can say what to do about it wraps
it in ``paint.errors.explained``.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from paint.errors import PaintError, explained

CHECK = "check"
"""The name of a JSON object's checksum among its values."""

SUMS = "SHA256SUMS"
"""The file of a folder that has the checksums of the others."""

READ_BYTES = 2**24
"""Bytes of a file that are in memory at once."""

LONGEST_ROW = 2**28
"""Bytes of one JSON object; what is longer was not written by us."""


class Damaged(PaintError, RuntimeError):
    """A file is not what was written; the message names it, the line, and the way out."""


class FolderInUse(PaintError, RuntimeError):
    """Another process is at work in a folder."""


def write(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace a file: it holds all of the old content or all of the new, also after a power cut.

    Missing folders are made. Half of a surrogate pair, which JSON can spell and UTF-8 cannot hold,
    becomes a question mark.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    partial = path.with_name(f".{path.name}.partial")

    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """The same with one JSON object and its checksum, for people to read, too."""
    write(path, json.dumps(_sealed(value, path.name), indent=2) + "\n")


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """What ``write_json`` wrote.

    Args:
        advice: the way out of a damaged file.

    Raises:
        Damaged: the file cannot be read, or was changed since it was written.
    """
    with explained(path, Damaged, advice):
        return _unsealed(path.read_bytes(), path.name)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file by JSON objects, one a line, each with its checksum."""
    total = len(rows)
    write(
        path,
        (
            _line(_sealed(row, f"{path.name} {number}/{total}"))
            for number, row in enumerate(rows, start=1)
        ),
    )


def read_rows(path: Path, advice: str) -> Iterator[dict[str, Any]]:
    """What ``write_rows`` wrote, row by row.

    Raises:
        Damaged: the file cannot be read, or was changed since it was written; the message names
            the line.
    """
    with explained(path, Damaged, advice), path.open("rb") as file:
        total = sum(1 for _ in file)
    for number, line in enumerate(_lines(path, advice), start=1):
        with explained(f"{path} line {number}", Damaged, advice):
            row = _unsealed(line, f"{path.name} {number}/{total}")
        yield row


class Log:
    """A file of rows that grows, open for the one process that holds its folder's lock.

    Opening it reads all of it, and takes off a last line that a kill cut short.

    Attributes:
        rows: how many there are.

    Raises:
        Damaged: a row was changed since it was written; the file stays as it is.
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, advice: str) -> None:
        self.path = path
        self.rows = sum(1 for _ in read_log(path, advice))
        whole = sum(len(line) for line in _lines(path, advice) if line.endswith(b"\n"))
        self.file = path.open("ab", buffering=0)
        self.file.truncate(whole)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row; a kill after this call keeps it. Raises OSError where that fails."""
        line = _line(_sealed(row, f"{self.path.name} {self.rows + 1}"))
        # The file is not buffered, and a full disk takes a part of the line without an error.
        if self.file.write(line) != len(line):
            raise OSError(errno.ENOSPC, "")
        self.rows += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def write_log(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a log by other rows."""
    write(
        path,
        (_line(_sealed(row, f"{path.name} {number}")) for number, row in enumerate(rows, start=1)),
    )


def read_log(path: Path, advice: str) -> Iterator[dict[str, Any]]:
    """The rows of a log; a file that does not exist has none.

    A last line without its end was cut short by a kill, and is left out.

    Raises:
        Damaged: a row was changed since it was written; the message names the line.
    """
    for number, line in enumerate(_lines(path, advice), start=1):
        if line.endswith(b"\n"):
            with explained(f"{path} line {number}", Damaged, advice):
                row = _unsealed(line, f"{path.name} {number}")
            yield row


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; it gets its name once the block is over and its files are on disk.

    SHA256SUMS says what they hold, as ``sha256sum --check`` reads it. An exception in the block
    leaves nothing behind.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        write(partial / SUMS, "".join(f"{sum}  {name}\n" for name, sum in _sums(partial).items()))
        for written in [*partial.rglob("*"), partial]:
            _sync(written)
        partial.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def require_whole(folder: Path, advice: str) -> None:
    """Refuse a folder of ``new_folder`` whose files are not those that were written.

    Raises:
        Damaged: naming a file that is missing, new or changed.
    """
    with explained(folder / SUMS, Damaged, advice):
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        written = {name: sum for sum, name in (line.split("  ", 1) for line in lines)}
    with explained(folder, Damaged, advice):
        found = _sums(folder)

    for name in sorted(written | found):
        if written.get(name) != found.get(name):
            what = "is missing" if name not in found else "is not the file that was written"
            raise Damaged(f"{folder / name} {what}; {advice}")


def to_jsonl(rows: Iterable[Any]) -> str:
    """One JSON value a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def digest(*parts: str) -> str:
    """The SHA-256 of texts in this order, as 64 hexadecimal digits."""
    return digest_of_bytes(["\0".join(parts).encode("utf-8", "replace")])


def digest_of_bytes(parts: Iterable[bytes]) -> str:
    """The SHA-256 of bytes, which are read part by part."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder.

    Raises:
        FolderInUse: another process is at work there.
        PaintError: the folder cannot be written.
    """
    with explained(folder, PaintError, "nothing that was stored before is lost"):
        lock = (folder / ".lock").open("wb")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"{folder}: another process is at work there; wait, or name another folder"
            ) from None
        except OSError:
            pass  # Some file systems have no locks: better to work there than to refuse.
        yield


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file, of which a part is in memory at once."""
    with path.open("rb") as file:
        return digest_of_bytes(iter(lambda: file.read(READ_BYTES), b""))


def _sealed(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The object with the checksum of its values and its place."""
    return {**value, CHECK: _checksum(value, place)}


def _unsealed(text: bytes, place: str) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError where it is not that of the values."""
    if len(text) > LONGEST_ROW:
        raise ValueError(f"{len(text):,} bytes, where at most {LONGEST_ROW:,} are written")
    value = json.loads(text)
    if not isinstance(value, dict) or CHECK not in value:
        raise ValueError("it has no checksum, so it was not written by this version of paint")
    if value.pop(CHECK) != _checksum(value, place):
        raise ValueError("its checksum is another one, so it was changed since it was written")
    return value


def _checksum(value: Mapping[str, Any], place: str) -> str:
    return digest(place, json.dumps(value, ensure_ascii=False, sort_keys=True))[:16]


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _lines(path: Path, advice: str) -> Iterator[bytes]:
    # Only "\n" ends a line: text may hold U+2028 and its like, at which str.splitlines would cut.
    with explained(path, Damaged, advice):
        file = path.open("rb") if path.exists() else None
    if file is not None:
        with file:
            yield from file


def _sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder, at any depth, by name; hidden ones are not ours."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != SUMS and not path.name.startswith(".")
    )
    return {name: digest_of_file(folder / name) for name in names}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
