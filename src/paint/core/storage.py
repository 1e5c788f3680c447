"""Atomic writes, JSON and JSON Lines, checksums of folders, and folder locks.

A line that is no JSON object raises CorruptFileError with file and line. Files whose content must
not change have their digests in a SHA256SUMS in the same folder. Writing raises OSError.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paint.core.errors import PaintError, wrap_errors
from paint.core.nesting import STORED_DEPTH, parse_json

SUMS = "SHA256SUMS"  # name of the file with the checksums of a folder's other files

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}  # of file systems without locks


class CorruptFileError(PaintError, RuntimeError):
    """A file cannot be read, or does not match its checksum; the message has a hint."""


class FolderInUse(PaintError, RuntimeError):
    """Another process has locked a folder."""


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace a file atomically: after a crash it has either its old or its new content.

    Missing folders are made. Unpaired surrogates, which UTF-8 cannot encode, become `?`.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    if isinstance(content, bytes):
        content = [content]
    # Two processes may write the same tables at once, each a separate part.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        file.writelines(content)
        file.flush()
        # Before the rename: after a power failure, the name must not stand for an empty file.
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Read a JSON object from a file. Raises CorruptFileError, with the hint, if that fails."""
    with wrap_errors(path, CorruptFileError, hint):
        text = path.read_bytes()
    return _object(text, path, hint)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_atomic(path, map(_line, rows))


def read_jsonl(path: Path, hint: str) -> Iterator[dict[str, Any]]:
    """Iterate over the JSON objects of a file that was written at once and is not empty."""
    number = 0
    for number, line in _numbered_lines(path, hint):
        yield _object(line, f"{path} line {number}", hint)
    if not number:
        raise CorruptFileError(f"{path}: it is empty; {hint}")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a growing file; they survive a kill after this call.

    The caller must hold the folder's lock and have called ``trim_partial_line``.
    """
    lines = b"".join(map(_line, rows))
    with path.open("ab", buffering=0) as file:
        # An unbuffered write to a full disk is partial and raises no error.
        if file.write(lines) != len(lines):
            raise OSError(errno.ENOSPC, "")


def read_growing_jsonl(path: Path, hint: str) -> Iterator[dict[str, Any]]:
    """Iterate over the complete rows of a growing file, which need not exist."""
    if not os.path.lexists(path):
        return
    for number, line in _numbered_lines(path, hint):
        # Without its end, a line is being written, or was cut by a kill. Its rest is no row either.
        if not line.endswith(b"\n"):
            return
        yield _object(line, f"{path} line {number}", hint)


def _numbered_lines(path: Path, hint: str) -> Iterator[tuple[int, bytes]]:
    with wrap_errors(path, CorruptFileError, hint):
        file = path.open("rb")
    with file:
        yield from enumerate(file, start=1)


def trim_partial_line(path: Path) -> bool:
    """Remove a last line without a line end, which a kill has cut; return whether there was one."""
    with path.open("rb+") as file:
        complete_bytes = sum(len(line) for line in file if line.endswith(b"\n"))
        is_cut = complete_bytes < file.seek(0, os.SEEK_END)
        if is_cut:
            file.truncate(complete_bytes)
    return is_cut


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield an empty folder, renamed to ``path`` after the block, when its files are on disk.

    Its files are listed in SHA256SUMS. An exception in the block removes the folder.

    Raises:
        FolderInUse: another process makes the same folder.
        FileExistsError: there is a file, or a folder that is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_target(path) as is_locked:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        own_name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
        # While the lock is held, what has such a name was left by a killed process. Where nothing
        # can be locked, it may be another's who is at work.
        left = [other for other in path.parent.iterdir() if own_name.fullmatch(other.name)]
        for other in left if is_locked else ():
            shutil.rmtree(other, ignore_errors=True)
        partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
        partial.mkdir()
        try:
            yield partial
            files = (path.relative_to(partial) for path in partial.rglob("[!.]*") if path.is_file())
            write_sums(partial, sorted(map(Path.as_posix, files)))
            for written in [*partial.rglob("*"), partial]:
                fsync_path(written)
            # It fails where a process that nothing locked out has made the folder.
            partial.rename(path)
            # The new name is on disk only with the folder that has it.
            fsync_path(path.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def write_sums(folder: Path, names: Iterable[str]) -> None:
    write_atomic(
        folder / SUMS, "".join(f"{digest_of_file(folder / name)}  {name}\n" for name in names)
    )


def verify_checksums(folder: Path, hint: str, part: str = "") -> dict[str, str]:
    """Check files against their folder's SHA256SUMS; return the SHA-256 of each, by name.

    Only listed files whose name begins with ``part`` are checked. Raises CorruptFileError for one
    that is missing or changed.
    """
    with wrap_errors(folder / SUMS, CorruptFileError, hint):
        selected = {}
        for line in (folder / SUMS).read_text("utf-8").splitlines():
            digits, name = line.split("  ", 1)
            if name.startswith(part):
                selected[name] = digits
        if not selected:
            raise ValueError(f"it lists no file of {folder / part}")
    for name, digits in selected.items():
        with wrap_errors(folder / name, CorruptFileError, hint):
            if digest_of_file(folder / name) != digits:
                raise CorruptFileError(f"{folder / name} is not the file that was written; {hint}")
    return selected


def verify_export(folder: Path) -> None:
    """Check a folder that a command made, if it has a SHA256SUMS. Raises CorruptFileError."""
    if (folder / SUMS).is_file():
        verify_checksums(folder, f"make it again, or delete {folder / SUMS} to use it as it is")


def digest(*parts: str) -> str:
    """Return the SHA-256 of a sequence of texts, as 64 hexadecimal digits."""
    # A separator, as ("ab", "c") and ("a", "bc") must differ.
    return digest_of_bytes(["\0".join(parts).encode("utf-8", "replace")])


def digest_of_bytes(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


@contextmanager
def lock_target(path: Path) -> Iterator[bool]:
    """Lock a file or folder that this process makes; the lock file beside it goes with the lock.

    Yields False on a file system without locks. Raises FolderInUse.
    """
    lock_file = path.with_name(f".{path.name}.lock")
    with lock_folder(path.parent, lock_file.name, place=path) as is_locked:
        try:
            yield is_locked
        finally:
            # Before the release: filelock takes no lock on a file that is no longer there.
            lock_file.unlink(missing_ok=True)


@contextmanager
def lock_folder(
    folder: Path,
    name: str = ".lock",
    *,
    place: Path | None = None,
    waiting: Callable[[str], None] | None = None,
) -> Iterator[bool]:
    """Lock a folder against other processes; the lock ends with this process, even if killed.

    Another name locks only a part of the folder, which messages call ``place``. Where another
    process holds the lock, FolderInUse is raised, or ``waiting`` is called with a message and the
    lock is waited for. Yields False on a file system without locks.
    """
    path, place = folder / name, place or folder
    lock = FileLock(path, fallback_to_soft=False)  # a soft lock would outlive a killed process
    with wrap_errors(place, PaintError, "nothing that was stored before is lost"):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is None:
                raise FolderInUse(f"{_in_use(path, place)}; wait, or name another folder") from None
            waiting(f"{_in_use(path, place)}; waiting for it")
            lock.acquire()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now}\n")
    try:
        yield lock.is_locked
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether another process holds the lock of a folder."""
    try:
        with (folder / ".lock").open("rb") as file:
            # filelock's lock is the same system call, so this one is refused while it is held.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        return False
    return False


def require_free(folder: Path) -> None:
    """Raise FolderInUse where another process holds the lock of a folder."""
    if "RANK" in os.environ:  # torchrun's processes refuse together, when they are connected
        return
    if is_locked(folder):
        in_use = _in_use(folder / ".lock", folder)
        raise FolderInUse(f"{in_use}; wait, or name another folder")


def _in_use(lock_file: Path, place: Path) -> str:
    holder = "just started"
    with suppress(FileNotFoundError):  # the holder has just ended and removed it
        holder = lock_file.read_text("utf-8", "replace").strip() or holder
    return f"{place}: another process is at work there ({holder})"


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _object(text: bytes, place: object, hint: str) -> dict[str, Any]:
    with wrap_errors(place, CorruptFileError, hint):
        value = parse_json(text, max_depth=STORED_DEPTH)
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return value


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "replace")
