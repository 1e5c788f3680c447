"""Files appear whole, folders keep their checksums, and one process works in a folder."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from paint import files
from paint.errors import PaintError, explained


def test_a_file_is_the_old_one_or_the_whole_new_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    files.write(path, "old")

    def half() -> Iterator[bytes]:
        yield b"ne"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(path, half())
    assert path.read_text() == "old"
    files.write(path, [b"ne", b"w"])
    assert path.read_bytes() == b"new"
    files.write(path, "half a pair: \ud800")
    assert path.read_text() == "half a pair: ?"


def test_a_folder_appears_when_it_is_filled_and_leaves_nothing_behind_when_it_is_not(
    tmp_path: Path,
) -> None:
    def fill_half() -> None:
        with files.new_folder(tmp_path / "made") as partial:
            (partial / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill_half()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / ".made.partial").mkdir()  # what a kill left
    (tmp_path / ".made.partial" / "stale").touch()
    with files.new_folder(tmp_path / "made") as partial:
        (partial / "file").write_text("whole")
        assert not (tmp_path / "made").exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"made", "file", "SHA256SUMS"}


def test_a_folder_is_refused_where_a_file_of_it_was_changed_or_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with files.new_folder(folder) as partial:
        for name in ("one/weights", "two", "ä"):
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(name, "utf-8")
    check = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True)
    assert check.returncode == 0

    (folder / "one/weights (copy)").write_text("what came later is not ours")
    (folder / ".DS_Store").write_text("")
    sums = files.require_whole(folder, "make it again")
    assert list(sums) == ["one/weights", "two", "ä"]
    assert sums["two"] == files.digest("two")

    (folder / "two").write_text("tow")
    with pytest.raises(files.Damaged, match=r"made/two is not the file that .*; make it again"):
        files.require_whole(folder, "make it again")
    assert files.require_whole(folder, "", part="one") == {"one/weights": sums["one/weights"]}
    (folder / "two").unlink()
    with pytest.raises(files.Damaged, match=r"made/two: No such file or directory; make it again"):
        files.require_whole(folder, "make it again")
    (folder / "SHA256SUMS").write_bytes(b"\xff")
    with pytest.raises(files.Damaged, match=r"made/SHA256SUMS: .*; make it again"):
        files.require_whole(folder, "make it again")


ROWS: list[dict[str, Any]] = [{"text": "a\u2028b\nc"}, {"x": 0.1, "y": [1, None]}, {"x": "ä"}]


def test_rows_come_back_as_they_were_and_a_cut_last_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(files.read_log(path, "")) == []
    files.append_log(path, ROWS[:1])
    files.append_log(path, ROWS[1:])
    assert list(files.read_log(path, "")) == ROWS
    whole = path.read_bytes()
    files.write_rows(path, ROWS)
    assert path.read_bytes() == whole
    assert not files.drop_cut_line(path)

    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        assert list(files.read_log(path, "")) == ROWS[:2]
        assert path.read_bytes() == whole[:-cut]  # reading mends nothing
    assert files.drop_cut_line(path)
    files.append_log(path, ROWS[2:])
    assert path.read_bytes() == whole


def test_a_file_of_rows_is_refused_where_a_line_is_cut_and_where_it_is_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    files.write_rows(path, ROWS)
    whole = path.read_bytes()
    assert list(files.read_rows(path, "")) == ROWS
    path.write_bytes(whole[:-1])  # all values are there
    assert list(files.read_rows(path, "")) == ROWS
    for cut in range(2, len(whole) + 1):
        path.write_bytes(whole[:-cut])
        if not whole[:-cut].endswith((b"}", b"\n")):  # what ends there is rows
            with pytest.raises(files.Damaged, match=r"rows\.jsonl( line \d)?: .*; make it again"):
                list(files.read_rows(path, "make it again"))


def test_a_file_that_a_person_has_edited_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    files.write_rows(path, ROWS)
    lines = path.read_text("utf-8").split("\n")
    path.write_text("\r\n".join([lines[2], '{"mine": 1}', ""]), "utf-8")
    assert (
        list(files.read_rows(path, "")) == list(files.read_log(path, "")) == [ROWS[2], {"mine": 1}]
    )


@pytest.mark.parametrize(
    "content",
    [
        *(b"null", b"[]", b"35.0", b"", b"\xff\xfe", b"\0\0\0", b"{" * 99),
        *(b"[" * 100_000, b"9" * 5_000),
    ],
    ids=range(9),
)
def test_what_is_no_json_object_is_refused_by_file_and_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(files.Damaged, match=rf"^{path}: .+; put it back$"):
        files.read_json(path, "put it back")
    path.write_bytes(content + b"\n")
    for read in (files.read_rows, files.read_log):
        with pytest.raises(files.Damaged, match=rf"^{path} line 1: .+; put it back$"):
            list(read(path, "put it back"))


def test_json_is_written_for_people_and_programs(tmp_path: Path) -> None:
    files.write_json(tmp_path / "facts.json", {"a": [1, "ä"]})
    text = (tmp_path / "facts.json").read_text("utf-8")
    assert json.loads(text) == {"a": [1, "ä"]}
    assert text.endswith("}\n")
    assert "ä" in text
    assert len(text.splitlines()) == 6


def test_half_a_surrogate_pair_is_written_as_a_question_mark_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    for value in ("\ud800", "\ud83d\ude00", "\udc80"):
        files.write_json(path, {"argv": value})
        assert files.read_json(path, "") == {"argv": "?" * len(value)}


def test_digests_tell_texts_and_their_borders_apart() -> None:
    digests = [files.digest(*parts) for parts in (("ab",), ("a", "b"), ("a", "b", ""), ("b", "a"))]
    assert len(set(digests)) == 4
    assert files.digest("a", "b") == files.digest_of_bytes([b"a", b"\0b"])
    assert len(digests[0]) == 64


def test_a_second_process_is_kept_out_until_the_first_has_left(tmp_path: Path) -> None:
    enter = f"files.locked(Path({str(tmp_path)!r})).__enter__()"
    code = f"from pathlib import Path; from paint import files; {enter}"

    def ask() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr

    with files.locked(tmp_path):
        said = ask()
        assert f"FolderInUse: {tmp_path}: another process is at work there" in said
        assert f"(process {os.getpid()} on {socket.gethostname()} since 20" in said
        with files.locked(tmp_path, ".other.lock"):
            pass
    assert ask() == ""


def test_a_folder_in_use_can_be_waited_for(tmp_path: Path) -> None:
    told: list[str] = []
    with ExitStack() as first:
        first.enter_context(files.locked(tmp_path))

        def waiting(message: str) -> None:
            told.append(message)
            first.close()

        with files.locked(tmp_path, waiting=waiting):
            assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
    [message] = told
    assert message.startswith(f"{tmp_path}: another process is at work there")
    assert message.endswith("; waiting for it")


def test_a_folder_whose_holder_has_not_yet_said_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.locked(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(files.FolderInUse, match=r"at work there \(just begun\); wait"):
            files.locked(tmp_path).__enter__()
        (tmp_path / ".lock").unlink()  # by a holder that ends at this moment

        def just_missed(lock: FileLock, timeout: float) -> None:
            raise Timeout(lock.lock_file)

        monkeypatch.setattr(FileLock, "acquire", just_missed)
        with pytest.raises(files.FolderInUse, match="at work there"):
            files.locked(tmp_path).__enter__()


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        from pathlib import Path
        from paint import files
        with files.locked(Path({str(tmp_path)!r})):
            print("held", flush=True)
            time.sleep(60)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(files.FolderInUse, match=f"process {holder.pid} on "):
            files.locked(tmp_path).__enter__()
        holder.kill()
        holder.wait()
    with files.locked(tmp_path):
        pass


def test_what_the_file_system_refuses_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PaintError, match=r"file/below: File exists; choose another place"),
        explained(tmp_path / "file/below", PaintError, "choose another place"),
    ):
        files.write(tmp_path / "file/below", "text")
