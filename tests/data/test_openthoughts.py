"""OpenThoughts: kept rows are verified, none is drawn twice, an interruption changes nothing."""

import errno
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paint.config.schema import DataConfig
from paint.core.display import Display
from paint.core.storage import CorruptFileError, FolderInUse, lock_folder
from paint.data import openthoughts
from paint.data.benchmarks import Benchmark, load_benchmark
from paint.data.openthoughts import REASONS, Preparation, make_training_data, print_preparation
from paint.data.problems import DataError, Problem, read_problems
from paint.grading.contract import Item
from paint.grading.math.grader import MathGrader
from runs import rows_of, write_problems

DECISIONS = "out.decided/decisions.jsonl"
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
ALGEBRA = {"ground truth cannot be parsed", "timed out"}  # for which processes are started
ALL = GOOD + [bad for rows in DROPPED.values() for bad in rows]
FAST = GOOD + [bad for reason, rows in DROPPED.items() if reason not in ALGEBRA for bad in rows]


def written(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("out.*"), *folder.glob("out.decided/*")]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def run(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Preparation:
    folder.mkdir(exist_ok=True)
    defaults: dict[str, Any] = {
        "out": folder / "out.jsonl",
        "benchmarks": BENCHMARKS,
        "source": write_problems(folder / "rows.jsonl", rows),
        "deadline": 0.5,
        "display": Display(enabled=False),
    }
    return make_training_data(**(defaults | options))


def test_openthoughts_keeps_or_drops_every_row_for_its_reason(tmp_path: Path) -> None:
    preparation = run(tmp_path, ALL)
    assert preparation.dropped == {reason: len(DROPPED.get(reason, [])) for reason in REASONS}
    assert list(preparation.dropped) == list(REASONS)
    assert (preparation.rows, preparation.kept, preparation.sampled) == (len(ALL), 20, 20)
    assert preparation.rows == preparation.kept + sum(preparation.dropped.values())
    assert preparation.contaminated == {"known": 1}
    assert json.loads((tmp_path / "out.report.json").read_text())["dropped"] == preparation.dropped
    (repeated,) = rows_of(tmp_path / "out.contaminated.jsonl")
    assert ALL[repeated["row"] - 1] == DROPPED["contaminated"][0]
    assert (repeated["benchmark"], repeated["id"], repeated["share"]) == ("known", "k1", 1.0)
    assert "very very old owls sleep" in repeated["shared"]
    assert repeated["found_by"] == "words"
    assert preparation.found_by == {"words": 1, "masked": 0}


def test_openthoughts_masked_pass_is_optional_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = "What is the sum of all positive integers $n$ below 57 for which $n^2 + 3$ is prime?"
    other = sums.replace("57", "61").replace("$n", "$k")
    benchmarks = [*BENCHMARKS, Benchmark("sums", [Problem(sums, "", "1", "s1")])]
    rows = [*GOOD, row(200, problem=other), row(201, problem=KNOWN.problem)]
    assert run(tmp_path, rows, benchmarks=benchmarks).dropped["contaminated"] == 1

    folder = tmp_path / "masked"
    preparation = run(folder, rows, benchmarks=benchmarks, masked=True)
    assert preparation.dropped["contaminated"] == 2
    assert preparation.contaminated == {"known": 1, "sums": 1}
    assert preparation.found_by == {"words": 1, "masked": 1}
    lines = rows_of(folder / "out.contaminated.jsonl")
    found = {line["problem"]: line["found_by"] for line in lines}
    assert found == {other: "masked", KNOWN.problem: "words"}
    print_preparation(preparation, folder / "out.jsonl", Display())
    assert "1 of these with another number or letter (--masked)" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"masked: True -> False"):
        run(folder, rows, benchmarks=benchmarks)


def test_openthoughts_output_is_readable_as_training_data(tmp_path: Path) -> None:
    run(tmp_path, FAST)
    read_back = read_problems(DataConfig(path=str(tmp_path / "out.jsonl")))
    assert read_back.skipped == {}
    by_answer = {problem.answer: problem for problem in read_back.problems}
    assert by_answer["6"].problem == "What is $5+1$?"
    assert by_answer["6"].solution == "We add. \\[ \\boxed{6} \\]"
    [line] = [line for line in rows_of(tmp_path / "out.jsonl") if line["answer"] == "6"]
    assert list(line) == ["id", "problem", "solution", "answer", "trace", "source"]
    assert (line["id"], line["trace"]) == (by_answer["6"].id, "Okay, so 5 and one.")


@pytest.mark.parametrize("solution", ["ground_truth_solution", "deepseek_reasoning"])
def test_openthoughts_other_solution_column_is_verified(tmp_path: Path, solution: Any) -> None:
    preparation = run(tmp_path, FAST, solution=solution)
    assert preparation.dropped["wrong"] == 2
    known = {line["problem"]: line[solution] for line in GOOD}
    for line in rows_of(tmp_path / "out.jsonl"):
        assert line["answer"] <= "2" or line["solution"] == known[line["problem"]]


def test_openthoughts_sample_depends_only_on_seed_and_problems(tmp_path: Path) -> None:
    run(tmp_path, FAST, sample=7)
    first = (tmp_path / "out.jsonl").read_bytes()
    assert len(rows_of(tmp_path / "out.jsonl")) == 7
    for seed in range(3):
        folder = tmp_path / str(seed)
        shuffled = random.Random(seed).sample(FAST, len(FAST))
        run(folder, shuffled, sample=7, workers=1 + seed)
        assert (folder / "out.jsonl").read_bytes() == first


def test_openthoughts_smaller_sample_is_prefix_and_uniform(tmp_path: Path) -> None:
    run(tmp_path, FAST, sample=12)
    larger = rows_of(tmp_path / "out.jsonl")
    run(tmp_path, FAST, sample=5)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(openthoughts, "CHUNK", 4)
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
        run(tmp_path, FAST, sample=9, source=source, display=Display())
    assert "12 rows are decided and stored; the same command" in capsys.readouterr().out
    assert not (tmp_path / "out.jsonl").exists()
    decided = tmp_path / DECISIONS
    decided.write_bytes(decided.read_bytes()[:-10])  # the machine stopped within a line
    stop = -1
    assert run(tmp_path, FAST, sample=9, source=source) == expected
    for name in ("out.jsonl", "out.contaminated.jsonl", "out.report.json", DECISIONS):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    chunks = 3 + -(-(len(FAST) - 11) // 4)  # of the 12 rows of three chunks, 11 had whole lines
    assert len(verified) == chunks
    run(tmp_path, FAST, sample=5, source=source)
    assert len(verified) == chunks  # another sample verifies nothing


@pytest.mark.parametrize("length", [0, 10])
def test_openthoughts_stopped_before_first_decision_restarts(tmp_path: Path, length: int) -> None:
    run(tmp_path, GOOD)
    decided = tmp_path / DECISIONS
    decided.with_name("SHA256SUMS").unlink()
    decided.write_bytes(decided.read_bytes()[:length])
    assert run(tmp_path, GOOD).kept == 20


@pytest.mark.parametrize("place", [0, 5, -1])
def test_openthoughts_unreadable_decisions_are_refused(tmp_path: Path, place: int) -> None:
    run(tmp_path, GOOD)
    decided = tmp_path / DECISIONS
    lines = decided.read_bytes().splitlines(keepends=True)
    lines[place] = b"\0" * 9 + b"\n"
    decided.write_bytes(b"".join(lines))
    before = written(tmp_path)
    with pytest.raises(CorruptFileError, match=r"decisions\.jsonl is not the file .*; delete "):
        run(tmp_path, GOOD)
    assert written(tmp_path) == before
    decided.with_name("SHA256SUMS").unlink()  # as before the last decision
    with pytest.raises(CorruptFileError, match=r"decisions\.jsonl line \d+: .*; delete "):
        run(tmp_path, GOOD)


def test_openthoughts_changed_output_is_refused_while_report_exists(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    out, report = tmp_path / "out.jsonl", tmp_path / "out.report.json"
    data, before = DataConfig(path=str(out)), out.read_bytes()
    assert len(read_problems(data).problems) == 20

    out.write_bytes(before.replace(b"$4+1$", b"$4+2$"))
    with pytest.raises(DataError, match=rf"{out} is not the file that {report} .*delete"):
        read_problems(data)
    moved = report.rename(tmp_path / "kept.json")
    assert any(p.problem == "What is $4+2$?" for p in read_problems(data).problems)

    # A report of another tool says nothing about the file.
    for text in ("{}", "[]", "null", '{"rows": 20}'):
        report.write_text(text)
        assert len(read_problems(data).problems) == 20
    for text, message in (
        ("", rf"{report}: .*; delete it to use {out} as"),
        ("{", rf"{report}: .*; delete it to use {out} as"),
        ('{"sha256": "0"}', rf"{out} is not the file that {report} describes"),
    ):
        report.write_text(text)
        with pytest.raises(DataError, match=message):
            read_problems(data)
    out.write_bytes(before)
    moved.rename(report)
    run(tmp_path, GOOD, sample=3)
    assert len(read_problems(data).problems) == 3


def test_openthoughts_output_is_locked_by_one_process(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    before = written(tmp_path)
    with lock_folder(tmp_path, ".out.jsonl.lock"):
        with pytest.raises(FolderInUse):
            run(tmp_path, GOOD)
        run(tmp_path, GOOD, out=tmp_path / "other.jsonl")
    assert written(tmp_path) == before


def test_openthoughts_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: File exists"):
        make_training_data(tmp_path / "file/out.jsonl", benchmarks=[])


def test_openthoughts_decisions_with_other_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    with pytest.raises(DataError, match=r"(?s)out\.decided holds decisions.*ngram: .*benchmarks: "):
        run(tmp_path, GOOD, ngram=8, benchmarks=[load_benchmark("demo", limit=3)])
    assert run(tmp_path, GOOD).kept == 20
    # Where nothing was decided, settings may still change.
    new = {"out": tmp_path / "new.jsonl"}
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        run(tmp_path, GOOD, source="nowhere.jsonl", **new)
    assert run(tmp_path, GOOD, **new).kept == 20
    with pytest.raises(DataError, match=r"\.jsonl"):
        make_training_data(tmp_path / "out", benchmarks=[])


def test_openthoughts_changed_source_is_refused(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    before = (tmp_path / "out.jsonl").read_bytes()
    for rows in (GOOD[:-1], [*GOOD, row(30)]):
        with pytest.raises(DataError, match=r"out\.decided holds decisions.*\n  source_sha256: "):
            run(tmp_path, rows)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    # Decisions are complete without their source, too.
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.unlink()
    given: Any = {"benchmarks": BENCHMARKS, "deadline": 0.5, "display": Display(enabled=False)}
    again = make_training_data(out, source=str(source), sample=3, **given)
    assert (again.sampled, source.exists()) == (3, False)


def test_print_preparation_has_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_preparation(run(tmp_path, FAST, sample=21), Path("out.jsonl"), Display())
    said = capsys.readouterr().out
    assert f"{len(FAST)} rows, 20 kept, 20 drawn to out.jsonl" in said
    for line in ("2 dropped: not mathematics", "1 repeat a problem of known", "fewer than the 21"):
        assert line in said
    assert "timed out" not in said  # none did
    print_preparation(run(tmp_path / "new", GOOD, benchmarks=[]), Path("out.jsonl"), Display())
    assert "contamination was not checked" in capsys.readouterr().out


def test_openthoughts_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    for writes in ("append_jsonl", "write_atomic"):
        with monkeypatch.context() as patched:
            patched.setattr(f"paint.core.storage.{writes}", fail)
            with pytest.raises(DataError, match="No space left"):
                run(tmp_path, GOOD)
    assert run(tmp_path, GOOD).kept == 20


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
    path.write_text(path.read_text() + "{\n" + json.dumps(row(9, problem="\ud800")) + "\n")
    preparation = run(tmp_path, [], source=str(path))
    dropped = preparation.dropped
    assert (preparation.kept, dropped["row cannot be read"], dropped["no problem"]) == (3, 1, 1)
