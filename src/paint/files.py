"""How files are written, read and told apart: whole, unchanged, by one process at a time.

    write_json, read_json       a JSON object that carries its checksum
    write_rows, read_rows       a file of such objects, one a line, written at once
    append_log, read_log        the same, growing row by row; a kill may cut its last line
    new_folder, require_whole   a folder that appears complete, with SHA256SUMS of its files
    locked                      keeps other processes out of a folder

What was changed since it was written is refused as Damaged, never mended and never read. A row's
checksum covers its values, its place, the file's name and its owner: the run or the setting that
it belongs to. So rows that were lost, doubled or exchanged are found, and a file that was copied
over another one. Tools that rewrite JSON without changing a value do no harm.

Writing raises OSError where the file system does. A caller that can say what to do about it wraps
it in ``paint.errors.explained``.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

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
    write(path, json.dumps(_sealed(value, path.name), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """What ``write_json`` wrote.

    Args:
        advice: the way out of a damaged file.

    Raises:
        Damaged: the file cannot be read, or was changed since it was written.
    """
    with explained(path, Damaged, advice):
        return _unsealed(path.read_bytes(), path.name)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], owner: str = "") -> None:
    """Replace a file by JSON objects, at least one, one a line, each with its checksum.

    Args:
        owner: what the rows belong to, such as the identity of a run.
    """
    total = len(rows)
    write(
        path,
        (
            _line(row, f"{path.name} {number}/{total} {owner}")
            for number, row in enumerate(rows, start=1)
        ),
    )


def read_rows(path: Path, advice: str, owner: str = "") -> Iterator[dict[str, Any]]:
    """What ``write_rows`` wrote, row by row.

    Raises:
        Damaged: the file cannot be read, or was changed since it was written; the message names
            the line.
    """
    with explained(path, Damaged, advice), path.open("rb") as file:
        total = sum(1 for _ in _lines(file))
    if not total:
        raise Damaged(f"{path}: it is empty; {advice}")

    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            with explained(f"{path} line {number}", Damaged, advice):
                row = _unsealed(line, f"{path.name} {number}/{total} {owner}")
            yield row


def append_log(
    path: Path, rows: Iterable[Mapping[str, Any]], *, after: int, owner: str = ""
) -> None:
    """Add rows to a file that grows; a kill after this call keeps them.

    Only the process that holds the folder's lock adds rows, after ``drop_cut_line``.

    Args:
        after: how many rows the file has.
    """
    lines = b"".join(
        _line(row, f"{path.name} {number} {owner}") for number, row in enumerate(rows, after + 1)
    )
    with path.open("ab", buffering=0) as file:
        # The file is not buffered, and a full disk takes a part of the lines without an error.
        if file.write(lines) != len(lines):
            raise OSError(errno.ENOSPC, "")


def write_log(path: Path, rows: Iterable[Mapping[str, Any]], owner: str = "") -> None:
    """Replace a file that grows by other rows."""
    write(
        path,
        (_line(row, f"{path.name} {number} {owner}") for number, row in enumerate(rows, start=1)),
    )


def read_log(path: Path, advice: str, owner: str = "") -> Iterator[dict[str, Any]]:
    """The rows of a file that grows, row by row; a file that does not exist has none.

    A last line without its end was cut short by a kill, and is left out.

    Raises:
        Damaged: a row was changed since it was written; the message names the line.
    """
    with explained(path, Damaged, advice):
        file = path.open("rb") if os.path.lexists(path) else None
    if file is None:
        return

    with file:
        for number, line in enumerate(_lines(file), start=1):
            if line.endswith(b"\n") or len(line) > LONGEST_ROW:
                with explained(f"{path} line {number}", Damaged, advice):
                    row = _unsealed(line, f"{path.name} {number} {owner}")
                yield row


def drop_cut_line(path: Path) -> bool:
    """Take a last line without its end, which a kill cut short, off a file; was there one?"""
    with path.open("rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        is_cut = whole < file.seek(0, os.SEEK_END)
        if is_cut:
            file.truncate(whole)
    return is_cut


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
            sync(written)
        partial.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def require_whole(folder: Path, advice: str, part: str = "") -> dict[str, str]:
    """Refuse a folder of ``new_folder`` whose files are not those that were written.

    Files that came later are not ours, and are let be.

    Args:
        part: a folder in it, beyond which nothing is looked at.

    Returns:
        The SHA-256 of every file, by name.

    Raises:
        Damaged: naming a file that is missing or changed.
    """
    with explained(folder / SUMS, Damaged, advice):
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        sums = {name: sum for sum, name in (line.split("  ", 1) for line in lines)}
    wanted = {name: sum for name, sum in sums.items() if name.startswith(part)}
    if not wanted:
        raise Damaged(f"{folder / SUMS} names no file of {folder / part}; {advice}")

    for name, sum in wanted.items():
        with explained(folder / name, Damaged, advice):
            found = digest_of_file(folder / name)
        if found != sum:
            raise Damaged(f"{folder / name} is not the file that was written; {advice}")
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
def locked(
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
    with explained(folder, PaintError, "nothing that was stored before is lost"):
        lock = (folder / name).open("a+b")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(READ_BYTES).decode("utf-8", "replace").strip() or "just begun"
            in_use = f"{folder}: another process is at work there ({holder})"
            if waiting is None:
                raise FolderInUse(f"{in_use}; wait, or name another folder") from None
            waiting(f"{in_use}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # Some file systems have no locks: better to work there than to refuse.

        now = datetime.now().astimezone().isoformat(" ", "seconds")
        with explained(folder, PaintError, "nothing that was stored before is lost"):
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
            lock.flush()
        yield


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file, of which a part is in memory at once."""
    with path.open("rb") as file:
        return digest_of_bytes(iter(lambda: file.read(READ_BYTES), b""))


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The object with the checksum of its values and its place."""
    return {**value, CHECK: _checksum(value, place)}


def _unsealed(text: bytes, place: str) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError where it is not that of the values."""
    if len(text) > LONGEST_ROW:
        raise ValueError(f"more than {LONGEST_ROW:,} bytes in one row, which paint does not write")
    value = json.loads(text)
    if not isinstance(value, dict) or CHECK not in value:
        raise ValueError("it has no checksum, so this version of paint did not write it")
    if value.pop(CHECK) != _checksum(value, place):
        raise ValueError("its checksum is another one: it was changed, or its place is elsewhere")
    return value


def _checksum(value: Mapping[str, Any], place: str) -> str:
    return digest(place, json.dumps(value, ensure_ascii=False, sort_keys=True))[:16]


def _line(value: Mapping[str, Any], place: str) -> bytes:
    sealed = json.dumps(_sealed(value, place), ensure_ascii=False)
    return (sealed + "\n").encode("utf-8", "replace")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    # Only "\n" ends a line: text may hold U+2028 and its like, at which str.splitlines would cut.
    return iter(lambda: file.readline(LONGEST_ROW + 1), b"")


def _sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder, at any depth, by name; hidden ones are not ours."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != SUMS and not path.name.startswith(".")
    )
    return {name: digest_of_file(folder / name) for name in names}
