"""Advice before training: slopes, places, resumption, and when there is none."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import move
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.storage import CorruptFileError
from paint.data.contexts import Contexts
from paint.data.problems import Problem
from paint.evaluation.intervals import Interval
from paint.experiments.advise import (
    Figures,
    advise,
    advise_on,
    context_options,
    figures_of,
    overlap_auc,
)
from paint.experiments.rollout_bank import (
    Bank,
    Marks,
    answer_is_visible,
    held_out_kl,
    marks_of,
    score,
    summary_of,
)
from paint.grading.base import Grade
from paint.inference.engine import Completion
from paint.models.policy import Policy
from paint.objective.solution import KINDS
from paint.training.rollouts import Rollout
from paint.viewer.show import tables_data
from runs import changed, rows_of

THINK = {"teacher_thinking": True}
DEMO = changed("demo-paint", {"rollout": {"max_new_tokens": 60}})


def advised(folder: Path, config: Config = DEMO, **options: Any) -> dict[str, Any]:
    few: dict[str, Any] = {"problems": 4, "samples": 2, "sources": ("solution", "other")}
    return advise(config, folder, **few | {"ratios": (0.0,)} | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Advice of four problems, with the teacher's answers, which was begun with fewer."""
    folder = tmp_path_factory.mktemp("advice")
    advised(folder, problems=1, answers=True)
    for each in (folder, folder / "answers"):
        (each / "SHA256SUMS").unlink()  # as a kill leaves it, with a line that is cut
        with (each / "rollouts.jsonl").open("a") as file:
            file.write('{"problem_id": "cut')
    advised(folder, problems=4, answers=True)
    return folder


@pytest.mark.slow
def test_advise_on_demo_shows_the_whole_solution(tmp_path: Path) -> None:
    summary = advised(tmp_path, problems=40, samples=4, answers=True)
    slopes = {name: found["slope"]["mean"] for name, found in summary["contexts"].items()}
    assert slopes["solution@0"] > slopes["recipe"] > slopes["other@0"]
    assert summary["advice"][0].startswith(f"train with {WHOLE}: ")
    gains = {name: found["difference"] for name, found in summary["answers"].items()}
    assert gains["solution@0"]["mean"] > gains["recipe"]["mean"] > gains["other@0"]["mean"]
    assert gains["solution@0"]["low"] > 0.2
    visible = {name: found["visible"] for name, found in summary["contexts"].items()}
    assert visible["solution@0"] == 1 > visible["recipe"]


def test_advise_summary_has_every_context(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["contexts"]) == ["recipe", "solution@0", "other@0"]
    masked = {name: found["masked"] for name, found in summary["contexts"].items()}
    assert masked["solution@0"] == 0 < masked["recipe"]
    for figures in summary["contexts"].values():
        assert sum(figures["kinds"]) == pytest.approx(1)
        assert sum(figures["tenths"]) == pytest.approx(1)


def test_advise_page_draws_the_slopes_of_summary(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    [report] = tables_data([folder])["reports"]
    slopes = report["charts"][0]["rows"]
    assert slopes == {name: found["slope"] for name, found in summary["contexts"].items()}
    assert report["lines"] == summary["advice"]


def test_advise_both_modes_adds_figures_of_the_other_mode(folder: Path, tmp_path: Path) -> None:
    for name in ("both", "other"):
        shutil.copytree(folder, tmp_path / name)
    both = advised(tmp_path / "both", both_modes=True)["contexts"]
    thinking = changed("demo-paint", {"rollout": {"max_new_tokens": 60}}, {"model": THINK})
    other = advised(tmp_path / "other", config=thinking)["contexts"]
    assert list(both) == [*other, *(f"{name} (thinking)" for name in other)]
    for name, found in other.items():
        assert both[f"{name} (thinking)"] == found != both[name]


def test_advise_interrupted_goes_on_with_stored_rollouts(folder: Path) -> None:
    rows = rows_of(folder / "rollouts.jsonl")
    assert len({(row["problem_id"], row["sample"]) for row in rows}) == len(rows) == 8
    rows = rows_of(folder / "answers/rollouts.jsonl")
    keys = {(row["context"], row["problem_id"], row["sample"]) for row in rows}
    assert len(keys) == len(rows) == 3 * 8


def test_advise_answers_are_of_the_prompts_that_training_shows(
    folder: Path, policy: Policy, problems: list[Problem]
) -> None:
    by_id, accuracy = {p.id: p for p in problems}, dict[str, list[float]]()
    for row in rows_of(folder / "answers/rollouts.jsonl"):
        problem = by_id[row["problem_id"]]
        if row["context"] == "solution@0":
            whole = policy.teacher_prompt(problem, problem.solution, complete=True)
            assert row["prompt_ids"] == whole
        is_right = f"\\boxed{{{problem.answer}}}" in policy.decode(row["completion_ids"])
        accuracy.setdefault(row["context"], []).append(is_right)
    summary = json.loads((folder / "summary.json").read_text())
    for name, found in summary["answers"].items():
        assert found["avg_at_k"]["mean"] == pytest.approx(np.mean(accuracy[name]))
        gain = found["avg_at_k"]["mean"] - summary["facts"]["accuracy"]["mean"]
        assert found["difference"]["mean"] == pytest.approx(gain)


def test_advise_changed_rollouts_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "changed")
    path = tmp_path / "changed/rollouts.jsonl"
    path.write_text(path.read_text().replace('"truncated": false', '"truncated": true', 1))
    with pytest.raises(CorruptFileError, match="advise again"):
        advised(tmp_path / "changed", problems=4)


def test_advise_other_sampling_in_folder_is_refused(folder: Path) -> None:
    other = DEMO.changed("rollout", temperature=0.7)
    with pytest.raises(
        ConfigError, match=r"(?s)other settings:\n  temperature: 1\.1 -> 0\.7\n.*--output-dir"
    ):
        advise(other, folder, problems=2, samples=2, sources=("solution",), ratios=(0.0,))


def test_advise_on_stored_rollouts_finds_the_same(folder: Path, tmp_path: Path) -> None:
    stored = {"engine": "stored", "stored": str(folder / "rollouts.jsonl")}
    config = changed("demo-paint", {"rollout": {"max_new_tokens": 60, **stored}})
    summary = advise(config, tmp_path, problems=4, samples=2, sources=("solution",), ratios=(0.0,))
    before = json.loads((folder / "summary.json").read_text())["contexts"]["solution@0"]
    for name, interval in summary["contexts"]["solution@0"].items():
        assert interval == pytest.approx(before[name])
    with pytest.raises(ConfigError, match="leave out --answers"):
        advised(tmp_path, config, answers=True)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"problems": 0}, "problems must be at least 1"),
        ({"samples": 1}, "samples must be at least 2"),
        ({"ratios": (0.5, 0.5)}, "distinct"),
        ({"ratios": (1.0,)}, r"in \[0, 1\)"),
        ({"ratios": ()}, r"at least one, got \[\]"),
        ({"sources": ("other", "other")}, "each once"),
        ({"sources": ()}, r"got \[\]"),
        ({"config": changed("demo-paint", {"data": {"path": ""}})}, "data.path is not set"),
        ({"config": changed("demo-paint", {"train": {"method": "sft"}})}, '"sft" has no teacher'),
    ],
)
def test_advise_bad_option_is_refused(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        advised(tmp_path, **options)


def test_context_options_have_every_ratio_of_sources_that_are_masked() -> None:
    options = context_options(DEMO.context, ("solution", "none", "answer"), (0.0, 0.25))
    assert list(options) == ["recipe", "solution@0", "solution@0.25", "none", "answer"]
    quarter = options["solution@0.25"]
    assert (quarter.mask_ratio_wrong, quarter.mask_ratio_correct) == (0.25, 0.25)
    assert (options["answer"].source, options["answer"].mask_ratio_wrong) == (("answer",), 0.0)


def rollout(policy: Policy, problem: Problem, text: str, reward: float, row: int = 0) -> Rollout:
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    completion = Completion(tuple(ids), (0.0,) * len(ids), False)
    return Rollout(row, problem, [1], completion, text, grade=Grade(reward, ""))


def test_marks_of_wrong_rollout_force_right_answer(policy: Policy, problems: list[Problem]) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3$. \\boxed{3}", answer="3")
    text = "$1+2 \\equiv 4$. Then $4+4 \\equiv 8$. The answer is $\\boxed{8}$."
    marks = marks_of(policy, rollout(policy, problem, text, 0.0))
    assert policy.decode(marks.forced) == text.replace("\\boxed{8}$.", "\\boxed{3}")
    assert policy.decode(marks.forced[-marks.answer_tokens :]).endswith("3}")
    assert not marks_of(policy, rollout(policy, problem, text, 1.0)).forced
    assert not marks_of(policy, rollout(policy, problem, "no box", 0.0)).forced


def test_marks_of_departure_is_first_statement_that_solution_lacks(
    policy: Policy, problems: list[Problem]
) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3+5 \\equiv 8$.")
    text = "$1+2 \\equiv 3+6 \\equiv 9$."
    row = rollout(policy, problem, text, 0.0)
    marks = marks_of(policy, row)
    assert "3+6" in policy.decode(row.completion.ids[: marks.departure])
    assert "3+6" not in policy.decode(row.completion.ids[: marks.departure - 1])
    whole = rollout(policy, problem, problem.solution, 1.0)
    assert marks_of(policy, whole).departure == len(whole.completion.ids)


def test_score_leak_is_probability_of_right_box(policy: Policy, problems: list[Problem]) -> None:
    problem = replace(problems[0], answer="37")
    prompt = policy.student_prompt(problem)
    row = replace(rollout(policy, problem, "The answer is $\\boxed{48}$.", 0.0), prompt=prompt)
    context = Contexts(replace(DEMO.context, source=("none",)), problems)
    bank = Bank([row, replace(row, row=1, grade=Grade(1.0))], 2)
    found = score(policy, DEMO, bank, {"none": context}, Display(enabled=False))["none"]

    marks = marks_of(policy, row)
    with torch.no_grad():
        logits = policy.base(torch.tensor([[*prompt, *marks.forced]])).logits[0]
    last = torch.arange(-marks.answer_tokens, 0)
    log_probs = logits[last - 1].log_softmax(-1)
    answer = torch.tensor(marks.forced[-marks.answer_tokens :])
    expected = log_probs.gather(1, answer[:, None]).sum().exp()
    assert found[0]["leak"] == pytest.approx(float(expected), rel=1e-4)
    assert found[1]["leak"] is None  # it is right
    assert found[0]["pull"] == pytest.approx(0, abs=1e-4)  # the teacher reads the same prompt


def test_held_out_kl_is_mean_over_tokens_of_teacher_and_student(
    policy: Policy, problems: list[Problem]
) -> None:
    move(policy)
    context = replace(DEMO.context, mask_ratio_wrong=0.0, mask_ratio_correct=0.0)
    rows: list[Rollout] = []
    expected, tokens = 0.0, 0
    for problem in problems[:2]:
        row = rollout(policy, problem, problem.solution, 0.0)
        rows.append(replace(row, row=len(rows), prompt=policy.student_prompt(problem)))
        shown = policy.teacher_prompt(problem, problem.solution, complete=True)
        ids, views = row.completion.ids, []
        for prompt, adapter in ((shown, policy.model.disable_adapter()), (rows[-1].prompt, None)):
            with torch.no_grad(), adapter or nullcontext():
                logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0]
            views.append(logits[len(prompt) - 1 : -1].log_softmax(-1))
        expected += float((views[0].exp() * (views[0] - views[1])).sum())
        tokens += len(ids)
    found = held_out_kl(policy, replace(DEMO, context=context), Bank(rows, 1))
    assert found == pytest.approx(expected / tokens, rel=1e-4)
    assert found > 0.01


def test_summary_of_rollout_is_that_of_its_tokens() -> None:
    terms = {
        "kl": np.array([0.5, 0.25, 1.0, 0.0]),
        "teacher_entropy": np.array([1.0, 1.0, 2.0, 3.0]),
        "student_entropy": np.array([1.5, 1.0, 1.0, 1.0]),
        "pull": np.array([1.0, -2.0, 0.5, 0.25]),
        "unclipped_mass": np.array([1.0, 0.5, 0.5, 1.0]),
        "clipped": np.array([0.0, 1.0, 1.0, 0.0]),
        "slope": np.array([-1.0, -1.0, 0.5, 0.5]),
    }
    kinds = np.array([KINDS.index(kind) for kind in ("number", "style", "number", "answer")])
    found = summary_of(terms, Marks(kinds, departure=2))
    by_kind = dict.fromkeys(KINDS, 0.0) | {"number": 1.5, "style": 0.25}
    assert dict(zip(KINDS, found.pop("kinds"), strict=True)) == by_kind
    assert found.pop("tenths") == [0.5, 0.25, 1.0, 0.0, *[0.0] * 6]
    sums = {"tokens": 4, "kl": 1.75, "first_kl": 0.5, "pull": -0.25, "entropy_gap": 2.5}
    sums |= {"unclipped_mass": 3.0, "clipped": 2.0, "raised": 0.5, "confusion": 1.5}
    assert found == sums
    assert summary_of(terms, Marks(kinds, departure=4))["confusion"] is None


def test_answer_is_visible_in_any_spelling_as_whole_number() -> None:
    def seen(answer: str, context: str, boxed: bool = True) -> bool:
        solution, gold = (rf"$\boxed{{{answer}}}$.", "99") if boxed else ("So it is.", answer)
        return answer_is_visible(Problem("?", solution, gold, "1"), context)

    assert seen("12", "we get $x = 12$ ...(omitted)...")
    assert not seen("12", "we get $x = 312$, or 12.5 ...(omitted)...")
    assert seen(r"\dfrac{1}{2}", "a half, that is 1/2 ...(omitted)...")
    assert not seen(r"\dfrac{1}{2}", "a half ...(omitted)...")
    assert seen("12", "x = 12", boxed=False)
    assert not seen("12", "x = 99")  # what the solution boxes, where it boxes something


def test_figures_of_scores_slope_is_covariance_of_reward_and_pull() -> None:
    pulls = np.array([[1.0, 3.0, -2.0], [0.5, 0.5, 0.5]])
    rewards = np.array([[1.0, 0, 0], [1, 1, 0]])
    ones = "kl first_kl entropy_gap unclipped_mass clipped raised mask_ratio visible leak"
    same = dict.fromkeys(ones.split(), 1.0) | {"tokens": 2, "confusion": None, "kinds": [1] * 5}
    scores = [
        same | {"tenths": [0.1] * 10, "pull": pull, "mask_ratio": 0.3 + i / 100}
        for i, pull in enumerate(pulls.flatten())
    ]
    figures = figures_of(scores, rewards)
    expected = [np.cov(pulls[0], rewards[0])[0, 1], 0.0]
    np.testing.assert_allclose(figures.slope, expected, atol=1e-12)
    np.testing.assert_allclose(figures.kl, 0.5)
    np.testing.assert_allclose(figures.first_kl, 1.0)
    np.testing.assert_allclose(figures.kinds, 1.0)
    assert figures.masked == pytest.approx(0.325)
    np.testing.assert_allclose(figures.masked_spread, [0.3025, 0.3475])
    assert len(figures.confusion) == 0


def test_overlap_auc_counts_pairs_within_problem(policy: Policy, problems: list[Problem]) -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    rows = [rollout(policy, problems[0], "1", reward, i) for i, reward in enumerate(rewards)]
    overlaps = np.array([[0.5, 0.5, 0.1], [0.2, 0.3, 0.4]])
    assert overlap_auc(Bank(rows, 3), overlaps).tolist() == [0.75]


def of_slope(slope: float, **changes: Any) -> Figures:
    """What 40 problems say that nearly agree."""
    noise = np.random.default_rng(int(1000 * slope)).uniform(-0.01, 0.01, 40)
    values: dict[str, Any] = {"slope": slope + noise, "kl": noise + 1, "first_kl": noise + 1}
    values |= {"entropy_gap": noise, "confusion": noise, "kinds": np.zeros(5)}
    shares = {"clipped": 0.1, "unclipped_mass": 0.99, "raised": 0.5, "leak": 0.01}
    values |= {name: np.full(40, share) for name, share in shares.items()}
    values |= {"masked": 0.3, "masked_spread": np.full(2, 0.3), "visible": 0.0}
    return Figures(**values | {"tenths": np.zeros(10)} | changes)


FACTS = {"both": Interval(0.5, 0.4, 0.6), "truncated": Interval(0.0, 0.0, 0.1)}
WHOLE = "--context.source solution --context.mask-ratio-wrong 0 --context.mask-ratio-correct 0"
OWN = "the recipe's own context"


@pytest.mark.parametrize(
    ("facts", "slopes", "expected"),
    [
        ({}, {"recipe": 0.3, "solution@0": 0.5}, [WHOLE, "less the recipe's is +20"]),
        ({}, {"recipe": 0.3, "solution@0 (thinking)": 0.5}, [f"{WHOLE} --model.teacher", "is +20"]),
        ({}, {"recipe": 0.3, "solution@0": 0.29}, [OWN]),
        ({}, {"recipe": 0.3, "solution@0": 0.301}, [OWN, "0 in its interval"]),
        ({}, {"recipe": 0.3, "other@0": 0.1}, [OWN, "is content"]),
        ({}, {"recipe": 0.3, "other@0 (no thinking)": 0.1}, [OWN, "is content"]),
        ({}, {"recipe": 0.3, "other@0": 0.299}, [OWN, "not the content"]),
        ({}, {"recipe": 0.3, "other_notes@0": 0.5}, ["--context.source other_notes", "is +20"]),
        ({}, {"recipe": 0.0, "other@0": 0.9}, ["no advice"]),
        ({"both": Interval(0.05, 0.0, 0.1)}, {"recipe": 0.3}, ["no advice"]),  # 2 of 40
        ({"truncated": Interval(0.6, 0.5, 0.7)}, {"recipe": 0.3}, ["max_new_tokens", OWN]),
    ],
)
def test_advise_on_recommends_only_what_intervals_tell(
    facts: dict[str, Interval], slopes: dict[str, float], expected: list[str]
) -> None:
    lines = advise_on(FACTS | facts, {name: of_slope(slope) for name, slope in slopes.items()})
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_advise_on_small_share_of_many_problems_is_enough() -> None:
    facts = FACTS | {"both": Interval(0.08, 0.06, 0.1)}
    few = of_slope(0.3)
    [line] = advise_on(facts, {"recipe": replace(few, slope=np.tile(few.slope, 10))})  # 32 of 400
    assert OWN in line


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"unclipped_mass": np.full(40, 0.4)}, "objective.clip"),
        ({"leak": np.full(40, 0.8)}, "it copies"),
        ({"confusion": np.linspace(0.19, 0.21, 40)}, "mask more"),
    ],
)
def test_advise_on_names_setting_that_answers_risk(changes: dict[str, Any], expected: str) -> None:
    [_, line] = advise_on(FACTS, {"recipe": of_slope(0.3, **changes)})
    assert expected in line
