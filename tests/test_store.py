"""What an evaluation leaves on disk survives kills, damage and changed settings."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.data import Problem
from paint.store import Answer, Store, StoreError, find_stores, open_store, read_store

PROBLEMS = [Problem(f"What is {i}+{i}?", "", str(2 * i), str(i)) for i in range(3)]
PROMPTS = [[1, 2, i] for i in range(3)]
ASKED = {"model": "lab", "temperature": 1.0, "samples": 2}


def fresh(folder: Path, **changes: Any) -> Store:
    return open_store(folder, ASKED | changes, PROBLEMS, PROMPTS)


def answer(problem: str = "0", sample: int = 0, text: str = "\\boxed{0}") -> Answer:
    return Answer(problem, sample, text, 5, False, "local")


def fill(store: Store) -> None:
    with store.adding() as add:
        for problem, sample in store.missing:
            add(answer(problem.id, sample, f"It is\u2028\\boxed{{{problem.answer}}} é"))


def test_what_is_added_is_found_again_and_the_rest_is_missing(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    assert [(p.id, k) for p, k in store.missing] == [(i, k) for i in "012" for k in (0, 1)]
    with store.adding() as add:
        add(answer("1", 1))
        assert read_store(tmp_path).answers == {("1", 1): answer("1", 1)}  # at once, not at the end
    assert [(p.id, k) for p, k in store.missing] == [("0", 0), ("0", 1), ("1", 0), ("2", 0), ("2", 1)]
    fill(fresh(tmp_path))
    again = read_store(tmp_path)
    assert not again.missing
    assert not again.dropped
    assert again.answers["1", 1] == answer("1", 1)
    assert again.answers["2", 0].text == "It is\u2028\\boxed{4} é"
    assert again.problems == PROBLEMS


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_store_cut_anywhere_loses_only_the_lines_that_were_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    fill(fresh(folder))
    path = folder / "completions.jsonl"
    whole = path.read_bytes()
    left = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(left)
    store = read_store(folder)
    assert len(store.answers) == left.count(b"\n") + (whole[len(left) : len(left) + 1] == b"\n")
    assert store.dropped == (1 if left and whole[len(left) - 1 : len(left) + 1].find(b"\n") < 0 else 0)
    assert path.read_bytes() == left  # who only reads does not write: another process may be adding
    fill(store)
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert path.read_bytes().endswith(b"\n")
    assert not read_store(folder).missing


@pytest.mark.parametrize(
    "damage",
    [
        b"not json\n",
        b'{"problem": "0"}\n',
        b'{"problem": 0, "sample": 0, "text": "x", "tokens": 1, "truncated": false, "source": "local"}\n',
        b'{"problem": "0", "sample": true, "text": "x", "tokens": 1, "truncated": false, "source": "local"}\n',
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b"\x00\x00\x00\n",
    ],
)
def test_a_damaged_line_anywhere_is_dropped_counted_and_asked_for_again(tmp_path: Path, damage: bytes) -> None:
    fill(fresh(tmp_path))
    path = tmp_path / "completions.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damage + b"".join(rest))
    store = read_store(tmp_path)
    assert store.dropped == 1
    assert [(p.id, k) for p, k in store.missing] == [("0", 0)]
    fill(store)
    assert path.read_bytes() == b"".join(rest) + first


def test_an_answer_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    path = tmp_path / "completions.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    assert read_store(tmp_path).dropped == 6


def test_another_setting_is_refused_with_every_difference(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    with pytest.raises(StoreError) as refused:
        fresh(tmp_path, temperature=0.6, top_k=20)
    assert "temperature: 1.0 -> 0.6" in str(refused.value)
    assert "top_k: None -> 20" in str(refused.value)
    assert "--folder" in str(refused.value)
    with pytest.raises(StoreError, match="problem 1: its prompt is another one"):
        open_store(tmp_path, ASKED, PROBLEMS, [PROMPTS[0], [9, 9], PROMPTS[2]])
    assert not fresh(tmp_path).missing


def test_answers_and_problems_may_become_more_or_less(tmp_path: Path) -> None:
    fill(open_store(tmp_path, ASKED, PROBLEMS[:2], PROMPTS[:2]))
    more = fresh(tmp_path, samples=3)
    assert [(p.id, k) for p, k in more.missing] == [("0", 2), ("1", 2), ("2", 0), ("2", 1), ("2", 2)]
    fill(more)
    less = fresh(tmp_path, samples=1)
    assert not less.missing
    assert len(less.rows) == 3
    assert len(less.answers) == 9


def test_a_corrected_gold_answer_is_taken_over(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    corrected = [Problem(PROBLEMS[0].problem, "", "42", "0"), *PROBLEMS[1:]]
    assert open_store(tmp_path, ASKED, corrected, PROMPTS).problems[0].answer == "42"


def test_two_processes_cannot_add_to_one_store(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from paint.store import StoreError, read_store
        try:
            with read_store(Path(sys.argv[1])).adding():
                print("added")
        except StoreError as error:
            print(error)
    """)
    line = [sys.executable, "-c", code, str(tmp_path)]
    with store.adding():
        other = subprocess.run(line, capture_output=True, text=True, check=True)
        assert "another process is adding" in other.stdout
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "added\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("asked.json", "{", "asked.json is damaged"),
        ("asked.json", "[]", "asked.json is damaged"),
        ("asked.json", '{"model": "lab"}', "asked.json is damaged"),
        ("problems.jsonl", '{"id": "0"}\n', "problems.jsonl line 1 is damaged"),
    ],
)
def test_a_damaged_setting_is_one_clear_message(tmp_path: Path, name: str, content: str, message: str) -> None:
    fresh(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(StoreError, match=message):
        read_store(tmp_path)


def test_a_folder_without_an_evaluation_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no evaluation"):
        read_store(tmp_path)
    assert find_stores(tmp_path) == []
    fresh(tmp_path / "base" / "mine")
    assert find_stores(tmp_path) == [tmp_path / "base" / "mine"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        fresh(tmp_path / "file")


def test_what_is_asked_is_kept_in_plain_sight(tmp_path: Path) -> None:
    fresh(tmp_path)
    assert json.loads((tmp_path / "asked.json").read_text()) == ASKED
