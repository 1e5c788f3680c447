"""The switches of the paper and the controls: each does what it says, in real steps on the demo."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import logits_alone
from paint.config.recipe import find_recipe, shipped_recipes
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ConfigError, ContextConfig
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem, batch_indices
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.objective.anchors import normalize
from paint.objective.loss import token_log_probs
from paint.objective.masking import mask_ratio, mask_solution, overlap
from paint.training.trainer import train
from runs import changed, stored

PROBLEMS = 40
FEW_TOKENS = {"max_new_tokens": 24}


def tiny(**sections: dict[str, Any]) -> Config:
    """The demo's recipe for one step on four rollouts, with changes."""
    few = {"steps": 1, "batch_size": 4, "micro_batch_size": 4, "seed": 3}
    small = {"data": {"limit": PROBLEMS}, "rollout": {"max_new_tokens": 60}, "train": few}
    return changed("demo-paint", small, sections)


def run(folder: Path, config: Config) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rollouts and the figures of a run's first step."""
    train(config, folder)
    return stored(folder), read_metrics(folder)[0]


@pytest.fixture(scope="module")
def by_id(problems: list[Problem]) -> dict[str, Problem]:
    return {p.id: p for p in problems[:PROBLEMS]}


VARIANT = r"paint-(?!qwen)|oasis|(e2|og)-opsd|semi-opd"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_recipes() if re.match(VARIANT, name)])
def test_shipped_variant_is_short_and_trains_on_demo(tmp_path: Path, name: str) -> None:
    text = find_recipe(name).read_text()
    assert len([line for line in text.splitlines() if line and line[0] != "#"]) <= 15
    few = {"train": {"steps": 2, "batch_size": 16}}
    stored: dict[str, Any] = {}
    if name == "semi-opd":
        train(changed("demo-paint", few), tmp_path / "first")
        stored = {"rollout": {"stored": str(tmp_path / "first")}}
    train(changed("demo-paint", few, tomllib.loads(text), stored), tmp_path / "run")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(losses) == 2
    assert all(0 < abs(loss) < 1 for loss in losses)


@pytest.mark.parametrize("shown", ["solution", "none", "other", "answer", "wrong_answer"])
def test_context_source_shows_its_text(
    tmp_path: Path, by_id: dict[str, Problem], shown: str
) -> None:
    config = tiny(context={"source": shown}, rollout=FEW_TOKENS)
    rows, metrics = run(tmp_path / "run", config)
    policy = load_policy(config.model, seed=0)
    solutions = {p.solution: p for p in by_id.values()}
    for row in rows:
        problem, context = by_id[row["problem_id"]], row["context"]
        # Of its own solution, whatever is shown.
        assert row["overlap"] == overlap(row["text"], problem.solution)
        ratio = mask_ratio(row["overlap"], wrong=0.3, correct=0.4)
        prompt = policy.teacher_prompt(problem.problem, context, complete="answer" in shown)
        match shown:
            case "solution":
                assert context == mask_solution(problem.solution, ratio)
            case "none":
                assert context is None
                prompt = row["prompt_ids"]  # of the demo, both views think alike
            case "other":
                [other] = [p for s, p in solutions.items() if context == mask_solution(s, ratio)]
                assert other.id != problem.id
            case "answer":
                assert context == f"The answer is $\\boxed{{{problem.answer}}}$."
            case "wrong_answer":
                answer = context.removeprefix("The answer is $\\boxed{").removesuffix("}$.")
                assert answer in {p.answer for p in by_id.values()}
                assert normalize(answer) != normalize(problem.answer)
        assert row["teacher_prompt_ids"] == prompt

    if shown == "none":
        # Two views of one model that read the same.
        assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    else:
        assert metrics["kl"] > 1e-5  # of the demo, an answer alone says next to nothing


def select_reference(problems: list[Problem], problem: Problem, source: str, seed: int) -> str:
    contexts = Contexts(ContextConfig(source=(source,)), problems)
    return contexts.references(problem, seed)[source]


def test_reference_shown_is_drawn_by_seed_and_refused_when_impossible() -> None:
    problems = [Problem(f"p{i}", f"s{i}", str(i % 3), str(i)) for i in range(30)]
    drawn = {select_reference(problems, problems[0], "other", seed) for seed in range(200)}
    assert drawn == {f"s{i}" for i in range(1, 30)}
    assert len({select_reference(problems, problems[4], "other", 7) for _ in range(5)}) == 1

    wrong = {select_reference(problems, problems[0], "wrong_answer", seed) for seed in range(50)}
    assert wrong == {f"The answer is $\\boxed{{{i}}}$." for i in (1, 2)}
    with pytest.raises(DataError, match=r"^context\.source other\b"):
        select_reference(problems[:1], problems[0], "other", 0)
    with pytest.raises(DataError, match=r"^context\.source wrong_answer\b.*'0'"):
        select_reference(problems[::3], problems[0], "wrong_answer", 0)


def test_reference_shown_wrong_answer_excludes_equal_numbers() -> None:
    answers = enumerate(("12", "12.0", "$12$", "13"))
    problems = [Problem("p", "s", answer, str(i)) for i, answer in answers]
    drawn = {select_reference(problems, problems[0], "wrong_answer", seed) for seed in range(20)}
    assert drawn == {"The answer is $\\boxed{13}$."}


@pytest.mark.parametrize(
    ("wording", "hidden"), [("as_shown", None), ("part", 0.0), ("complete", 0.4)]
)
def test_reason_first_teacher_scores_with_its_rationale(
    tmp_path: Path, by_id: dict[str, Problem], wording: str, hidden: float | None
) -> None:
    options: dict[str, Any] = {"wording": wording}
    if hidden is not None:
        options |= {"mask_ratio_wrong": hidden, "mask_ratio_correct": hidden}
    teacher = {"reason_first": True, "rationale_tokens": 12}
    config = tiny(context=options, teacher=teacher, train={"steps": 2, "learning_rate": 3e-3})
    train(config, tmp_path / "run")

    # With a fresh adapter it is the teacher, whatever the student became.
    policy = load_policy(config.model, seed=0)
    sampling = replace(sampling_from(config.rollout), max_new_tokens=12)
    engine, is_complete = LocalEngine(policy, batch_size=1), wording == "complete"
    for step in (1, 2):
        for number, row in enumerate(stored(tmp_path / "run", step)):
            problem, context = by_id[row["problem_id"]], row["context"]
            if hidden is not None:
                assert context == mask_solution(problem.solution, hidden)
            asked = policy.rationale_prompt(problem.problem, context, complete=is_complete)
            seed = derive_seed(3, "rationale", step - 1, number)
            [reply] = engine.generate([asked], sampling, [seed])
            assert row["rationale"] == policy.decode(reply.ids).strip() != ""
            assert row["rationale_tokens"] == len(reply.ids)
            prompt = policy.teacher_prompt(
                problem.problem, context, complete=is_complete, rationale=row["rationale"]
            )
            assert row["teacher_prompt_ids"] == prompt

            read = policy.decode(prompt, special=True)
            # It is asked, replies, is asked to solve, and reads the student's text.
            assert read.count("<|im_start|>") == 4
            assert context in read
            assert f"assistant\n{row['rationale']}<|im_end|>" in read
            assert row["rationale"] not in policy.decode(row["prompt_ids"], special=True)


def test_train_base_alone_as_teacher_asks_nothing_of_fresh_student(tmp_path: Path) -> None:
    rows, metrics = run(tmp_path / "run", tiny(teacher={"base_weight": 1.0}, rollout=FEW_TOKENS))
    assert all(row["context"] for row in rows)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


def test_base_weight_without_base_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"base_weight must be 0.*ema.*got 0\.2.*frozen"):
        tiny(teacher={"base_weight": 0.2, "weights": "ema"}, model={"train_mode": "full"})


def test_reason_first_without_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is nothing to reason about"):
        tiny(teacher={"reason_first": True}, context={"source": "none"})


def test_sampled_token_step_is_mean_log_ratio(tmp_path: Path, by_id: dict[str, Problem]) -> None:
    options: dict[str, Any] = {"divergence": "sampled_token", "clip_mode": "none"}
    options |= {"interpolation_weight": 0.0, "top_fraction": 0.0}
    config = tiny(objective=options, rollout={"top_p": 1.0, "top_k": -1})
    rows, metrics = run(tmp_path / "run", config)
    policy = load_policy(config.model, seed=0)
    means = []
    for row in rows:
        ids = torch.tensor(row["completion_ids"])
        values = []
        for prompt in ("prompt_ids", "teacher_prompt_ids"):
            with torch.no_grad():
                logits = logits_alone(policy.model, row[prompt], row["completion_ids"])
            values.append(token_log_probs(logits, ids, temperature=1.1))
        means.append(float((values[0] - values[1]).mean()))

    assert metrics["loss"] == pytest.approx(sum(means) / 4, rel=1e-4)
    assert metrics["clip_frac"] == 0


def test_train_full_interpolation_and_fixed_mask_ratio(tmp_path: Path) -> None:
    fixed = {"mask_ratio_wrong": 0.25, "mask_ratio_correct": 0.25}
    rows, metrics = run(tmp_path / "run", tiny(objective={"top_fraction": 1.0}, context=fixed))
    assert metrics["selected_frac"] == 1
    assert metrics["selected_kl"] > 0
    assert [row["mask_ratio"] for row in rows] == [0.25] * 4


def test_train_mask_placements_hide_their_part(tmp_path: Path, by_id: dict[str, Problem]) -> None:
    problems = [list(by_id.values())[i] for i in batch_indices(len(by_id), 4, 0, 3)]
    for placement in ("random", "punctuation"):
        config = tiny(context={"placement": placement}, rollout=FEW_TOKENS)
        rows, _ = run(tmp_path / placement, config)
        for number, (row, problem) in enumerate(zip(rows, problems, strict=True)):
            seed = derive_seed(3, 0, number)
            drawn: dict[str, Any] = {"placement": placement, "seed": seed}
            expected = mask_solution(problem.solution, row["mask_ratio"], **drawn)
            assert row["context"] == expected
