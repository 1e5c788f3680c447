"""Atomic writes, JSON and JSON Lines, checksums of folders, and folder locks.

    write_json, read_json       a JSON object
    write_rows, read_rows       JSON Lines, written at once
    append_log, read_log        JSON Lines that grow row by row; a kill may cut the last line
    new_folder, require_whole   a folder that appears complete, with SHA256SUMS of its files
    locked                      keeps other processes out of a folder

JSON files are plain: any editor and any tool may change them. A line that is no JSON object raises
CorruptFileError, with the file and the line. Files whose content must not change have their digests
in a SHA256SUMS beside them.

Writing raises OSError where the file system does. A caller that can say what to do about it wraps
it in ``paint.core.errors.wrap_errors``.
"""

import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paint.core.errors import PaintError, wrap_errors

SUMS = "SHA256SUMS"
"""The file of a folder that has the checksums of the others."""

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""Of file systems without locks, where processes are not kept apart."""

READ_BYTES = 2**24
"""Bytes of a file that are in memory at once."""


class CorruptFileError(PaintError, RuntimeError):
    """A file cannot be read, or is not the one whose digest was kept; the message has a hint."""


class FolderInUse(PaintError, RuntimeError):
    """Another process is at work in a folder."""


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
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
    """Replace a file by a JSON object, indented."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        advice: what to do about a file that cannot be read.

    Raises:
        CorruptFileError: the file cannot be read, or holds no JSON object.
    """
    with wrap_errors(path, CorruptFileError, advice):
        text = path.read_bytes()
    return _object(text, path, advice)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file by JSON objects, one a line."""
    write_atomic(path, map(_line, rows))


def read_jsonl(path: Path, advice: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file that was written at once, row by row.

    Raises:
        CorruptFileError: the file cannot be read or is empty, or a line is no JSON object; the
        message
            names the line.
    """
    with wrap_errors(path, CorruptFileError, advice):
        file = path.open("rb")
    number = 0
    with file:
        for number, line in enumerate(file, start=1):
            yield _object(line, f"{path} line {number}", advice)
    if not number:
        raise CorruptFileError(f"{path}: it is empty; {advice}")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file that grows; a kill after this call keeps them.

    Only the process that holds the folder's lock adds rows, after ``drop_cut_line``.
    """
    lines = b"".join(map(_line, rows))
    with path.open("ab", buffering=0) as file:
        # The file is not buffered, and a full disk takes a part of the lines without an error.
        if file.write(lines) != len(lines):
            raise OSError(errno.ENOSPC, "")


def read_growing_jsonl(path: Path, advice: str) -> Iterator[dict[str, Any]]:
    """The rows of a file that grows, row by row; a file that does not exist has none.

    A last line without its end was cut short by a kill, and is left out.

    Raises:
        CorruptFileError: a line is no JSON object; the message names the line.
    """
    if not os.path.lexists(path):
        return
    with wrap_errors(path, CorruptFileError, advice):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield _object(line, f"{path} line {number}", advice)


def trim_partial_line(path: Path) -> bool:
    """Take a last line without its end, which a kill cut short, off a file; was there one?"""
    with path.open("rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        is_cut = whole < file.seek(0, os.SEEK_END)
        if is_cut:
            file.truncate(whole)
    return is_cut


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """An empty folder to fill; it gets its name once the block is over and its files are on disk.

    SHA256SUMS says what they hold, as ``sha256sum --check`` reads it. An exception in the block
    leaves nothing behind.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        write_sums(partial, _names(partial))
        for written in [*partial.rglob("*"), partial]:
            fsync_path(written)
        partial.rename(path)
        fsync_path(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Write SHA256SUMS of these files of a folder."""
    write_atomic(
        folder / SUMS, "".join(f"{digest_of_file(folder / name)}  {name}\n" for name in names)
    )


def verify_checksums(folder: Path, advice: str, part: str = "") -> dict[str, str]:
    """Check the files of a folder against its SHA256SUMS.

    Files that are not listed are not checked.

    Args:
        part: a folder or a file in it; nothing else is checked.

    Returns:
        The SHA-256 of every file, by name.

    Raises:
        CorruptFileError: naming a file that is missing or changed.
    """
    with wrap_errors(folder / SUMS, CorruptFileError, advice):
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        sums = {name: sum for sum, name in (line.split("  ", 1) for line in lines)}
    wanted = {name: sum for name, sum in sums.items() if name.startswith(part)}
    if not wanted:
        raise CorruptFileError(f"{folder / SUMS} names no file of {folder / part}; {advice}")

    for name, sum in wanted.items():
        with wrap_errors(folder / name, CorruptFileError, advice):
            found = digest_of_file(folder / name)
        if found != sum:
            raise CorruptFileError(f"{folder / name} is not the file that was written; {advice}")
    return wanted


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
def lock_folder(
    folder: Path, name: str = ".lock", *, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with this process, however it ends.

    Args:
        name: of the file in it that is locked, where only a part of the folder is meant.
        waiting: where another process is at work there, this is told so, and it is waited for.

    Raises:
        FolderInUse: another process is at work there, and not waited for; it says which.
        PaintError: the folder cannot be written.
    """
    path = folder / name
    lock = FileLock(path, fallback_to_soft=False)
    with wrap_errors(folder, PaintError, "nothing that was stored before is lost"):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = ""
            with suppress(FileNotFoundError):  # its process has just ended, and removed it
                holder = path.read_text("utf-8", "replace").strip()
            in_use = f"{folder}: another process is at work there ({holder or 'just begun'})"
            if waiting is None:
                raise FolderInUse(f"{in_use}; wait, or name another folder") from None
            waiting(f"{in_use}; waiting for it")
            lock.acquire()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    try:
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        with wrap_errors(folder, PaintError, "nothing that was stored before is lost"):
            path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now}\n")
        yield
    finally:
        lock.release()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file, of which a part is in memory at once."""
    with path.open("rb") as file:
        return digest_of_bytes(iter(lambda: file.read(READ_BYTES), b""))


def fsync_path(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _object(text: bytes, place: object, advice: str) -> dict[str, Any]:
    with wrap_errors(place, CorruptFileError, advice):
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        return value


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _names(folder: Path) -> list[str]:
    """Every file in a folder, at any depth, sorted; without hidden ones, which are not ours."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != SUMS and not path.name.startswith(".")
    )
