"""What surrounds the real model, without it: its problems, how it is fetched, how rates are chosen.

The model itself is met in test_real.py.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.config.recipe import read_recipe
from paint.config.schema import Config
from paint.core.demo_files import MODEL
from paint.core.display import Display
from paint.data.problems import Problem, read_problems
from paint.lab.checkpoint_results import BASE
from paint.lab.learning_rates import RateTrial
from paint.lab.runner import ExperimentRun
from paint.objective.masking import mask_solution
from paint.objective.messages import student_messages, teacher_messages
from problems import (
    HELD_OUT,
    HIDDEN,
    WARM_UP,
    WordProblem,
    rows,
    views,
    with_wrong_ends,
    word_problems,
)
from rates import with_chosen_rates
from run import (
    RATE_PROBLEMS,
    RATE_SEED,
    Options,
    prepare,
    rate_search,
    recipe_of,
    run_smollm2,
    write_problems,
)
from runs import rows_of

FAMILIES = WARM_UP | HELD_OUT
FILES = ["warm-up-1", "warm-up-2", "familiar", "train", "validation", "evaluation"]
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def some(families: Any = FAMILIES, count: int = 280) -> list[WordProblem]:
    return word_problems(families, "train", count, seed=3)


def test_word_problem_equations_hold_and_end_in_answer() -> None:
    for problem in some():
        equations = EQUATION.findall(problem.solution)
        assert len(equations) == problem.solution.count("=") == 2
        for left, sign, right, result in equations:
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
            assert value[sign](int(left), int(right)) == int(result)
            assert sign != "/" or int(left) % int(right) == 0
        assert int(equations[-1][-1]) == problem.answer
        assert problem.solution.endswith(f"\\boxed{{{problem.answer}}}.")


def test_write_problems_files_are_disjoint(tmp_path: Path) -> None:
    write_problems(tmp_path)
    tables = {name: rows_of(tmp_path / f"{name}.jsonl") for name in FILES}
    for key in ("problem", "solution"):
        texts = [row[key] for table in tables.values() for row in table]
        assert len(set(texts)) == len(texts)
    counts = {name: len(table) for name, table in tables.items()}
    for split in ("train", "validation"):
        for steps in (1, 2):
            wrong = rows_of(tmp_path / f"{split}-wrong-{steps}.jsonl")
            assert wrong == with_wrong_ends(tables[split], steps)
    assert counts == dict(zip(FILES, (128, 128, 60, 800, 256, 150), strict=True))
    for name in FILES:  # every row is one that a run takes
        data = replace(Config().data, path=str(tmp_path / f"{name}.jsonl"))
        assert len(read_problems(data).problems) == counts[name]


def test_views_show_teacher_prompt_in_three_of_four() -> None:
    problems = some(count=40)
    made = views(problems, shown_of_four=3)
    is_teachers = []
    for problem, row in zip(problems, made, strict=True):
        shown = mask_solution(problem.solution, HIDDEN)
        teachers = teacher_messages(problem.problem, shown, complete=False)
        message = student_messages(row["problem"])
        assert message in (teachers, student_messages(problem.problem))
        is_teachers.append(message == teachers)
        assert row["solution"] == problem.solution
    assert is_teachers == [True, True, True, False] * 10
    assert views(problems, shown_of_four=0) == rows(problems)


@pytest.mark.parametrize("steps", [1, 2])
def test_with_wrong_ends_errs_in_last_steps_and_keeps_rule_and_answer(steps: int) -> None:
    table = rows(some(HELD_OUT))
    wrong_table = with_wrong_ends(table, steps)
    assert wrong_table == with_wrong_ends(table, steps)
    for row, wrong in zip(table, wrong_table, strict=True):
        assert wrong == {**row, "solution": wrong["solution"]}
        (*_, whole), right = EQUATION.findall(row["solution"])
        (*_, wrong_whole), last = EQUATION.findall(wrong["solution"])
        assert (whole != wrong_whole) == (steps == 2)
        assert last[:3] == (wrong_whole, *right[1:3])
        exact = int(wrong_whole) + int(last[2]) * (1 if last[1] == "+" else -1)
        assert 0 < abs(int(last[3]) - exact) <= 9
        assert min(exact, int(last[3])) > 0
        rule, box = row["solution"].split(".")[0], f"\\boxed{{{last[3]}}}."
        assert wrong["solution"].startswith(f"{rule}. ")
        assert wrong["solution"].endswith(box)
        assert last[3] != row["answer"]


def test_rate_of_smallest_kl_is_chosen_and_shared_with_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = [recipe_of(method) for method in ("grpo", "opsd", "paint-none", "paint")]
    cells = [ExperimentRun(recipe.stem, read_recipe(recipe)) for recipe in recipes]
    write_problems(tmp_path)
    kl = {"smollm2-opsd": [0.2, 0.2, 0.1], "smollm2-paint": [0.3, 0.2, 0.1]}  # by rising rate
    tried: list[Config] = []

    validation = rows_of(tmp_path / "validation-wrong-2.jsonl")[:RATE_PROBLEMS]

    def try_rate(run: ExperimentRun, rate: float, problems: list[Problem], *_: Any) -> RateTrial:
        assert [p.problem for p in problems] == [row["problem"] for row in validation]
        assert rate == run.config.train.learning_rate
        tried.append(run.config)
        [name] = [name for name in kl if run.name.startswith(name)]
        value = kl[name][round(math.log(rate / 5e-4, 3)) + 1]
        # The largest rate of OPSD has the smallest KL of a student that repeats itself.
        warnings = ("truncated",) if value == 0.1 and "opsd" in name else ()
        return RateTrial(run.name, rate, np.full(3, value), warnings=warnings)

    monkeypatch.setattr("rates.try_rate", try_rate)
    for _ in range(2):  # the second call has every rate's KL
        search = rate_search(tmp_path / "validation-wrong-2.jsonl", tmp_path, cells)
        chosen = with_chosen_rates(cells, search, Display(enabled=False))
        assert [cell.name for cell in chosen] == [cell.name for cell in cells]
        rates = [cell.config.train.learning_rate for cell in chosen]
        assert rates == pytest.approx([5e-4, 5e-4 / 3, 1.5e-3, 1.5e-3])  # the smaller of equals
    assert len(tried) == 6
    assert {(c.context.source, c.train.seed) for c in tried} == {(("solution",), RATE_SEED)}


@pytest.fixture(scope="module")
def prepared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache whose base is the embedded model, given as a folder."""
    cache = tmp_path_factory.mktemp("cache")
    prepare(cache, Display(enabled=False), str(MODEL))
    return cache


@pytest.mark.slow
def test_run_smollm2_from_rates_to_tables_repeats_without_work(
    prepared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("run.RATES", (1 / 3, 1))
    monkeypatch.setattr("run.RATE_PROBLEMS", 4)
    recipes = []
    for method in ("paint-none", "paint"):
        text = recipe_of(method).read_text().replace("steps = 40", "steps = 1")
        recipes.append(tmp_path / recipe_of(method).name)
        recipes[-1].write_text(text.replace("batch_size = 8", "batch_size = 2"))

    places: dict[str, Any] = {"cache": prepared_cache, "folder": tmp_path / "demo"}
    options = Options(wrong_steps=1, seeds=1, problems=4, samples=1, **places)
    results = run_smollm2(recipes, options)
    assert [result.run for result in results] == [BASE, "smollm2-paint-none", "smollm2-paint"]
    assert {result.protocol["benchmark"] for result in results} == {"evaluation"}
    trained_on = {result.config["data"]["path"] for result in results if result.run != BASE}
    assert trained_on == {str(prepared_cache / "train-wrong-1.jsonl")}
    tables = (tmp_path / "demo/results.md").read_text()
    assert "SmolLM2-135M" in tables
    assert "smollm2-paint less smollm2-paint-none" in tables
    assert len(list((tmp_path / "demo/rates").glob("*/kl.json"))) == 2
    monkeypatch.setattr("paint.lab.runner.train", None)
    assert run_smollm2(recipes, options) == results
