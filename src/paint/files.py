"""How files are written, read and told apart: whole or not at all, by one process at a time.

Everything here raises OSError where the file system does; ``explained`` turns that into the error of
whoever asked, with the file, the reason and the way out.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paint import PaintError


class FolderInUse(PaintError, RuntimeError):
    """Another process is at work in a folder."""


def write(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file so that it is either the old one or the whole new one, also after a power cut.

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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets its name when the block is left and all is on disk.

    Whatever ends the block early leaves nothing behind.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for written in [*partial.rglob("*"), partial]:
            _sync(written)
        partial.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def to_jsonl(rows: Iterable[Any]) -> str:
    """One JSON value a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_jsonl(path: Path) -> Iterator[Any]:
    """The values of all complete lines; no file has no lines.

    A last line without an end was cut short by a kill, and is left out.

    Raises:
        ValueError: another line is not JSON; the message names the file and the line.
    """
    for number, line in enumerate(complete_lines(path), start=1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} line {number} is damaged: {error}") from error


def complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that have their end.

    Only "\\n" ends a line: text may hold U+2028 and its like, at which str.splitlines would cut.
    """
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def digest(*parts: str) -> str:
    """What tells some texts, in this order, from others: 64 hexadecimal digits."""
    return digest_of_bytes(["\0".join(parts).encode("utf-8", "replace")])


def digest_of_bytes(parts: Iterable[bytes]) -> str:
    """The same of bytes, which are read one part after the other."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder. Raises FolderInUse where one is at work there."""
    with (folder / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"{folder}: another process is at work there; wait, or name another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield


@contextmanager
def explained(path: Path, kind: type[PaintError], advice: str) -> Iterator[None]:
    """Turn an OSError of this block into an error of this kind: the path, the reason, the advice."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise kind(f"{path}: {reason}; {advice}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
