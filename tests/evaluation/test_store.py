"""What an evaluation leaves on disk survives kills, damage and changed settings."""

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from paint.core import storage
from paint.data.problems import Problem
from paint.evaluation.store import Store, StoreError, find_stores, open_store, reopen_store
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout

PROBLEMS = [Problem(f"What is {i}+{i}?", "", str(2 * i), str(i)) for i in range(3)]
PROMPTS = [[1, 2, i] for i in range(3)]
ASKED: dict[str, Any] = {
    "model": "demo",
    "temperature": 1.0,
    "samples": 2,
    "versions": {"paint": "1"},
}


def opened(
    folder: Path,
    settings: dict[str, Any] = ASKED,
    problems: list[Problem] = PROBLEMS,
    prompts: list[list[int]] = PROMPTS,
    **options: bool,
) -> AbstractContextManager[Store]:
    asked: dict[tuple[str, int], list[int]] = {}
    for problem, prompt in zip(problems, prompts, strict=True):
        asked |= {(problem.id, number): prompt for number in range(3)}
    return open_store(folder, settings, problems, asked, **options)


def fresh(folder: Path, **changes: Any) -> AbstractContextManager[Store]:
    return opened(folder, ASKED | changes)


def sample_of(
    problem: str = "0", sample: int = 0, text: str = "\\boxed{0}", prompt: list[int] | None = None
) -> Rollout:
    place = int(problem)
    completion = Completion((1,) * 5, (), truncated=False)
    return Rollout(sample, PROBLEMS[place], prompt or PROMPTS[place], completion, text)


STORED = ("settings.json", "problems.jsonl", "completions.jsonl", "grades.jsonl")


def add_all(store: Store) -> None:
    for problem, sample in store.missing:
        store.add(sample_of(problem.id, sample, f"It is\u2028\\boxed{{{problem.answer}}} é"))


def fill(opened: AbstractContextManager[Store]) -> None:
    with opened as store:
        add_all(store)
        store.write_sums()


def grade(opened: AbstractContextManager[Store]) -> None:
    with opened as store:
        rows = []
        for s in store.samples():
            of = store.graded_digest(s)
            rows.append({"problem_id": s.problem.id, "sample": s.row, "of": of})
        store.write_grades({"grader": "mine"}, rows)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def missing(opened: AbstractContextManager[Store]) -> list[tuple[str, int]]:
    with opened as store:
        return [(problem.id, sample) for problem, sample in store.missing]


def refusal(opened: AbstractContextManager[Store]) -> str:
    with pytest.raises((StoreError, storage.CorruptFileError)) as refused, opened:
        pass
    return str(refused.value)


def test_store_added_sample_is_read_back_and_rest_is_missing(tmp_path: Path) -> None:
    with fresh(tmp_path) as store:
        assert [(p.id, k) for p, k in store.missing] == [(i, k) for i in "012" for k in (0, 1)]
        store.add(sample_of("1", 1))
        assert list(store.samples()) == [sample_of("1", 1)]  # at once, not at the end
        left = [("0", 0), ("0", 1), ("1", 0), ("2", 0), ("2", 1)]
        assert [(p.id, k) for p, k in store.missing] == left
    fill(fresh(tmp_path))
    with reopen_store(tmp_path) as again:
        assert not again.missing
        samples = {s.key: s for s in again.samples()}
        assert samples["1", 1] == sample_of("1", 1)
        assert samples["2", 0].text == "It is\u2028\\boxed{4} é"
        assert again.problems == PROBLEMS


def test_store_checksums_match_sha256sum_once_finished(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"

    def checked() -> list[str]:
        line = ["sha256sum", "--check", "SHA256SUMS"]
        said = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return [line.removesuffix(": OK") for line in said.splitlines()]

    with fresh(tmp_path) as store:
        add_all(store)
    assert not sums.exists()  # a kill between the last sample and the checksums
    with fresh(tmp_path):
        assert checked() == list(STORED[:3])
    grade(reopen_store(tmp_path))
    assert checked() == list(STORED)
    with fresh(tmp_path, samples=3):
        assert not sums.exists()
    fill(fresh(tmp_path, samples=3))
    assert checked() == list(STORED)


def test_store_other_setting_is_refused_with_differences(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    before = contents(tmp_path)
    message = refusal(fresh(tmp_path, temperature=0.6, top_k=20))
    assert "temperature: 1.0 -> 0.6" in message
    assert "top_k: None -> 20" in message
    assert "--output-dir" in message
    message = refusal(opened(tmp_path, ASKED, PROBLEMS, [PROMPTS[0], [9, 9], PROMPTS[2]]))
    assert "problem 1: its prompt has changed" in message
    assert contents(tmp_path) == before
    assert not missing(fresh(tmp_path))
    # Also that of a problem which an evaluation of fewer problems left out.
    fill(opened(tmp_path, ASKED, PROBLEMS[:1], PROMPTS[:1]))
    message = refusal(opened(tmp_path, ASKED, PROBLEMS, [*PROMPTS[:2], [7, 7]]))
    assert "problem 2: its prompt has changed" in message


def test_store_samples_and_problems_can_grow_or_shrink(tmp_path: Path) -> None:
    fill(opened(tmp_path, ASKED, PROBLEMS[:2], PROMPTS[:2]))
    assert missing(fresh(tmp_path, samples=3)) == [("0", 2), ("1", 2), ("2", 0), ("2", 1), ("2", 2)]
    fill(fresh(tmp_path, samples=3))
    with fresh(tmp_path, samples=1) as less:
        assert not less.missing
        assert [s.key for s in less.samples()] == [("0", 0), ("1", 0), ("2", 0)]
        assert len(less.written) == 9


@pytest.mark.parametrize("cut", [0, 1, 60, 150, 10_000])
def test_store_truncated_completions_lose_only_partial_lines(tmp_path: Path, cut: int) -> None:
    with fresh(tmp_path) as store:  # killed before it is finished
        add_all(store)
    path = tmp_path / "completions.jsonl"
    whole = path.read_bytes()
    left = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(left)
    with reopen_store(tmp_path) as store:
        assert len(store.written) == left.count(b"\n")
    assert path.read_bytes() == left  # only who adds samples drops what was cut
    with fresh(tmp_path):
        assert path.read_bytes() == left[: left.rfind(b"\n") + 1]
    fill(fresh(tmp_path))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", STORED)
def test_store_changed_file_is_refused_until_put_back(tmp_path: Path, name: str) -> None:
    fill(fresh(tmp_path))
    grade(reopen_store(tmp_path))
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole + b"\n")
    before = contents(tmp_path)
    for opened in (fresh, reopen_store):
        assert f"{path} is not the file that was written; put it back" in refusal(opened(tmp_path))
    assert contents(tmp_path) == before
    path.write_bytes(whole)
    with reopen_store(tmp_path) as store:
        assert len(store.graded()) == 6


@pytest.mark.parametrize("line", [b"not json\n", b'{"problem": "0"}\n'])
def test_store_invalid_line_is_refused_by_number(tmp_path: Path, line: bytes) -> None:
    with fresh(tmp_path) as store:
        add_all(store)
    path = tmp_path / "completions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
    for opened in (fresh, reopen_store):
        assert f"{path} line 3: " in refusal(opened(tmp_path))


def test_store_grades_of_other_texts_or_gold_answers_do_not_count(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    with reopen_store(tmp_path) as store, pytest.raises(StoreError, match="is not graded"):
        store.graded()
    grade(reopen_store(tmp_path))
    with reopen_store(tmp_path) as store:
        places = [sample.key for sample, _ in store.graded()]
        assert places == [(problem.id, k) for problem, k in store.rows]
    corrected = [*PROBLEMS[:2], Problem(PROBLEMS[2].problem, "", "42", "2")]
    with opened(tmp_path, ASKED, corrected, PROMPTS) as store:
        assert store.problems[2].answer == "42"
        assert not store.missing
        with pytest.raises(StoreError, match="sample 0 of problem 2 is not graded"):
            store.graded()


def test_store_that_replaces_drops_samples_of_other_prompts_alone(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    other = [PROMPTS[0], [9, 9], PROMPTS[2]]
    with opened(tmp_path, prompts=other, replaces=True) as store:
        assert [(p.id, k) for p, k in store.missing] == [("1", 0), ("1", 1)]
        assert {s.key for s in store.samples()} == {(i, k) for i in "02" for k in (0, 1)}
        for number in (0, 1):
            store.add(sample_of("1", number, prompt=[9, 9]))
    assert missing(opened(tmp_path, prompts=other)) == []


def test_find_stores_lists_folders_with_samples_but_those_of_another_purpose(
    tmp_path: Path,
) -> None:
    assert find_stores(tmp_path) == []
    assert "holds no evaluation" in refusal(reopen_store(tmp_path))
    fill(fresh(tmp_path / "advice/student", purpose="rollouts"))
    fill(fresh(tmp_path / "base/mine"))
    assert find_stores(tmp_path) == [tmp_path / "base/mine"]
    assert find_stores(tmp_path / "advice/student") == [tmp_path / "advice/student"]


@pytest.mark.parametrize("kept", [STORED, ("settings.json", "problems.jsonl"), ("SHA256SUMS",)])
def test_find_stores_without_completions_are_refused_by_name(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    for name in ("base", "tuned"):
        fill(fresh(tmp_path / name / "mine"))
        grade(reopen_store(tmp_path / name / "mine"))
    for path in (tmp_path / "base/mine").iterdir():
        if path.name == "completions.jsonl" or path.name not in kept:
            path.unlink()
    with pytest.raises(StoreError, match=r"base/mine/completions\.jsonl is missing; put it back"):
        find_stores(tmp_path)
    # A folder that only looks like one.
    (tmp_path / "tuned/notes").mkdir()
    (tmp_path / "tuned/notes/problems.jsonl").write_text("{}\n")
    assert find_stores(tmp_path / "tuned") == [tmp_path / "tuned/mine"]


def test_store_is_locked_by_one_process(tmp_path: Path) -> None:
    with fresh(tmp_path), pytest.raises(storage.FolderInUse), reopen_store(tmp_path):
        pass


def test_store_without_checksums_is_read_unverified(tmp_path: Path) -> None:
    fill(fresh(tmp_path))
    path = tmp_path / "completions.jsonl"
    path.write_bytes(path.read_bytes().replace(b"It is", b"It iS"))
    assert f"{path} is not the file that was written" in refusal(reopen_store(tmp_path))
    (tmp_path / "SHA256SUMS").unlink()
    with reopen_store(tmp_path) as store:
        assert all(sample.text.startswith("It iS") for sample in store.samples())
