"""Manual verdicts: each is applied and counted, or rejected with its file, line and value."""

import json
from pathlib import Path
from typing import Any

import pytest

from paint.cli import main
from paint.data.problems import Problem
from paint.data.readers import DataError
from paint.evaluation.overrides import manual_labels
from paint.models.policy import Policy
from runs import evaluated, rows_of, write_problems

PROBLEMS = [Problem("p", "", "1", "7"), Problem("q", "", "2", "8")]
GIVEN = {"problem": "7", "sample": 1, "verdict": "right", "reason": "gold lacks its unit"}


def write(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "verdicts.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def evaluation(policy: Policy, folder: Path, *policies: str) -> Path:
    """Two problems, two samples each: the first of each is right."""
    texts = {(p.id, k): rf"\boxed{{{p.answer}{'0' * k}}}" for p in PROBLEMS for k in (0, 1)}
    for name in policies:
        evaluated(policy, folder / name / "mine", PROBLEMS, texts)
    return folder


def summary(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return table


def test_overrides_replace_grades_and_are_counted(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = evaluation(policy, tmp_path / "evals", "base")
    assert main(["grade", str(evals)]) == 0
    assert summary(evals)["figures"]["base"]["mine"]["avg_at_k"]["mean"] == 0.5
    assert summary(evals)["by_hand"] == {"base": {"mine": {}}}
    assert "Manual verdicts" not in capsys.readouterr().out

    other = {"problem": 8, "sample": 1, "verdict": "wrong", "reason": "guessed"}
    path = write(tmp_path, GIVEN, GIVEN, other, "", other | {"sample": 0})
    assert main(["grade", str(evals), "--overrides", str(path)]) == 0
    table = summary(evals)
    row = table["figures"]["base"]["mine"]
    assert (row["avg_at_k"]["mean"], row["lenient_avg_at_k"]["mean"]) == (0.5, 0.5)
    assert row["pass_at_2"]["mean"] == 0.5  # 7 has both now, and 8 none
    assert table["by_hand"]["base"]["mine"] == {
        "gold lacks its unit": {"right": 1, "wrong": 0},
        "guessed": {"right": 0, "wrong": 2},
    }
    assert table["reasons"]["base"]["mine"] == {"right": 2, "wrong": 2}
    said = capsys.readouterr().out
    for text in ("Manual verdicts", "gold lacks its unit", "guessed"):
        assert text in said
        assert text in (evals / "summary.md").read_text()
    assert "| base | mine | 2 | 2 |" in (evals / "summary.md").read_text()
    lines = rows_of(evals / "base/mine/grades.jsonl")
    assert [(line["strict"]["correct"], line.get("by_hand")) for line in lines] == [
        (True, None),
        (True, "gold lacks its unit"),
        (False, "guessed"),
        (False, "guessed"),
    ]
    assert [line["vote"] for line in lines[:2]] == [0, 0]


def test_overrides_apply_to_named_policy_only(policy: Policy, tmp_path: Path) -> None:
    evals = evaluation(policy, tmp_path / "evals", "base", "after")
    path = write(tmp_path, GIVEN | {"policy": "after", "benchmark": "mine"})
    assert main(["grade", str(evals), "--overrides", str(path)]) == 0
    figures = summary(evals)["figures"]
    means = {name: figures[name]["mine"]["avg_at_k"]["mean"] for name in figures}
    assert means == {"base": 0.5, "after": 0.75}


def test_eval_refuses_invalid_overrides_before_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"problem": "1+1?", "answer": "-5", "id": "7"}
    flags = ["--benchmarks", write_problems(tmp_path / "mine.jsonl", [row])]
    flags += ["--samples", "2", "--no-thinking"]
    flags += ["--rollout.max-new-tokens", "8", "--folder", str(tmp_path / "evals")]
    path = write(tmp_path, GIVEN | {"problem": "9"})
    command = ["eval", "demo", *flags, "--overrides", str(path)]
    assert main(command) == 2
    assert f"{path} line 1: no problem has the id '9' in base/mine" in capsys.readouterr().err
    assert not (tmp_path / "evals").exists()
    write(tmp_path, GIVEN)
    assert main(command) == 0
    row = summary(tmp_path / "evals/demo")["figures"]["base"]["mine"]
    assert row["avg_at_k"]["mean"] == 0.5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GIVEN, "{"], "line 2: invalid JSON at column 2"),
        (["[1]"], "line 1: not a JSON object but a list"),
        ([GIVEN | {"verdict": "yes"}], '"verdict" must be "right" or "wrong", got \'yes\''),
        ([GIVEN | {"verdict": True}], '"verdict" must be text, got True'),
        ([GIVEN | {"sample": -1}], '"sample" must be the sample\'s number, from 0, got -1'),
        ([GIVEN | {"sample": 1.0}], '"sample" must be the sample\'s number, from 0, got 1.0'),
        ([GIVEN | {"sample": None}], '"sample" must be a whole number, got None'),
        ([GIVEN | {"reason": " "}], "\"reason\" must be text, got ' '"),
        ([{"problem": "7", "sample": 0, "verdict": "right"}], '"reason" must be text, got nothing'),
        ([GIVEN | {"polcy": "a"}], 'unknown field "polcy"; a line has problem, sample, verdict'),
        ([GIVEN | {"sample": 2}], "problem '7' has samples 0 to 1, got 2"),
        ([GIVEN | {"problem": "07"}], "no problem has the id '07' in a/x, a/y"),
        (
            [GIVEN | {"policy": "b"}],
            "no evaluation of policy 'b' on benchmark 'any'; there are a/x",
        ),
        ([GIVEN], 'problem \'7\', sample 1 is in a/x, a/y; add "policy" and "benchmark"'),
        (
            [GIVEN | {"benchmark": "x"}, GIVEN | {"benchmark": "x", "verdict": "wrong"}],
            "line 2: wrong (gold lacks its unit) on problem '7', sample 1, and right "
            "(gold lacks its unit) in ",
        ),
    ],
)
def test_read_overrides_inapplicable_row_is_refused_with_line(
    tmp_path: Path, lines: list[dict[str, Any] | str], message: str
) -> None:
    path = write(tmp_path, *lines)
    asked = {("a", "x"): (PROBLEMS, 2), ("a", "y"): (PROBLEMS, 2)}
    with pytest.raises(DataError) as caught:
        manual_labels(path, asked)
    assert str(caught.value).startswith(f"{path} line {len(lines)}: ")
    assert message in str(caught.value)


def test_read_overrides_csv_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.csv"
    path.write_text("problem,sample,verdict,reason,policy\n7,1,right,so,\n8,0,wrong, no  box ,a\n")
    [by_hand] = manual_labels(path, {("a", "x"): (PROBLEMS, 2)}).values()
    assert {key: (given.correct, given.reason) for key, given in by_hand.items()} == {
        ("7", 1): (True, "so"),
        ("8", 0): (False, "no box"),
    }


@pytest.mark.parametrize("name", ["gone.jsonl", "owner/name", "."])
def test_read_overrides_missing_file_is_named(name: str) -> None:
    with pytest.raises(DataError, match="--overrides"):
        manual_labels(Path(name), {})
