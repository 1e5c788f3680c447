"""OpenThoughts: kept rows are verified, none is drawn twice, an interruption changes nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prepare
from paint import validate_data
from paint.config.schema import DataConfig
from paint.core.display import Display
from paint.core.storage import FolderInUse, lock_folder
from paint.data.benchmarks import Benchmark
from paint.data.problems import DataError, Problem, read_problems
from paint.grading.contract import Item
from paint.grading.mathematics import MathGrader
from prepare import Options, Preparation, main, make_training_data
from runs import rows_of, write_problems

KNOWN = Problem("How many of the " + "very " * 20 + "old owls sleep?", "", "3", "k1")
BENCHMARKS = [Benchmark("known", [KNOWN])]


def row(number: int, given: str = "", gold: str = "", **changes: Any) -> dict[str, Any]:
    """A row with the columns of OpenThoughts-114k, configuration `metadata`."""
    answer = str(number + 1)
    texts = {
        "problem": f"What is ${number}+1$?",
        "deepseek_reasoning": f"Okay, so {number} and one.",
        "deepseek_solution": f"We add. \\[ \\boxed{{{given or answer}}} \\]",
        "ground_truth_solution": f"It is $\\boxed{{{gold or answer}}}$.",
    }
    code = {"domain": "math", "source": "numina_math", "test_cases": None, "starter_code": None}
    return texts | code | changes


GOOD = [row(number) for number in range(20)]
DROPPED: dict[str, list[dict[str, Any]]] = {
    "not mathematics": [row(100, domain="code"), row(101, domain=None)],
    "no problem": [row(102, problem=" ")],
    "no deepseek_reasoning": [row(103, deepseek_reasoning=None)],
    "no deepseek_solution": [row(104, deepseek_solution="")],
    "no ground_truth_solution": [row(105, ground_truth_solution=None)],
    "no final answer in the solution": [
        row(106, deepseek_solution="It is 107."),
        row(106, deepseek_solution=r"<think> \boxed{107}"),
    ],
    "no final answer in the ground truth": [row(107, ground_truth_solution="Q.E.D.")],
    "contaminated": [row(108, problem=KNOWN.problem.upper())],
    "wrong": [row(109, "109"), row(110, "1{,}110", "111")],
    "ground truth cannot be parsed": [row(111, "1", r"\frac{}{}")],
    "timed out": [row(112, r"\sum_{i=1}^{10^{30}} \sin(i^2)", "1")],
    "duplicate problem": [row(0, problem="What is $0 + 1$?"), row(1)],
}
ALL = GOOD + [bad for rows in DROPPED.values() for bad in rows]
ALGEBRA = {"ground truth cannot be parsed", "timed out"}  # for which processes are started
FAST = GOOD + [bad for reason, rows in DROPPED.items() if reason not in ALGEBRA for bad in rows]


QUIET = Display(enabled=False)


def run(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Preparation:
    folder.mkdir(exist_ok=True)
    benchmarks = options.pop("benchmarks", BENCHMARKS)
    defaults: dict[str, Any] = {
        "out": folder / "out.jsonl",
        "source": write_problems(folder / "rows.jsonl", rows),
        "deadline": 0.5,
    }
    return make_training_data(Options(**(defaults | options)), benchmarks, QUIET)


def test_openthoughts_keeps_or_drops_every_row_for_its_reason(tmp_path: Path) -> None:
    preparation = run(tmp_path, ALL)
    assert preparation.dropped == {reason: len(rows) for reason, rows in DROPPED.items()}
    assert (preparation.rows, preparation.kept, preparation.sampled) == (len(ALL), 20, 20)
    assert preparation.contaminated == {"known": 1}
    assert json.loads((tmp_path / "out.report.json").read_text())["dropped"] == preparation.dropped
    decisions = rows_of(tmp_path / "out.decided/decisions.jsonl")
    [repeated] = [line["contaminated"] for line in decisions if "contaminated" in line]
    assert (repeated["benchmark"], repeated["id"], repeated["share"]) == ("known", "k1", 1.0)
    assert "very very old owls sleep" in repeated["shared"]


def test_openthoughts_output_is_readable_as_training_data(tmp_path: Path) -> None:
    run(tmp_path, FAST)
    found = {p.answer: p for p in read_problems(DataConfig(path=f"{tmp_path}/out.jsonl")).problems}
    assert len(found) == 20
    assert (found["6"].problem, found["6"].solution) == (
        "What is $5+1$?",
        r"We add. \[ \boxed{6} \]",
    )
    fields = ["id", "problem", "solution", "answer", "trace", "source"]
    assert list(found["6"].fields) == fields
    assert found["6"].fields["trace"] == "Okay, so 5 and one."


@pytest.mark.parametrize("solution", ["ground_truth_solution", "deepseek_reasoning"])
def test_openthoughts_other_solution_column_is_verified(tmp_path: Path, solution: Any) -> None:
    preparation = run(tmp_path, FAST, solution=solution)
    assert preparation.dropped["wrong"] == 2
    known = {line["problem"]: line[solution] for line in GOOD}
    for line in rows_of(tmp_path / "out.jsonl"):
        assert line["solution"] == known[line["problem"]]


def test_openthoughts_sample_is_uniform_and_a_prefix_of_larger_ones(tmp_path: Path) -> None:
    run(tmp_path, FAST, sample=12)
    larger = rows_of(tmp_path / "out.jsonl")
    run(tmp_path, FAST, sample=5, workers=3)
    assert rows_of(tmp_path / "out.jsonl") == larger[:5]
    drawn: dict[str, int] = {}
    for seed in range(100):
        run(tmp_path, FAST, sample=5, seed=seed)
        for line in rows_of(tmp_path / "out.jsonl"):
            drawn[line["problem"]] = drawn.get(line["problem"], 0) + 1
    assert len(drawn) == 20
    # 25 are expected, with standard deviation 4.3.
    assert all(10 <= count <= 45 for count in drawn.values())


def test_openthoughts_interrupted_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "CHUNK", 4)
    whole = tmp_path / "whole"
    expected = run(whole, FAST, sample=9)
    verified: list[int] = []
    grade = MathGrader.grade

    def counted(self: MathGrader, items: list[Item]) -> Any:
        if len(verified) == stop:
            raise KeyboardInterrupt
        verified.append(len(items))
        return grade(self, items)

    monkeypatch.setattr(MathGrader, "grade", counted)
    source = str(whole / "rows.jsonl")
    stop = 3
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FAST, sample=9, source=source)
    assert not (tmp_path / "out.jsonl").exists()
    decided = tmp_path / "out.decided/decisions.jsonl"
    decided.write_bytes(decided.read_bytes()[:-10])  # the machine stopped within a line
    stop = -1
    assert run(tmp_path, FAST, sample=9, source=source) == expected
    for name in ("out.jsonl", "out.report.json", "out.decided/decisions.jsonl"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    chunks = 3 + -(-(len(FAST) - 11) // 4)  # of the 12 rows of three chunks, 11 had whole lines
    assert len(verified) == chunks
    run(tmp_path, FAST, sample=5, source=source)
    assert len(verified) == chunks  # another sample verifies nothing


def test_openthoughts_other_settings_and_a_second_process_are_refused(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    with pytest.raises(DataError, match=r"(?s)out\.decided holds decisions.*benchmarks: "):
        run(tmp_path, GOOD, benchmarks=[])
    with lock_folder(tmp_path, ".out.jsonl.lock"), pytest.raises(FolderInUse):
        run(tmp_path, GOOD)
    with pytest.raises(DataError, match=r"must end in \.jsonl"):
        make_training_data(Options(tmp_path / "out"), [], QUIET)


def test_openthoughts_parquet_shards_are_one_source(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot" / "data"
    folder.mkdir(parents=True)
    for number, part in enumerate((FAST[:15], FAST[15:])):
        pq.write_table(pa.Table.from_pylist(part), folder / f"train-0000{number}-of-00002.parquet")
    expected = run(tmp_path, FAST, sample=9)
    lines = (tmp_path / "out.jsonl").read_bytes()
    out = tmp_path / "parquet.jsonl"
    preparation = run(tmp_path, [], out=out, source=str(folder.parent), sample=9)
    assert preparation.dropped == expected.dropped
    assert out.read_bytes() == lines


def test_openthoughts_unreadable_row_is_counted(tmp_path: Path) -> None:
    path = Path(write_problems(tmp_path / "bad.jsonl", GOOD[:3]))
    path.write_text(path.read_text() + "{\n")
    preparation = run(tmp_path, [], source=str(path))
    assert (preparation.kept, preparation.dropped) == (3, {"row cannot be read": 1})


@pytest.mark.slow
def test_openthoughts_sample_of_the_script_is_valid(tmp_path: Path) -> None:
    source = write_problems(tmp_path / "rows.jsonl", [row(2, "6/2", "3"), row(3, domain="code")])
    out = tmp_path / "out.jsonl"
    made = main(Options(out, source, benchmarks=("demo",), workers=1))
    assert (made.rows, made.kept) == (2, 1)
    assert validate_data(out, model="demo").good == 1
