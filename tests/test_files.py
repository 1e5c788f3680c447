"""Files appear whole or not at all, torn lines are left out, and one process works in a folder."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paint import files
from paint.errors import PaintError


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
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "file"]


def test_lines_come_back_as_they_were_and_a_torn_last_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(files.read_jsonl(path)) == []
    rows = [{"text": "a\u2028b\nc"}, {"x": 0.1}, [1, None]]
    files.write(path, files.to_jsonl(rows))
    assert list(files.read_jsonl(path)) == rows

    whole = path.read_bytes()
    for cut in range(1, len(files.to_jsonl(rows[2:]))):
        path.write_bytes(whole[:-cut])
        assert list(files.read_jsonl(path)) == rows[:2]

    path.write_text('{"x": 1}\n{"x": \n{"x": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl line 2 is damaged"):
        list(files.read_jsonl(path))


def test_json_is_written_for_people_and_programs(tmp_path: Path) -> None:
    files.write_json(tmp_path / "facts.json", {"a": [1, "ä"]})
    text = (tmp_path / "facts.json").read_text()
    assert json.loads(text) == {"a": [1, "ä"]}
    assert text.endswith("}\n")
    assert len(text.splitlines()) == 6


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
        assert f"FolderInUse: {tmp_path}: another process is at work there" in ask()
    assert ask() == ""


def test_what_the_file_system_refuses_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PaintError, match=r"file/below: File exists; choose another place"),
        files.explained(tmp_path / "file/below", PaintError, "choose another place"),
    ):
        files.write(tmp_path / "file/below", "text")
