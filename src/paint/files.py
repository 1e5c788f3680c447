"""How files are written, read and told apart: whole or not at all, by one process at a time.

Writing and reading raise OSError where the file system does. A caller that can say what to do about
it wraps them in ``explained``, which turns the OSError into an error with the path, the reason and
advice.
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

from paint.errors import PaintError


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


def write_json(path: Path, value: Any) -> None:
    """The same with one JSON value, for people to read, too."""
    write(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; it gets its name once the block is over and its files are on disk.

    An exception in the block leaves nothing behind.
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
    """The values of all complete lines; a file that does not exist has none.

    A last line without its end was cut short by a kill, and is left out.

    Raises:
        ValueError: another line is not JSON; the message names the file and the line.
    """
    for number, line in enumerate(_complete_lines(path), start=1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} line {number} is damaged: {error}") from error


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


@contextmanager
def explained(path: Path, kind: type[PaintError], advice: str) -> Iterator[None]:
    """Turn an OSError of the block into an error of ``kind``: path, reason and advice."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise kind(f"{path}: {reason}; {advice}") from error


def _complete_lines(path: Path) -> Iterator[bytes]:
    # Only "\n" ends a line: text may hold U+2028 and its like, at which str.splitlines would cut.
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
