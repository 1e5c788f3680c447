"""An experiment holds what was measured, survives being killed, and never mixes two settings."""

import json
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from paint.cli import main
from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import RunError, step_folder
from paint.config.schema import Config, ConfigError, ModelConfig
from paint.core.demo_files import NEW_RULES, NEW_RULES_PROBLEMS
from paint.core.display import Display
from paint.evaluation.generate import checkpoint_digest
from paint.lab.checkpoint_results import CheckpointResult, by_run, read_results
from paint.lab.eval_protocols import protocol_for
from paint.lab.repaired import repaired_table
from paint.lab.runner import ExperimentRun, run_experiment
from paint.models.weights import trained_in
from paint.training.run_log import new_run
from processes import until
from runs import Sections, rows_of, tight_and_loose
from verdicts import is_correct

PROBLEMS, SAMPLES = 5, 3
SMALL = ["--problems", str(PROBLEMS), "--samples", str(SAMPLES)]


def write_recipes(folder: Path, steps: int, **train: Any) -> list[str]:
    """Two recipes of one model, tight and loose, as the command line takes them."""
    batch = {"batch_size": 4, "micro_batch_size": 4, "learning_rate": 3e-3, "checkpoint_every": 1}
    small: Sections = {
        "model": {"lora_rank": 4, "lora_alpha": 8},
        "data": {"limit": 40},
        "rollout": {"max_new_tokens": 40},
        "train": batch | {"steps": steps} | train,
    }
    return tight_and_loose(folder, small)


class Experiment(NamedTuple):
    """An experiment's folder, its command, and what it printed."""

    folder: Path
    command: list[str]
    said: str

    def copy(self, folder: Path) -> "Experiment":
        shutil.copytree(self.folder, folder)
        return Experiment(folder, [*self.command, "--output-dir", str(folder)], "")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An experiment of two recipes and two seeds."""
    folder = tmp_path_factory.mktemp("experiment")
    recipes, place = write_recipes(folder, steps=2), ["--output-dir", str(folder / "demo")]
    command = ["demo", *recipes, "--seeds", "2", *place, *SMALL]
    with redirect_stdout(StringIO()) as said:
        assert main(command) == 0
    return Experiment(folder / "demo", command, said.getvalue())


@pytest.fixture(scope="module")
def stepped(finished: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The same experiment, gone on with for its earlier checkpoints."""
    folder, command, _ = finished.copy(tmp_path_factory.mktemp("stepped") / "demo")
    with redirect_stdout(StringIO()) as said:
        assert main([*command, "--every-checkpoint"]) == 0
    return Experiment(folder, [*command, "--every-checkpoint"], said.getvalue())


def bytes_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content; locks are touched by whoever looks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def right_of(place: Path) -> list[int]:
    """Correct samples of each problem, from the stored grades."""
    correct = [row["correct"] for row in rows_of(place / "demo/grades.jsonl")]
    return [int(n) for n in np.reshape(correct, (PROBLEMS, SAMPLES)).sum(axis=1)]


def assert_same_but_for_times(*folders: Path) -> None:
    one, other = (
        {(r.run, r.seed, r.steps): replace(r, seconds=0.0) for r in read_results(folder)}
        for folder in folders
    )
    assert one == other


def run_cells(folder: Path, *configs: Config, **options: Any) -> list[CheckpointResult]:
    """An experiment with one seed; each config is a run, called one."""
    cells = [ExperimentRun("one", config) for config in configs]
    return run_experiment(cells, [0], folder, protocol_for(DEMO, None, 2, 2), Display(), **options)


def test_experiment_of_the_demo_has_the_shares_of_its_control(finished: Experiment) -> None:
    folder, _, _ = finished
    for result in read_results(folder):
        place = folder / "evaluation" / f"seed-{result.seed}" / result.run / NEW_RULES
        grades = [row["correct"] for row in rows_of(place / "grades.jsonl")]
        shares = np.reshape(grades, (PROBLEMS, SAMPLES)).mean(axis=1)
        assert result.control == pytest.approx(shares.tolist())
        asked = {row["problem"] for row in rows_of(place / "problems.jsonl")}
        assert asked <= {row["problem"] for row in rows_of(NEW_RULES_PROBLEMS)}


def test_repaired_table_shows_the_problem_that_rose_most(finished: Experiment) -> None:
    folder, _, _ = finished
    results = [r for r in read_results(folder) if r.seed == 1 and r.run != "tight"]
    place = folder / "evaluation/seed-1"
    grades: dict[str, Any] = {}
    for run in ("base", "loose"):
        correct = [row["correct"] for row in rows_of(place / run / "demo/grades.jsonl")]
        grades[run] = np.reshape(correct, (PROBLEMS, SAMPLES))
    # A problem that the base also gets wrong, and the run also right.
    mixed = ~grades["base"].all(axis=1) & grades["loose"].any(axis=1)
    number = int(mixed.argmax())
    assert mixed[number]
    rises = {"base": [0] * PROBLEMS, "loose": [int(i == number) for i in range(PROBLEMS)]}
    results = [replace(result, right=rises[result.run]) for result in results]

    table = repaired_table("loose", results, folder)
    assert table is not None
    cells = dict(table.rows)
    problem = rows_of(place / "base/demo/problems.jsonl")[number]
    assert cells["problem"] == problem["problem"]
    assert cells["reference"] == problem["solution"]
    assert not is_correct(cells["before"], problem["answer"])
    assert is_correct(cells["after"], problem["answer"])
    fallen = [replace(result, right=[0] * PROBLEMS) for result in results]
    assert repaired_table("loose", fallen, folder) is None


def test_experiment_results_have_one_row_per_run_and_seed(finished: Experiment) -> None:
    folder, _, _ = finished
    results = read_results(folder)
    order = [(name, seed) for seed in (0, 1) for name in ("base", "tight", "loose")]
    assert [(result.run, result.seed) for result in results] == order
    for result in results:
        place = folder / "evaluation" / f"seed-{result.seed}" / result.run
        assert result.right == right_of(place)
        lengths = [
            len(sample["completion_ids"]) for sample in rows_of(place / "demo/completions.jsonl")
        ]
        assert result.answer_tokens == pytest.approx(np.mean(lengths))
        if result.run == "base":
            assert (result.steps, result.rollout_tokens, result.seconds) == (0, 0, 0)
            continue
        run = folder / result.run / f"seed-{result.seed}"
        rollouts = [row for path in run.glob("rollouts/*") for row in rows_of(path)]
        assert (result.steps, len(rollouts)) == (2, 8)
        assert result.rollout_tokens == sum(len(rollout["completion_ids"]) for rollout in rollouts)
        cells = [cell for row in rows_of(run / "metrics.jsonl") for cell in row.items()]
        spent = [value for name, value in cells if re.fullmatch("seconds_(?!left).*", name)]
        assert 0 < result.seconds == pytest.approx(sum(spent))
        assert result.config["train"]["seed"] == result.seed
        assert "step 2/2" in (run / "log.txt").read_text()


def test_experiment_evaluates_checkpoint_of_step(stepped: Experiment) -> None:
    folder, digests = stepped.folder, []
    for step, name in enumerate(("loose-step-000001", "loose"), start=1):
        place = folder / "evaluation/seed-1" / name / "demo"
        asked = json.loads((place / "settings.json").read_text())
        checkpoint = step_folder(folder / "loose/seed-1/checkpoints", step)
        assert asked["adapter"] == checkpoint_digest(trained_in(checkpoint, "lora"))
        assert asked["seed"] == 1
        digests.append(asked["adapter"])
    assert digests[0] != digests[1]


def test_experiment_every_checkpoint_adds_evaluations_without_training(
    finished: Experiment, stepped: Experiment
) -> None:
    folder, _, said = stepped
    assert "\ntraining " not in said
    assert "time, an estimate" not in said  # nothing is trained
    before, results = read_results(finished.folder), read_results(folder)
    assert [result for result in results if result.is_last] == before
    added = [result for result in results if not result.is_last]
    assert [(r.run, r.seed, r.steps) for r in added] == [
        (name, seed, 1) for seed in (0, 1) for name in ("tight", "loose")
    ]
    moved = []
    for result in added:
        rollouts = rows_of(folder / result.run / f"seed-{result.seed}/rollouts/step-000001.jsonl")
        assert result.rollout_tokens == sum(len(row["completion_ids"]) for row in rollouts)
        [last] = [r for r in before if (r.run, r.seed) == (result.run, result.seed)]
        assert 0 < result.seconds < last.seconds
        place = folder / f"evaluation/seed-{result.seed}/{result.run}-step-000001"
        assert result.right == right_of(place)
        moved.append(result.right != last.right)
    assert any(moved)

    written = (finished.folder / "results.md").read_text()
    # Then come a repaired problem, if there is one, and what was found in words.
    headline = written.partition("\n\n**The problem that")[0].partition("\n- ")[0].rstrip()
    assert headline.count("**Avg@3 of each seed") == 1
    assert (folder / "results.md").read_text().startswith(headline)
    assert "Avg@3 by step" in said


def test_experiment_checkpoint_steps_follow_settings() -> None:
    cell = ExperimentRun("one", DEMO.changed("train", steps=25, checkpoint_every=10))
    assert cell.steps(every_checkpoint=True) == [10, 20, 25]
    assert cell.steps(every_checkpoint=False) == [25]


def test_experiment_repeated_command_changes_no_results(
    finished: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command, said = finished
    kept = ("results.jsonl", "tight", "loose", "evaluation")
    before = {name: value for name, value in bytes_in(folder).items() if name.startswith(kept)}
    assert main(command) == 0
    again = capsys.readouterr().out
    assert "nothing was trained or evaluated" in again
    assert "--output-dir" in again
    assert again[again.index("The demo") :] == said[said.index("The demo") :]
    after = {name: value for name, value in bytes_in(folder).items() if name.startswith(kept)}
    assert after == before


def test_experiment_deleted_results_are_rebuilt_and_corrupt_ones_refused(
    finished: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command, _ = finished
    path = folder / "results.jsonl"
    before, runs = path.read_bytes(), bytes_in(folder / "loose")
    path.write_bytes(b"{}\n" + before)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"{path} line 1: " in said
    assert "delete it, and the same command writes it again" in said
    assert path.read_bytes() == b"{}\n" + before
    path.write_bytes(before[:-30])  # as a kill leaves the last line
    assert main(command) == 0
    assert path.read_bytes() == before
    path.unlink()
    assert main(command) == 0
    assert path.read_bytes() == before
    assert bytes_in(folder / "loose") == runs


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (("\nsteps = 2", "\nsteps = 3"), [], "tight, seed 0, {}:\n  train.steps: 2 -> 3"),
        (("", ""), ["--samples", "4"], "base, seed 0, {}:\n  samples: 3 -> 4\n"),
    ],
)
def test_experiment_other_setting_in_same_folder_is_refused_with_difference(
    finished: Experiment, change: tuple[str, str], flags: list[str], message: str, capsys: Any
) -> None:
    folder, command, _ = finished
    recipe = Path(command[1])
    text = recipe.read_text()
    before = bytes_in(folder)
    recipe.write_text(text.replace(*change))
    try:
        assert main([*command, *flags]) == 2
    finally:
        recipe.write_text(text)
    error = capsys.readouterr().err
    assert f"{folder} holds {message.format('with other settings')}" in error
    assert "choose another place (--output-dir)" in error
    assert bytes_in(folder) == before


@pytest.mark.slow
def test_experiment_two_processes_share_experiment_and_survive_kill_of_one(
    finished: Experiment, tmp_path: Path
) -> None:
    folder, command, _ = finished
    shared = tmp_path / "shared"
    parts = [sys.executable, "-m", "paint.cli", *command, "--output-dir", str(shared)]
    with subprocess.Popen(parts, stdout=subprocess.PIPE, text=True) as first:
        until(lambda: (shared / "tight/seed-0/run.json").exists(), 120)
        first.send_signal(signal.SIGSTOP)  # or it would be through before it is killed
        with subprocess.Popen(parts, stdout=subprocess.PIPE, text=True) as second:
            until(lambda: (shared / "loose/seed-0/run.json").exists(), 120)
            first.kill()
            said, _ = second.communicate(timeout=300)
    assert second.returncode == 0
    assert not list(shared.glob(".lock-*"))
    assert "loose, seed 0" in said
    assert "tight, seed 0" in said
    assert_same_but_for_times(shared, folder)


DEMO, LARGE = (read_recipe(find_recipe(name)) for name in ("demo-paint", "paint-qwen3-1.7b"))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"one": DEMO, "base": DEMO}, "^base names two recipes, or is reserved"),
        ({"one": DEMO, "two": LARGE}, r"^model\.path of two is 'Qwen/Qwen3-1\.7B', .* one 'demo'"),
        (
            {"one": DEMO, "two": DEMO.changed("grading", grader=("exact",))},
            r"^grading\.grader of two is \('exact',\), and that of one \('math',\)",
        ),
    ],
)
def test_experiment_incomparable_runs_are_refused(
    cells: dict[str, Config], message: str, tmp_path: Path
) -> None:
    runs = [ExperimentRun(name, config) for name, config in cells.items()]
    with pytest.raises(ConfigError, match=r"^one names two recipes"):
        run_cells(tmp_path / "demo", DEMO, DEMO)
    with pytest.raises(ConfigError, match=message):
        run_experiment(runs, [0], tmp_path / "demo", protocol_for(DEMO, None, 2, 2), Display())
    assert not (tmp_path / "demo").exists()


def test_experiment_server_urls_do_not_count_as_other_setting(tmp_path: Path) -> None:
    before = DEMO.changed("rollout", engine="vllm", urls=("http://one:1",))
    after = before.changed("rollout", urls=("http://two:1",)).changed("train", steps=7)
    new_run(before, tmp_path / "one/seed-0", {"problems": "", "context": "", "model": {}})
    with pytest.raises(RunError, match=r"with other settings:\n  train\.steps: \d+ -> 7\nUse"):
        run_cells(tmp_path, after)


def test_by_run_results_of_other_problems_are_refused(finished: Experiment) -> None:
    first, second, third, *_ = read_results(finished.folder)
    with pytest.raises(RunError, match="tight, seed 0 was evaluated on other problems than base"):
        by_run([first, replace(second, problems=second.problems[::-1])])
    assert first.trained_on == ""
    assert len(second.trained_on) == 16
    with pytest.raises(RunError, match="loose, seed 0 was trained on other problems than tight"):
        by_run([first, second, replace(third, trained_on="0" * 16)])


@pytest.mark.slow
def test_experiment_stopped_and_killed_experiment_matches_undisturbed_one(tmp_path: Path) -> None:
    recipes = write_recipes(tmp_path, steps=12, learning_rate=1e-2)
    line = [sys.executable, "-m", "paint.cli", "demo"]
    line += [*recipes, "--output-dir", str(tmp_path / "killed"), *SMALL]
    killed = tmp_path / "killed"

    def start_until(path: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: path.exists() or process.poll() is not None, seconds=120)
        assert process.poll() is None, process.communicate()
        return process

    first = start_until(killed / "tight/seed-0/checkpoints/step-000002")
    first.send_signal(signal.SIGINT)
    _, error = first.communicate(timeout=60)
    assert first.returncode == 130
    assert error == "stopped in tight, seed 0, and saved; the same command resumes\n"

    second = start_until(killed / "loose/seed-0/checkpoints/step-000003")
    second.kill()
    second.communicate()
    assert [result.run for result in read_results(killed)] == ["base", "tight"]
    names = ("tight", "evaluation/seed-0/base", "evaluation/seed-0/tight")
    done = {name: bytes_in(killed / name) for name in names}

    third = subprocess.run(line, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert "2 of 3 are in" in third.stdout
    assert "tight, seed 0" not in third.stdout.partition("The demo")[0]
    assert {name: bytes_in(killed / name) for name in done} == done

    assert main(["demo", *recipes, "--output-dir", str(tmp_path / "undisturbed"), *SMALL]) == 0
    assert_same_but_for_times(killed, tmp_path / "undisturbed")
    base, tight, _ = read_results(tmp_path / "undisturbed")
    assert base.right != tight.right  # it learnt, or broke: equal results say something
    adapter = "loose/seed-0/checkpoints/step-000012/adapter/adapter_model.safetensors"
    assert (killed / adapter).read_bytes() == (tmp_path / "undisturbed" / adapter).read_bytes()


def test_protocol_of_model_is_paper_evaluation_with_recipe_engine(tmp_path: Path) -> None:
    problems = tmp_path / "copy.jsonl"
    # As many rows as AIME 2024 has, of which the first is used.
    rows = [f'{{"problem": "1+{i}?", "answer": "{1 + i}"}}\n' for i in range(30)]
    problems.write_text("".join(rows))
    config = Config(model=ModelConfig(path="some/model"))
    config = config.changed("rollout", engine="vllm", urls=("http://node:1",), batch_size=48)
    exam = protocol_for(config, f"aime_2024={problems}", 1, 12)
    paper = {"temperature": 1.0, "top_p": 0.95, "top_k": -1, "max_new_tokens": 38_912}
    facts = {"benchmark": "aime_2024", "problems": 1, "samples": 12, "thinking": True}
    assert exam.table.items() >= (facts | paper).items()
    rollout = exam.rollout
    assert (rollout.engine, rollout.urls, rollout.batch_size) == ("vllm", ("http://node:1",), 48)

    # Problems that are no published benchmark are sampled as the recipe trains.
    own = protocol_for(config, str(problems), 1, 12).table
    trained = {"thinking": False, "temperature": 1.1, "top_k": 20, "max_new_tokens": 1024}
    assert own.items() >= trained.items()
