"""What scoring again finds: the reference's values, the likeliest tokens, the very student."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paint.config.run_folder import RunError, read_run
from paint.core.display import Display
from paint.objective.loss import paint_loss
from paint.objective.options import ObjectiveConfig
from paint.training.token_log import read_tokens, tokens_path
from paint.viewer import score
from paint.viewer.run import PageSpec, choose, run_data, spread
from paint.viewer.score import Scorer, detail
from runs import stored


def heads(vocabulary: int, hidden: int) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    made = [nn.Linear(hidden, vocabulary, bias=False).double() for _ in range(2)]
    return made[0], made[1]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"divergence": "reverse_kl"},
    {"divergence": "jsd", "clip": 0.01},
    {"clip_mode": "token"},
    {"clip_mode": "none", "top_fraction": 0.5, "interpolation_weight": 0.5},
    {"divergence": "sampled_token", "clip_mode": "none"},
    {"skip_tokens": 5, "top_fraction": 0.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunk", [10**9, 7 * 50])
def test_detail_values_and_gradients_match_complete_loss(
    options: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the chunks: also the selection, which is a rank over the whole completion."""
    monkeypatch.setattr(score, "CHUNK_LOGITS", chunk)
    student_head, teacher_head = heads(50, 8)
    torch.manual_seed(1)
    student, teacher = torch.randn(2, 40, 8, dtype=torch.float64) * 2
    tokens = torch.randint(50, (40,))
    settings = ObjectiveConfig(temperature=1.1, **options)
    found = detail(student, teacher, (student_head, teacher_head), tokens, settings)

    logits = student_head(student).detach().requires_grad_()
    whole = dict(options, skip_tokens=options.get("skip_tokens", 0))
    loss = paint_loss(logits, teacher_head(teacher).detach(), [40], tokens=tokens, **whole)
    for name, value in {"loss": loss.per_token, **loss.stats}.items():
        np.testing.assert_allclose(found.values[name], value.detach(), rtol=1e-5, atol=1e-6)
    loss.value.backward()
    assert logits.grad is not None
    slope = logits.grad.gather(1, tokens[:, None])[:, 0] * (40 - whole["skip_tokens"])
    weighed = slice(whole["skip_tokens"], None)  # the others are looked at, too, and weigh nothing
    np.testing.assert_allclose(found.values["slope"][weighed], slope[weighed], atol=1e-6)


def test_detail_includes_likeliest_tokens_of_all_distributions() -> None:
    student_head, teacher_head = heads(50, 8)
    student, teacher = torch.randn(2, 30, 8, dtype=torch.float64)
    tokens = torch.randint(50, (30,))
    options = ObjectiveConfig(temperature=0.9, top_fraction=0.3, interpolation_weight=0.4)
    found = detail(student, teacher, (student_head, teacher_head), tokens, options)
    log_q = (student_head(student) / 0.9).log_softmax(-1)
    log_p = (teacher_head(teacher) / 0.9).log_softmax(-1)
    mixed = (0.6 * log_p + 0.4 * log_q).log_softmax(-1)
    selected = torch.tensor(found.values["selected"])[:, None] > 0
    views = {"student": log_q, "teacher": log_p, "target": torch.where(selected, mixed, log_p)}
    for i in range(30):
        part = slice(found.edges[i], found.edges[i + 1])
        entries = found.entries[part].tolist()
        assert entries[0] == tokens[i]
        assert len(set(entries)) == len(entries)
        for name, view in views.items():
            assert set(view[i].topk(5).indices.tolist()) <= set(entries)
            wanted = view[i, entries].detach()
            np.testing.assert_allclose(found.log_probs[name][part], wanted, atol=1e-5)


def test_scorer_uses_checkpoint_before_step(run: Path) -> None:
    """Checkpoints are after steps 2 and 3: steps 1 and 3 have their very student."""
    scorer = Scorer(run, read_run(run), Display(enabled=False))
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
