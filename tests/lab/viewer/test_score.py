"""What scoring again finds: the reference's values, the likeliest tokens, the very student."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paint.lab.viewer.run
from conftest import SHOWN
from paint.config.run_folder import RunError, read_run, read_run_json
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.core.storage import CorruptFileError, read_json, write_json
from paint.data.problems import Problem
from paint.inference.rollouts import read_rollout
from paint.lab.viewer.run import PageSpec, choose, run_data, spread
from paint.lab.viewer.score import Scorer
from paint.resolve.check import read_resolved
from paint.training.token_log import read_tokens, tokens_path
from runs import Once, changed, stored, train


def test_scorer_uses_checkpoint_before_step(run: Path) -> None:
    """Checkpoints are after steps 2 and 3: steps 1 and 3 have their very student."""
    scorer = Scorer(
        run, read_resolved(read_run(run), read_run_json(run)["needs"]), Display(enabled=False)
    )
    assert [scorer.become_student(step) for step in (3, 1, 2)] == [2, 0, 0]
    for step, bound in ((3, 1e-5), (1, 1e-5), (2, None)):
        scorer.become_student(step)
        kept = read_tokens(tokens_path(run, step))
        row = stored(run, step)[0]
        rollout = read_rollout(
            row, Problem(row["problem"], "", row["answer"], row["problem_id"]), 0
        )
        found = scorer.score(rollout, [row["teacher_prompt_ids"]]).values
        moved = np.abs(found["student_log_prob"] - kept[0]["student_log_prob"]).max()
        if bound is None:
            assert moved > 1e-5
            continue
        for name in ("loss", "kl", "student_entropy", "teacher_log_prob", "unclipped_mass"):
            np.testing.assert_allclose(found[name], kept[0][name], atol=1e-5, err_msg=name)
        assert found["selected"].tolist() == kept[0]["selected"].tolist()


def test_run_data_names_student_and_exactness(run: Path) -> None:
    data = run_data(run, PageSpec(), Display(enabled=False))
    students = [(step["step"], step["student"], step["is_exact"]) for step in data["steps"]]
    assert students == [(1, 0, True), (2, 0, False), (3, 2, True)]
    assert all(row["is_kept"] and row["moved"] >= 0 for s in data["steps"] for row in s["rows"])
    every = run_data(run, PageSpec(steps=[2]), Display(enabled=False))
    assert [row["is_kept"] for row in every["steps"][0]["rows"]] == [True] * 4 + [False] * 2
    alone = run_data(run, PageSpec(again=False), Display(enabled=False))
    assert not any("entries" in row for step in alone["steps"] for row in step["rows"])


@pytest.mark.slow
def test_run_data_of_conversations_is_scored_turn_by_turn(tmp_path: Path) -> None:
    short: dict[str, dict[str, Any]] = {
        "train": {"steps": 1, "checkpoint_every": 1},
        "validation": {"path": ""},
    }
    conversation = {"conversation": {"environment": spec_of(Once)}}
    train(changed("demo-paint", SHOWN, short, conversation), tmp_path)
    wanted = PageSpec(contexts=("solution", "none"))
    rows = run_data(tmp_path, wanted, Display(enabled=False))["steps"][0]["rows"]
    assert 2 in [len(row["conversation"]["turns"]) for row in stored(tmp_path)]
    for row in rows:
        assert row["moved"] < 1e-4
        assert row["contexts"]["solution"]["is_the_runs"]


@pytest.mark.slow
def test_run_data_of_tools_needs_none_of_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short: dict[str, dict[str, Any]] = {
        "train": {"steps": 1, "checkpoint_every": 1},
        "validation": {"path": ""},
        "conversation": {"tools": ("extensions.calculator:calculate",)},
    }
    train(changed("demo-paint", SHOWN, short), tmp_path)
    moved = read_json(tmp_path / "run.json", "")
    moved["config"]["conversation"]["tools"] = ["nowhere:calculate"]
    write_json(tmp_path / "run.json", moved)
    wanted = PageSpec(contexts=("solution",))
    rows = run_data(tmp_path, wanted, Display(enabled=False))["steps"][0]["rows"]
    assert all(row["contexts"]["solution"]["is_the_runs"] for row in rows)


def test_run_data_contexts_match_training(run: Path) -> None:
    wanted = PageSpec(steps=[1], row=1, contexts=("solution", "none", "other", "wrong_answer"))
    data = run_data(run, wanted, Display(enabled=False))
    [row] = data["steps"][0]["rows"]
    contexts = row["contexts"]
    assert contexts["solution"]["is_the_runs"]
    assert contexts["solution"]["context"] == stored(run)[1]["context"]
    assert contexts["none"]["context"] is None
    assert contexts["other"]["context"] not in (None, contexts["solution"]["context"])
    assert stored(run)[1]["answer"] not in contexts["wrong_answer"]["context"].split("{")[1]


def test_run_data_feedback_is_the_reason_of_what_is_not_right(run: Path) -> None:
    wanted = PageSpec(steps=[1], contexts=("feedback",))
    rows = run_data(run, wanted, Display(enabled=False))["steps"][0]["rows"]
    shown = {row["row"]: row["contexts"].get("feedback") for row in rows}
    for number, row in enumerate(stored(run)):
        if row["correct"]:
            assert shown[number] is None or shown[number]["context"] is None
        else:
            assert shown[number]["context"] == row["reason"]


def test_choose_missing_steps_and_rows_are_refused(run: Path) -> None:
    config = read_run(run)
    with pytest.raises(RunError, match=r"step 9.*1 to 3"):
        choose(run, config, PageSpec(steps=[9]))
    with pytest.raises(RunError, match="no row 6"):
        choose(run, config, PageSpec(steps=[1], row=6))


@pytest.fixture
def long_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that is long: steps 1 and 3 fit on a page."""
    copy = tmp_path / "long"
    shutil.copytree(run, copy)
    tokens = [sum(len(row["completion_ids"]) for row in stored(run, step)[:4]) for step in (1, 3)]
    monkeypatch.setattr(paint.lab.viewer.run, "MOST_TOKENS", sum(tokens))
    return copy


def test_choose_reads_no_rows_after_the_shown_ones(long_run: Path) -> None:
    path = long_run / "rollouts/step-000001.jsonl"
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:4], "{", *lines[5:], ""]), "utf-8")
    config = read_run(long_run)
    assert [row["row"] for row in choose(long_run, config, PageSpec())[1]] == [0, 1, 2, 3]
    with pytest.raises(CorruptFileError, match="line 5"):
        choose(long_run, config, PageSpec(steps=[1]))


@pytest.mark.parametrize(("tokens", "wanted"), [(100, 10), (32 * 1024 // 4, 4), (10**6, 1)])
def test_spread_selects_steps_over_run(tokens: int, wanted: int) -> None:
    steps = list(range(1, 11))
    chosen = spread(steps, dict.fromkeys(steps, tokens), 32 * 1024)
    assert len(chosen) == wanted
    assert chosen[-1] == 10
    assert wanted == 1 or chosen[0] == 1
