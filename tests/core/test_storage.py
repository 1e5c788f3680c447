"""Atomic writes, JSON Lines, checksums and folder locks."""

import os
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paint.core import storage


def test_write_atomic_interrupted_keeps_old_content(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    storage.write_atomic(path, "old")

    def half() -> Iterator[bytes]:
        yield b"ne"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.write_atomic(path, half())
    assert path.read_text() == "old"
    storage.write_atomic(path, [b"ne", b"w"])
    assert path.read_bytes() == b"new"
    storage.write_atomic(path, "half a pair: \ud800")
    assert path.read_text() == "half a pair: ?"


def test_atomic_dir_appears_only_when_complete(tmp_path: Path) -> None:
    def fill_half() -> None:
        with storage.atomic_dir(tmp_path / "made") as partial:
            (partial / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill_half()
    assert list(tmp_path.iterdir()) == []

    stale = tmp_path / ".made.0123456789abcdef.partial"  # left by a kill
    stale.mkdir()
    (stale / "file").touch()
    others = {".made.too.0123456789abcdef.partial", ".made.partial"}
    for name in others:
        (tmp_path / name).touch()
    with storage.atomic_dir(tmp_path / "made") as partial:
        (partial / "file").write_text("whole")
        assert not (tmp_path / "made").exists()
        assert not stale.exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"made", "file", "SHA256SUMS", *others}


def test_atomic_dir_of_two_processes_is_made_by_one(tmp_path: Path) -> None:
    with storage.atomic_dir(tmp_path / "made") as partial:
        (partial / "file").write_text("one")
        with pytest.raises(storage.FolderInUse, match=rf"^{tmp_path}/made: another process is at"):
            storage.atomic_dir(tmp_path / "made").__enter__()
        with storage.atomic_dir(tmp_path / "other") as other:
            (other / "file").write_text("two")
        assert partial.exists()
    with pytest.raises(FileExistsError, match="made"):
        storage.atomic_dir(tmp_path / "made").__enter__()
    assert storage.verify_checksums(tmp_path / "made", "") == {"file": storage.digest("one")}
    assert {path.name for path in tmp_path.iterdir()} == {"made", "other"}


def test_verify_checksums_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with storage.atomic_dir(folder) as partial:
        for name in ("one/weights", "two", "ä"):
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(name, "utf-8")
    check = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True)
    assert check.returncode == 0

    (folder / "one/weights (copy)").write_text("what came later is not ours")
    (folder / ".DS_Store").write_text("")
    sums = storage.verify_checksums(folder, "make it again")
    assert list(sums) == ["one/weights", "two", "ä"]
    assert sums["two"] == storage.digest("two")

    (folder / "two").write_text("tow")
    with pytest.raises(storage.CorruptFileError, match=r"made/two is not .*; make it again"):
        storage.verify_checksums(folder, "make it again")
    assert storage.verify_checksums(folder, "", part="one") == {"one/weights": sums["one/weights"]}
    (folder / "two").unlink()
    with pytest.raises(storage.CorruptFileError, match=r"made/two: No such .*; make it again"):
        storage.verify_checksums(folder, "make it again")
    (folder / "SHA256SUMS").write_bytes(b"\xff")
    with pytest.raises(storage.CorruptFileError, match=r"made/SHA256SUMS: .*; make it again"):
        storage.verify_checksums(folder, "make it again")


ROWS: list[dict[str, Any]] = [{"text": "a\u2028b\nc"}, {"x": 0.1, "y": [1, None]}, {"x": "ä"}]


def test_read_growing_jsonl_row_that_is_completed_meanwhile_is_left_for_the_next_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rows").touch()
    pieces = [(1, b'{"a": 1}\n'), (2, b'{"a"'), (3, b": 2}\n")]
    monkeypatch.setattr(storage, "_numbered_lines", lambda *_: iter(pieces))
    assert list(storage.read_growing_jsonl(tmp_path / "rows", "")) == [{"a": 1}]


def test_read_growing_jsonl_round_trips_and_drops_partial_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(storage.read_growing_jsonl(path, "")) == []
    storage.append_jsonl(path, ROWS[:1])
    storage.append_jsonl(path, ROWS[1:])
    assert list(storage.read_growing_jsonl(path, "")) == ROWS
    whole = path.read_bytes()
    storage.write_jsonl(path, ROWS)
    assert path.read_bytes() == whole
    assert not storage.trim_partial_line(path)

    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        assert list(storage.read_growing_jsonl(path, "")) == ROWS[:2]
        assert path.read_bytes() == whole[:-cut]  # reading changes nothing
    assert storage.trim_partial_line(path)
    storage.append_jsonl(path, ROWS[2:])
    assert path.read_bytes() == whole


def test_append_jsonl_full_disk_is_an_error(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write is cut as it is there."""
    path, limits = tmp_path / "rows.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="Errno 28"):
            storage.append_jsonl(path, ROWS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert storage.trim_partial_line(path)


@pytest.mark.parametrize("content", [b"null", b"", b"\xff\xfe", b"{{"])
def test_read_jsonl_line_without_object_is_refused_by_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(storage.CorruptFileError, match=rf"^{path}: .+; put it back$"):
        storage.read_json(path, "put it back")
    path.write_bytes(content + b"\n")
    for read in (storage.read_jsonl, storage.read_growing_jsonl):
        with pytest.raises(storage.CorruptFileError, match=rf"^{path} line 1: .+; put it back$"):
            list(read(path, "put it back"))


def test_lock_folder_waits_for_holder(tmp_path: Path) -> None:
    messages: list[str] = []
    with ExitStack() as first:
        first.enter_context(storage.lock_folder(tmp_path))

        def waiting(message: str) -> None:
            messages.append(message)
            first.close()

        with storage.lock_folder(tmp_path, waiting=waiting):
            assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
    [message] = messages
    assert message.startswith(f"{tmp_path}: another process is at work there")
    assert message.endswith("; waiting for it")


def test_lock_folder_excludes_other_process_until_it_dies(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        from pathlib import Path
        from paint.core import storage
        with storage.lock_folder(Path({str(tmp_path)!r})):
            print("held", flush=True)
            time.sleep(60)
    """
    line = [sys.executable, "-c", textwrap.dedent(code)]
    holder = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
        by = rf"^{tmp_path}: .* \(process {holder.pid} on {socket.gethostname()} since 20"
        with pytest.raises(storage.FolderInUse, match=by):
            storage.lock_folder(tmp_path).__enter__()
        with storage.lock_folder(tmp_path, ".other.lock"):
            pass
        holder.kill()
        holder.wait()
    with storage.lock_folder(tmp_path):
        pass


def test_read_jsonl_cut_or_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    storage.write_jsonl(path, ROWS)
    whole = path.read_bytes()
    assert list(storage.read_jsonl(path, "")) == ROWS
    path.write_bytes(whole[:-1])  # only the line end is missing
    assert list(storage.read_jsonl(path, "")) == ROWS
    for cut in range(2, len(whole) + 1):
        path.write_bytes(whole[:-cut])
        if not whole[:-cut].endswith((b"}", b"\n")):  # else complete rows remain
            named = r"rows\.jsonl( line \d)?: .*; make it again"
            with pytest.raises(storage.CorruptFileError, match=named):
                list(storage.read_jsonl(path, "make it again"))
