"""The switches of the paper and the controls: each does what it says, in real steps on the demo."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import DEMO, logits_alone
from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ContextConfig
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem, batch_indices
from paint.inference.engine import derive_seed
from paint.models.policy import load_policy
from paint.objective.loss import token_log_probs
from paint.objective.masking import mask_ratio, mask_solution, overlap
from paint.resolve.check import check_config
from runs import changed, stored, train
from strictgrade.text import normalize

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


@pytest.mark.parametrize("shown", ["none", "other", "answer", "wrong_answer"])
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


def test_train_mask_placement_hides_its_part(tmp_path: Path, by_id: dict[str, Problem]) -> None:
    problems = [list(by_id.values())[i] for i in batch_indices(len(by_id), 4, 0, 3)]
    rows, _ = run(tmp_path, tiny(context={"placement": "random"}, rollout=FEW_TOKENS))
    for number, (row, problem) in enumerate(zip(rows, problems, strict=True)):
        drawn: dict[str, Any] = {"placement": "random", "seed": derive_seed(3, 0, number)}
        expected = mask_solution(problem.solution, row["mask_ratio"], **drawn)
        assert row["context"] == expected


def test_concise_teacher_alone_reads_the_instruction(problems: list[Problem]) -> None:
    config = read_recipe(find_recipe("concise"))
    run = check_config(config)
    assert run.needed_fields == {}
    model = replace(DEMO, student_thinking=True, teacher_thinking=True)
    policy = load_policy(model, seed=0, prompts=config.prompts)
    prompt = policy.student_prompt(problems[0])
    taught = policy.teacher_prompt(problems[0], config.context.text, complete=True)
    student, teacher = (policy.decode(ids, special=True) for ids in (prompt, taught))
    assert config.context.text not in student
    system = f"<|im_start|>system\n{config.context.text}<|im_end|>\n"
    assert teacher == system + student
