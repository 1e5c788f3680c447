"""What scoring again finds: the reference's values, the likeliest tokens, the very student."""

from pathlib import Path

import numpy as np
import pytest

from paint.config.run_folder import RunError, read_run
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.training.check import read_resolved
from paint.training.token_log import read_tokens, tokens_path
from paint.viewer.run import PageSpec, choose, run_data, spread
from paint.viewer.score import Scorer
from runs import stored


def test_scorer_uses_checkpoint_before_step(run: Path) -> None:
    """Checkpoints are after steps 2 and 3: steps 1 and 3 have their very student."""
    scorer = Scorer(run, read_resolved(read_run(run), None), Display(enabled=False))
    assert [scorer.become_student(step) for step in (3, 1, 2)] == [2, 0, 0]
    for step, bound in ((3, 1e-5), (1, 1e-5), (2, None)):
        scorer.become_student(step)
        kept = read_tokens(tokens_path(run, step))
        rollout = stored(run, step)[0]
        found = scorer.score(rollout, rollout["teacher_prompt_ids"]).values
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


def test_run_data_feedback_of_a_run_without_any_is_refused(run: Path) -> None:
    wanted = PageSpec(steps=[1], contexts=("feedback",))
    with pytest.raises(ConfigError, match="no reason and no feedback"):
        run_data(run, wanted, Display(enabled=False))


def test_choose_missing_steps_and_rows_are_refused(run: Path) -> None:
    config = read_run(run)
    with pytest.raises(RunError, match=r"step 9.*1 to 3"):
        choose(run, config, PageSpec(steps=[9]))
    with pytest.raises(RunError, match="no row 6"):
        choose(run, config, PageSpec(steps=[1], row=6))


@pytest.mark.parametrize(("tokens", "wanted"), [(100, 10), (32 * 1024 // 4, 4), (10**6, 1)])
def test_spread_selects_steps_over_run(tokens: int, wanted: int) -> None:
    steps = list(range(1, 11))
    chosen = spread(steps, dict.fromkeys(steps, tokens))
    assert len(chosen) == wanted
    assert chosen[-1] == 10
    assert wanted == 1 or chosen[0] == 1
