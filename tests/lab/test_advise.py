"""Advice before training: slopes, places, resumption, and when there is none."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import logits_alone, move
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.data.contexts import Contexts
from paint.data.problems import Problem, read_problems
from paint.evaluation.frame import Report, select_rows
from paint.evaluation.intervals import Interval
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import StoreError
from paint.grading.contract import Grade
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, read_rollout
from paint.lab.advise import (
    ContextMetrics,
    advise,
    advise_on,
    agreed_wrong,
    gap_lines,
    metrics_of,
    student_metrics,
)
from paint.lab.context_scores import (
    GradedRollouts,
    TokenAnnotations,
    annotate,
    divergence_sums,
    rollout_metrics,
    score,
)
from paint.models.policy import Policy
from paint.objective.divergences import FORWARD_KL, REVERSE_KL, Divergence
from paint.resolve.check import check_config
from paint.training.token_log import read_tokens, tokens_path
from reports import of_rewards, report_in, row_of
from runs import Once, Sections, changed, rows_of, stored, train, write_problems

DEMO = changed("demo-paint", {"rollout": {"max_new_tokens": 60}, "data": {"limit": 40}})


ANSWERED = ("recipe", "other", "solution@0", "other@0")
SILENT = Display(enabled=False)


def advised(folder: Path, config: Config = DEMO, **options: Any) -> Report:
    few: dict[str, Any] = {"problems": 4, "samples": 2, "sources": ("solution", "other")}
    run = check_config(config)
    return advise(run, folder, run.needed_fields, **few | {"ratios": (0.0,)} | options)


def means_of(report: Report, metric: str, **columns: Any) -> dict[str, float]:
    """The means of a metric by context."""
    rows = select_rows(report.rows, metric=metric, **columns)
    return {row.policy: row.mean for row in rows if row.policy != "student"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Advice of four problems, with the teacher's answers, which was begun with fewer."""
    folder = tmp_path_factory.mktemp("advice")
    advised(folder, problems=1, answers=True)
    for each in (folder / "student", folder / "answers/other@0"):
        (each / "SHA256SUMS").unlink()  # as a kill leaves it, with a line that is cut
        with (each / "completions.jsonl").open("a") as file:
            file.write('{"problem_id": "cut')
    advised(folder, problems=4, answers=True)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_advise_on_demo_shows_the_whole_solution(tmp_path: Path) -> None:
    config = DEMO.changed("data", limit=100)
    report = advised(tmp_path, config, problems=100, samples=4, answers=True)
    gradients = means_of(report, "accuracy_gradient")
    assert gradients["solution@0"] > gradients["recipe"] > gradients["other@0"]
    assert report.lines[0].startswith("there is something to learn: ")
    assert report.lines[1].startswith(f"train with {WHOLE}: ")
    gains = means_of(report, "avg_at_k", against="student")
    assert gains["solution@0"] > gains["recipe"] > gains["other@0"]
    gain = row_of(report, policy="solution@0", metric="avg_at_k", against="student")
    assert gain.low is not None
    assert gain.low > 0.2


def test_advise_interrupted_goes_on_and_reports_every_context(folder: Path) -> None:
    masked = means_of(report_in(folder), "masked")
    assert list(masked) == ["recipe", "other", "solution@0", "other@0"]
    assert masked["solution@0"] == masked["other@0"] == 0 < masked["recipe"]
    assert masked["other"] > 0  # as the recipe's own is
    for name in ("student", *(f"answers/{context}" for context in ANSWERED)):
        rows = rows_of(folder / name / "completions.jsonl")
        assert len({(row["problem_id"], row["sample"]) for row in rows}) == len(rows) == 8


def test_advise_scores_feedback_and_its_control(tmp_path: Path) -> None:
    rollout = {"max_new_tokens": 60, "temperature": 1.5}
    grading = {"grader": "first_error:grade"}
    config = changed("demo-paint", {"rollout": rollout, "grading": grading, "data": {"limit": 40}})
    report = advised(tmp_path, config, sources=("feedback", "other_feedback"))
    kl = means_of(report, "kl")
    assert set(kl) == {"recipe", "feedback@0", "other_feedback@0"}
    assert min(kl["feedback@0"], kl["other_feedback@0"]) > 0
    gradients = means_of(report, "accuracy_gradient")
    content = means_of(report, "accuracy_gradient", against="other")["feedback@0"]
    difference = gradients["feedback@0"] - gradients["other_feedback@0"]
    assert content == pytest.approx(difference)


def test_advise_answers_are_of_the_prompts_that_training_shows(
    folder: Path, policy: Policy, problems: list[Problem]
) -> None:
    by_id, accuracy = {p.id: p for p in problems}, dict[str, list[float]]()
    for name in ANSWERED:
        for row in rows_of(folder / f"answers/{name}/completions.jsonl"):
            problem = by_id[row["problem_id"]]
            if name == "solution@0":
                whole = policy.teacher_prompt(problem, problem.solution, complete=True)
                assert row["prompt_ids"] == whole
            is_right = f"\\boxed{{{problem.answer}}}" in policy.decode(row["completion_ids"])
            accuracy.setdefault(name, []).append(is_right)
    report = report_in(folder)
    student = row_of(report, policy="student", metric="accuracy").mean
    gains = means_of(report, "avg_at_k", against="student")
    assert gains.keys() == accuracy.keys()
    for name, gain in gains.items():
        mean = row_of(report, policy=name, metric="avg_at_k").mean
        assert mean == pytest.approx(np.mean(accuracy[name]))
        assert gain == pytest.approx(mean - student)


def test_advise_on_stored_rollouts_finds_the_same(folder: Path, tmp_path: Path) -> None:
    stored = {"engine": "stored", "stored": str(folder / "student")}
    config = DEMO.changed("rollout", **stored)
    report = advised(tmp_path, config, problems=4, samples=2, sources=("solution",))
    for row in select_rows(report.rows, policy="solution@0"):
        before = row_of(report_in(folder), policy="solution@0", metric=row.metric)
        assert row.mean == pytest.approx(before.mean)


@pytest.mark.slow
def test_advice_on_conversations_scores_all_turns(tmp_path: Path) -> None:
    sections = {"conversation": {"environment": spec_of(Once)}}
    config = changed("demo-paint", {"rollout": {"max_new_tokens": 60}}, sections)
    report = advised(tmp_path, config, problems=2, samples=2, sources=("solution", "none"))
    kl = row_of(report.rows, policy="solution@0", metric="kl").mean
    assert kl > row_of(report.rows, policy="none", metric="kl").mean == 0
    samples = rows_of(tmp_path / "student/completions.jsonl")
    turns = [sample["conversation"]["turns"] for sample in samples]
    assert 2 in map(len, turns)
    for sample, of_sample in zip(samples, turns, strict=True):
        assert sum(t["length"] for t in of_sample) == len(sample["completion_ids"])


@pytest.mark.slow
def test_train_first_step_has_the_divergences_that_advice_measured(
    folder: Path, tmp_path: Path, policy: Policy
) -> None:
    """Both on the same stored completions: of each, the KL of all tokens and the mask ratio."""
    rollouts = {"engine": "stored", "stored": str(folder / "student")}
    few: dict[str, Any] = {"steps": 1, "batch_size": 8, "micro_batch_size": 8}
    config = DEMO.changed("rollout", samples_per_problem=2, **rollouts)
    config = config.changed("train", **few).changed("log", token_rows=8)
    train(config, tmp_path / "run", display=SILENT)
    tokens = read_tokens(tokens_path(tmp_path / "run", 1))
    rows = stored(tmp_path / "run")

    by_id = {p.id: p for p in read_problems(config.data, needs={}).problems}
    completed = [read_rollout(row, by_id[row["problem_id"]], i) for i, row in enumerate(rows)]
    contexts = {"recipe": Contexts(config.context, list(by_id.values()))}
    found = score(of(policy, config, completed), contexts, SILENT)["recipe"]
    assert len(rows) == 8
    for i, row in enumerate(rows):
        assert found[i]["mask_ratio"] == row["mask_ratio"]
        assert found[i]["kl"] == pytest.approx(float(tokens[i]["kl"].sum()), rel=1e-4)


def rollout(policy: Policy, problem: Problem, text: str, reward: float, row: int = 0) -> Rollout:
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    completion = Completion(tuple(ids), (0.0,) * len(ids), False)
    return Rollout(row, problem, [1], completion, text, grade=Grade(reward, ""))


def test_annotate_wrong_rollout_forces_right_answer(
    policy: Policy, problems: list[Problem]
) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3$. \\boxed{3}", answer="3")
    text = "$1+2 \\equiv 4$. Then $4+4 \\equiv 8$. The answer is $\\boxed{8}$."
    found = annotate(policy, rollout(policy, problem, text, 0.0))
    assert policy.decode(found.forced) == text.replace("\\boxed{8}$.", "\\boxed{3}")
    assert policy.decode(found.forced[-found.answer_tokens :]).endswith("3}")
    assert not annotate(policy, rollout(policy, problem, text, 1.0)).forced
    assert not annotate(policy, rollout(policy, problem, "no box", 0.0)).forced


def test_annotate_divergence_point_is_first_statement_that_solution_lacks(
    policy: Policy, problems: list[Problem]
) -> None:
    problem = replace(problems[0], solution="$1+2 \\equiv 3+5 \\equiv 8$.")
    text = "$1+2 \\equiv 3+6 \\equiv 9$."
    row = rollout(policy, problem, text, 0.0)
    point = annotate(policy, row).divergence_point
    assert "3+6" in policy.decode(row.completion.ids[:point])
    assert "3+6" not in policy.decode(row.completion.ids[: point - 1])
    whole = rollout(policy, problem, problem.solution, 1.0)
    assert annotate(policy, whole).divergence_point == len(whole.completion.ids)


def test_score_answer_leakage_is_probability_of_right_box(
    policy: Policy, problems: list[Problem]
) -> None:
    problem = replace(problems[0], answer="37")
    prompt = policy.student_prompt(problem)
    row = replace(rollout(policy, problem, "The answer is $\\boxed{48}$.", 0.0), prompt=prompt)
    context = Contexts(replace(DEMO.context, source=("none",)), problems)
    rows = of(policy, DEMO, [row, replace(row, row=1, grade=Grade(1.0))], 2)
    found = score(rows, {"none": context}, SILENT)["none"]

    notes = annotate(policy, row)
    with torch.no_grad():
        logits = policy.base(torch.tensor([[*prompt, *notes.forced]])).logits[0]
    last = torch.arange(-notes.answer_tokens, 0)
    log_probs = logits[last - 1].log_softmax(-1)
    answer = torch.tensor(notes.forced[-notes.answer_tokens :])
    expected = log_probs.gather(1, answer[:, None]).sum().exp()
    assert found[0]["answer_leakage"] == pytest.approx(float(expected), rel=1e-4)
    assert found[1]["answer_leakage"] is None  # it is right
    # The teacher reads the same prompt.
    assert found[0]["directional_derivative"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("divergence", [FORWARD_KL, REVERSE_KL], ids=["forward", "reverse"])
def test_divergence_sums_are_those_of_both_views(
    divergence: Divergence, policy: Policy, problems: list[Problem]
) -> None:
    move(policy)
    context = replace(DEMO.context, mask_ratio_wrong=0.0, mask_ratio_correct=0.0)
    rows: list[Rollout] = []
    expected = []
    for problem in problems[:2]:
        row = rollout(policy, problem, problem.solution, 0.0)
        rows.append(replace(row, row=len(rows), prompt=policy.student_prompt(problem)))
        shown = policy.teacher_prompt(problem, problem.solution, complete=True)
        views = []
        for prompt, adapter in ((shown, policy.model.disable_adapter()), (rows[-1].prompt, None)):
            with torch.no_grad(), adapter or nullcontext():
                views.append(logits_alone(policy.model, prompt, row.completion.ids).log_softmax(-1))
        p, q = views if divergence is FORWARD_KL else views[::-1]
        expected.append([float((p.exp() * (p - q)).sum())])
    student = of(policy, replace(DEMO, context=context), rows)
    found, tokens = divergence_sums(student, divergence, SILENT)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found.min() > 0.1
    assert tokens.tolist() == [[len(row.completion.ids)] for row in rows]


def test_rollout_metrics_are_those_of_its_tokens() -> None:
    terms = {
        "kl": np.array([0.5, 0.25, 1.0, 0.0]),
        "teacher_entropy": np.array([1.0, 1.0, 2.0, 3.0]),
        "student_entropy": np.array([1.5, 1.0, 1.0, 1.0]),
        "pull": np.array([1.0, -2.0, 0.5, 0.25]),
        "unclipped_mass": np.array([1.0, 0.5, 0.5, 1.0]),
    }
    found = rollout_metrics(terms, TokenAnnotations(divergence_point=2))
    assert found == {
        "tokens": 4,
        "kl": 1.75,
        "directional_derivative": -0.25,
        "unclipped_mass": 3.0,
        "entropy_gap_after_divergence": 1.5,
    }
    right = rollout_metrics(terms, TokenAnnotations(divergence_point=4))
    assert right["entropy_gap_after_divergence"] is None


def test_metrics_of_scores_gradient_is_covariance_of_reward_and_derivative() -> None:
    derivatives = np.array([[1.0, 3.0, -2.0], [0.5, 0.5, 0.5]])
    rewards = np.array([[1.0, 0, 0], [1, 1, 0]])
    same: dict[str, Any] = {"tokens": 2, "kl": 1.0, "unclipped_mass": 1.0, "visible": True}
    same |= {"mask_ratio": 0.3, "entropy_gap_after_divergence": None}
    scores = [
        same | {"directional_derivative": value, "answer_leakage": 0.5 if i == 4 else None}
        for i, value in enumerate(derivatives.flatten())
    ]
    found = metrics_of(scores, rewards)
    expected = [np.cov(derivatives[0], rewards[0])[0, 1], 0.0]
    np.testing.assert_allclose(found["accuracy_gradient"], expected, atol=1e-12)
    np.testing.assert_allclose(found["kl"], [0.5, 0.5])
    np.testing.assert_allclose(found["masked"], [0.3, 0.3])
    assert found["answer_leakage"].tolist() == [0.5]  # of one problem and rollout
    assert len(found["entropy_gap_after_divergence"]) == 0


def test_agreed_wrong_counts_one_wrong_answer_of_most_rollouts() -> None:
    # Right answers are 0; -1 has none.
    votes = np.array([[1, 1, 1, 0], [1, 1, 0, 4], [-1, -1, -1, 4], [0, 0, 0, 0]])
    graded = of_rewards(np.zeros((4, 4)))
    assert agreed_wrong(replace(graded, votes=votes)).tolist() == [1, 0, 0, 0]
    assert agreed_wrong(graded).tolist() == [0, 0, 0, 0]


def of(policy: Policy, config: Config, rows: list[Rollout], samples: int = 1) -> GradedRollouts:
    graded = of_rewards(np.zeros((len(rows) // samples, samples)))
    return GradedRollouts(policy, check_config(config), rows, graded)


def test_advise_under_a_judge_that_never_gives_one_orders_contexts_by_its_rewards() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.uniform(0.2, 0.8, (40, 2))
    rewards[:4, 1] = rewards[:4, 0]
    student = student_metrics(of_rewards(rewards))
    assert not {"accuracy", "both"} & student.keys()
    assert student["rollout_reward"].mean == pytest.approx(rewards.mean())
    assert student["differ"].mean == 0.9

    # A slope of c times the reward has the gradient c times its variance, problem by problem.
    slopes = {"recipe": 1.0, "solution@0": 3.0, "other@0": -1.0}
    contexts = {}
    for name, slope in slopes.items():
        found = {"tokens": 10, "kl": 5.0, "unclipped_mass": 9.9, "mask_ratio": 0.3}
        found |= {"entropy_gap_after_divergence": 0.0, "answer_leakage": 0.0}
        scores = [found | {"directional_derivative": slope * r} for r in rewards.ravel()]
        contexts[name] = metrics_of(scores, rewards)
        expected = slope * rewards.var(axis=1, ddof=1)
        np.testing.assert_allclose(contexts[name]["accuracy_gradient"], expected)
    lines = advise_on(student, contexts, has_solutions=True)
    assert lines[0].startswith(f"train with {WHOLE}")

    equal = student_metrics(of_rewards(np.full((40, 2), 0.3)))
    [line] = advise_on(equal, contexts, has_solutions=True)
    assert line.startswith("no advice: only problems whose rollouts differ in reward tell, and 0.0")


@pytest.mark.parametrize("rewards", [[[1.0, 0.0], [0.0, 0.0]], [[1.0, math.nan], [0.0, 1.0]]])
def test_student_metrics_of_verdicts_are_shares_of_right_rollouts(
    rewards: list[list[float]],
) -> None:
    table = np.array(rewards)
    student = student_metrics(of_rewards(table))
    assert student["both"].mean == 0.5
    assert student["accuracy"].mean == np.nanmean(table, axis=1).mean()
    assert not {"rollout_reward", "differ"} & student.keys()


def test_advise_answers_under_a_judge_are_compared_by_reward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def share_of_digits(completion: str, row: Mapping[str, Any]) -> float:
        return 0.9 * sum(map(str.isdigit, completion)) / max(len(completion), 1)

    config = changed(
        "demo-paint",
        {"rollout": {"max_new_tokens": 24}, "grading": {"grader": spec_of(share_of_digits)}},
        {"data": {"limit": 40}},
    )
    report = advised(tmp_path, config, problems=2, sources=("other",), answers=True)
    student = row_of(report, policy="student", metric="rollout_reward").mean
    assert 0 < student < 1
    found = select_rows(report.rows, policy="student", metric="reward")
    assert [row.mean for row in found] == [student]
    assert not select_rows(report.rows, metric="avg_at_k", against=...)
    gains = means_of(report, "reward", against="student")
    levels = means_of(report, "reward")
    assert list(gains) == ["recipe", "other", "other@0"]
    for name, gain in gains.items():
        assert gain == pytest.approx(levels[name] - student)

    # Another sample changes what the teacher reads: such answers are sampled again, others kept.
    caplog.set_level("INFO", "paint")
    advised(tmp_path, config, problems=2, samples=3, sources=("other",), answers=True)
    for name in ("student", "answers/recipe", "answers/other", "answers/other@0"):
        rows = rows_of(tmp_path / name / "completions.jsonl")
        assert len({(row["problem_id"], row["sample"]) for row in rows}) == len(rows) == 6


def answered_as(**right: list[int]) -> dict[str, GradedSamples]:
    """Verdicts of 40 problems by policy: of each, how many of four answers are right, in turns."""
    found = {}
    for name, counts in right.items():
        rows = [[float(i < count) for i in range(4)] for count in counts]
        found[name] = of_rewards(np.array(rows * (40 // len(rows))))
    return found


@pytest.mark.parametrize(
    ("right", "starts"),
    [
        ({"student": [1, 2], "recipe": [3, 4]}, ["there is something to learn: "]),
        ({"student": [3, 4], "recipe": [1, 2]}, ["the teacher answers worse than the student: "]),
        ({"student": [1, 2], "recipe": [2, 1]}, ["the teacher is not seen to answer better "]),
        (
            {"student": [1, 2], "recipe": [3, 4], "other": [1, 2], "placebo": [3, 4]},
            ["there is something to learn: ", "the content is not what helps: with a placebo "],
        ),
        (
            {"student": [1, 2], "recipe": [3, 4], "other": [4, 3], "placebo": [1, 2]},
            ["there is ", "the content is not what helps: with another row's context "],
        ),
        ({"student": [1, 2]}, []),
    ],
)
def test_gap_lines_say_first_whether_the_teacher_answers_better(
    right: dict[str, list[int]], starts: list[str]
) -> None:
    answers = answered_as(**right)
    lines = gap_lines(answers.pop("student"), answers)
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def of_gradient(gradient: float, **changes: Any) -> ContextMetrics:
    """What 40 problems say that nearly agree."""
    noise = np.random.default_rng(int(1000 * gradient)).uniform(-0.01, 0.01, 40)
    return {
        "accuracy_gradient": gradient + noise,
        "kl": noise + 1,
        "entropy_gap_after_divergence": noise,
        "unclipped_mass": np.full(40, 0.99),
        "masked": np.full(40, 0.3),
        "answer_leakage": np.full(40, 0.01),
    } | changes


STUDENT = {
    "accuracy": Interval(0.5, 0.4, 0.6),
    "both": Interval(0.5, 0.4, 0.6),
    "truncated": Interval(0.0, 0.0, 0.1),
    "agreed_wrong": Interval(0.0, 0.0, 0.1),
}
WHOLE = "--context.source solution --context.mask-ratio-wrong 0 --context.mask-ratio-correct 0"
OWN = "the recipe's own context"


@pytest.mark.parametrize(
    ("student", "gradients", "expected"),
    [
        ({}, {"recipe": 0.3, "solution@0": 0.5}, [WHOLE, "less the recipe's is +20"]),
        ({}, {"recipe": 0.3, "solution@0": 0.29}, [OWN]),
        ({}, {"recipe": 0.3, "solution@0": 0.301}, [OWN, "0 in its interval"]),
        ({}, {"recipe": 0.3, "other@0": 0.1}, [OWN, "is content"]),
        ({}, {"recipe": 0.3, "other@0": 0.299}, [OWN, "not the content"]),
        ({}, {"recipe": 0.3, "placebo": 0.299}, [OWN, "a placebo (placebo) teaches as much"]),
        ({}, {"recipe": 0.3, "other_notes@0": 0.5}, ["--context.source other_notes", "is +20"]),
        ({}, {"recipe": 0.0, "other@0": 0.9}, ["no advice"]),
        ({"both": Interval(0.05, 0.0, 0.1)}, {"recipe": 0.3}, ["no advice"]),  # 2 of 40
        ({"truncated": Interval(0.6, 0.5, 0.7)}, {"recipe": 0.3}, ["max_new_tokens", OWN]),
        ({"agreed_wrong": Interval(0.4, 0.3, 0.5)}, {"recipe": 0.3}, ["the rows' answers", OWN]),
    ],
)
def test_advise_on_recommends_only_what_intervals_tell(
    student: dict[str, Interval], gradients: dict[str, float], expected: list[str]
) -> None:
    contexts = {name: of_gradient(gradient) for name, gradient in gradients.items()}
    lines = advise_on(STUDENT | student, contexts)
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_advise_on_student_without_right_answers_is_sft_first() -> None:
    none = {"accuracy": Interval(0.0, 0.0, 0.05), "both": Interval(0.0, 0.0, 0.05)}
    few = {"recipe": of_gradient(0.3)}
    first, second = advise_on(STUDENT | none, few, has_solutions=True)
    assert first.startswith("SFT first: the student gets 0.0 [0.0, 5.0] % right")
    assert second.startswith("no advice")
    [only] = advise_on(STUDENT | none, few, has_solutions=False)
    assert only.startswith("no advice")
    some = none | {"accuracy": Interval(0.2, 0.1, 0.3)}
    assert len(advise_on(STUDENT | some, few, has_solutions=True)) == 1


def test_advise_on_file_has_controls_and_needs_no_answers(tmp_path: Path) -> None:
    def is_short(completion: str, row: Mapping[str, Any]) -> bool:
        return row["answer"] == "" and len(completion) < 60

    questions = [{"problem": f"Start at ${i}$ and add $7$."} for i in range(4)]
    data = write_problems(tmp_path / "questions.jsonl", questions)
    (tmp_path / "guide.md").write_text("Answer briefly. Name the number twice.")
    sections: Sections = {
        "data": {"path": data},
        "rollout": {"max_new_tokens": 24},
        "context": {"source": "file", "file": str(tmp_path / "guide.md")},
        "prompts": {"student": "{{ problem }}", "teacher_system": "{{ context }}"},
        "grading": {"grader": spec_of(is_short)},
    }
    config = changed("demo-paint", sections)
    report = advised(tmp_path / "advice", config, problems=2, sources=())
    kl = means_of(report, "kl")
    assert list(kl) == ["recipe", "other_text", "placebo_text", "none"]
    assert len(set(kl.values())) == 4
    assert list(means_of(report, "avg_at_k")) == ["recipe", "other_text", "placebo_text"]
    ungraded = changed("demo-paint", sections, {"grading": {"grader": "math"}})
    report = advised(tmp_path / "advice", ungraded, problems=2, sources=("none",))
    assert report.lines[0].startswith("no advice: the rollouts are not graded")
    # A folder belongs to the rows of its advice.
    write_problems(tmp_path / "questions.jsonl", questions[1:])
    with pytest.raises(StoreError, match=r"the rows of .* have changed"):
        advised(tmp_path / "advice", config, problems=2, sources=())


def test_advise_on_a_small_share_of_many_problems_advises() -> None:
    few = {"both": Interval(0.08, 0.06, 0.1)}
    many = of_gradient(0.3, accuracy_gradient=np.linspace(0.29, 0.31, 400))  # 32 of 400 tell
    [line] = advise_on(STUDENT | few, {"recipe": many})
    assert OWN in line
