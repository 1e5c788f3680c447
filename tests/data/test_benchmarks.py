"""Evaluation sets: a known name, a copy of a known set, or one's own file; never half of one."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paint.config.schema import ConfigError
from paint.data.benchmarks import PUBLISHED, Benchmark, load_benchmark
from paint.data.problems import DataError, Problem
from runs import write_problems


def aime(count: int) -> list[dict[str, Any]]:
    """Rows with the columns and types of MathArena's AIME sets."""
    numbers = range(1, count + 1)
    return [{"problem_idx": n, "answer": 100 + n, "problem": f"Problem {n}?"} for n in numbers]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_problems(path, rows)
    return path


def refusal(spec: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_benchmark(spec, **options)
    return str(caught.value)


def test_load_benchmark_reads_local_copy_of_known_set(tmp_path: Path) -> None:
    path = write(tmp_path / "train-00000-of-00001.parquet", aime(30))
    benchmark = load_benchmark(f"aime_2025={path}")
    assert benchmark.name == "aime_2025"
    assert benchmark.problems[0] == Problem("Problem 1?", "", "101", id="1")
    assert len({problem.id for problem in benchmark.problems}) == 30
    assert load_benchmark(f"aime_2025={path}", limit=7) == Benchmark(
        "aime_2025", benchmark.problems[:7]
    )


def test_load_benchmark_demo_has_published_size_and_limit() -> None:
    for name in ("demo", "demo-new-rules"):
        assert len(load_benchmark(name).problems) == PUBLISHED[name].size
        assert len(load_benchmark(name, limit=3).problems) == 3
    with pytest.raises(ConfigError, match="limit"):
        load_benchmark("demo", limit=0)


def test_load_benchmark_incomplete_published_set_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "part.jsonl", aime(29))
    message = refusal(f"aime_2025={path}")
    assert f"{path} holds 29 problems, and aime_2025 has 30" in message
    assert "holds 29 problems" in refusal(f"aime_2025={path}", limit=30)
    assert len(load_benchmark(f"aime_2025={path}", limit=29).problems) == 29
    assert "holds 31 problems" in refusal(f"aime_2025={write(path, aime(31))}")


@pytest.mark.parametrize("spec", ["aime_24", "AIME-2024", "aime_24=copy.jsonl"])
def test_load_benchmark_unknown_name_suggests_nearest(spec: str) -> None:
    name = spec.partition("=")[0]
    assert refusal(spec).startswith(f"unknown evaluation set {name}; there are aime_2024, aime_20")
    assert refusal(spec).endswith("did you mean aime_2024?")
    assert "did you mean" not in refusal("zzz")


def test_load_benchmark_own_file_is_named_by_stem(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"problem": "p", "answer": 1}, {"problem": "q", "answer": "x"}]
    path = write(tmp_path / "my=set.v2.jsonl", rows)
    expected = [Problem("p", "", "1", "1"), Problem("q", "", "x", "2")]
    assert load_benchmark(str(path)) == Benchmark("my=set.v2", expected)


def test_load_benchmark_columns_follow_file_spec(tmp_path: Path) -> None:
    path = write(tmp_path / "own.parquet", [{"the question": "p", "gold": 1, "key": "k"}])
    assert load_benchmark(f"{path}:the question,gold").problems == [Problem("p", "", "1", "1")]
    assert load_benchmark(f"{path}:the question,gold,key") == Benchmark(
        "own", [Problem("p", "", "1", "k")]
    )
    assert (
        'row 1: field "problem" is missing (fields of the row: the question, gold, key); '
        "name a file with other columns as FILE:problem,answer or FILE:problem,answer,id"
    ) in refusal(str(path))


@pytest.mark.parametrize("name", ["..jsonl", "a\\..\\b.jsonl", "a\nb.jsonl", "-n.jsonl"])
def test_load_benchmark_name_that_escapes_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "x.jsonl", [{"problem": "p", "answer": "1"}]).rename(tmp_path / name)
    assert "which is no folder name; rename it" in refusal(str(path))


def test_load_benchmark_gsm8k_copy_in_the_hubs_columns(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"It is so.\n#### {n}"} for n in range(1319)]
    benchmark = load_benchmark(f"gsm8k={write(tmp_path / 'test.parquet', rows)}")
    assert [problem.answer for problem in benchmark.problems] == [str(n) for n in range(1319)]
    assert [problem.problem for problem in benchmark.problems[:2]] == ["0?", "1?"]
    assert benchmark.grader == "math"


def test_load_benchmark_of_code_needs_tests_and_no_answers(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"task_id": n, "text": f"{n}?", "code": "pass", "test_list": ["assert True"]}
        for n in range(500)
    ]
    benchmark = load_benchmark(f"mbpp={write(tmp_path / 'test.jsonl', rows)}")
    assert benchmark.grader == "code"
    assert {problem.fields["tests"] for problem in benchmark.problems} == {"assert True"}
    del rows[7]["test_list"]
    assert "row 8" in refusal(f"mbpp={write(tmp_path / 'bad.jsonl', rows)}")
