"""Runs on several sources, the same to the bit when resumed elsewhere; and runs by epochs."""

import json
from pathlib import Path

import pytest

from paint.cli import main
from paint.commands.api.configure import with_sections
from paint.config.recipe import find_recipe, flags, from_table, read_recipe, to_table
from paint.config.run_folder import RunError, read_metrics, read_run
from paint.config.schema import Config
from paint.core.demo_files import HELD_OUT_PROBLEMS, TRAINING_PROBLEMS
from paint.core.display import Display
from paint.core.storage import read_jsonl
from paint.data.problems import Problem
from paint.resolve.check import check_config
from paint.training.opening import with_steps
from runs import (
    adapter,
    assert_same,
    assert_same_history,
    changed,
    parse,
    small_run,
    stored,
    train,
    write_problems,
)

SMALL = small_run(60, at_once=8, steps=2, batch_size=8, learning_rate=1e-4, checkpoint_every=1)


@pytest.mark.slow
def test_run_on_mixture_resumed_elsewhere_is_bitwise_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(read_jsonl(TRAINING_PROBLEMS, ""))[:20]
    (tmp_path / "moved").mkdir()
    # Without ids: both files have rows 1 to 5.
    for row in rows:
        del row["id"]
    parts = {"x": rows[:5], "y": rows[5:]}
    paths = [write_problems(tmp_path / f"{name}.jsonl", part) for name, part in parts.items()]
    held_out = list(read_jsonl(HELD_OUT_PROBLEMS, ""))
    sets = {"p": held_out[:2], "q": held_out[2:5]}
    own = [write_problems(tmp_path / f"{name}.jsonl", part) for name, part in sets.items()]
    config = changed("demo-paint", SMALL, {"data": {"path": paths, "weights": [3, 1]}})
    config = config.changed("validation", path=tuple(own), samples=1, max_new_tokens=16)
    one, other = tmp_path / "one", tmp_path / "other"
    train(config.changed("validation", path=""), one)  # which moves no weight
    train(config.changed("train", steps=1), other)
    for path in own:  # the run has copies
        Path(path).unlink()
    moved = [str(Path(path).rename(tmp_path / "moved" / Path(path).name)) for path in paths]
    line = ["resume", str(other), "--steps", "2"]
    assert main(line) == 2  # the files are elsewhere
    assert main([*line, "--data.path", *moved]) == 0
    assert_same(adapter(one), adapter(other))
    assert_same_history(one, other)
    assert read_run(other).data.weights == (3.0, 1.0)

    report = json.loads((other / "validation/summary.json").read_text())
    levels = {
        (row["policy"], row["benchmark"]): row["n"]
        for row in report["rows"]
        if row["metric"] == "avg_at_k" and not row["against"]
    }
    steps = [f"step-00000{step}" for step in range(3)]
    assert levels == {
        (step, name): n for step in steps for name, n in (("p", 2), ("q", 3), ("macro", None))
    }
    assert "after step 2, q: Avg@1" in capsys.readouterr().out

    for step, metrics in enumerate(read_metrics(other), start=1):
        rollouts = stored(other, step)
        assert [row["data_source"] for row in rollouts].count("x") == 6
        for name, of_source in (("x", 6), ("y", 2)):
            part = [row for row in rollouts if row["problem_id"].startswith(f"{name}/")]
            right = sum(row["correct"] for row in part) / len(part)
            assert metrics[f"sources/{name}/completions"] == len(part) == of_source
            assert metrics[f"sources/{name}/accuracy"] == pytest.approx(right)
        # Of completions that weigh the same, the step's KL is the mean of both.
        parts_of_kl = 6 * metrics["sources/x/kl"] + 2 * metrics["sources/y/kl"]
        assert metrics["kl"] == pytest.approx(parts_of_kl / 8)
    config = read_run(other).changed("data", path=tuple(moved))
    with pytest.raises(RunError, match=r"data\.weights"):
        train(config.changed("data", weights=(1.0, 1.0)), other, resume=True)
    write_problems(Path(moved[1]), parts["y"][1:])
    with pytest.raises(RunError, match=r"other problems than .*x\.jsonl"):
        train(config, other, resume=True)


@pytest.mark.slow
def test_train_by_epochs_is_a_run_of_their_steps(tmp_path: Path) -> None:
    line = ["train", "demo-paint", "--data.limit", "3", "--train.batch-size", "2"]
    line += ["--rollout.max-new-tokens", "8", "--log.folder", str(tmp_path)]
    assert main([*line, "--log.name", "epochs", "--train.epochs", "0.5"]) == 0
    assert main([*line, "--log.name", "steps", "--train.steps", "1"]) == 0
    one, other = tmp_path / "epochs", tmp_path / "steps"
    assert read_run(one).train == read_run(other).train  # ceil(0.5 * 3 / 2)
    assert_same(adapter(one), adapter(other))


@pytest.mark.parametrize(
    ("epochs", "count", "samples", "steps"),
    [(1.0, 30, 1, 4), (2.0, 32, 1, 8), (0.01, 30, 1, 1), (2.0, 30, 4, 30), (1.0, 3, 8, 3)],
)
def test_with_steps_draws_every_problem_as_often_as_epochs_say(
    epochs: float, count: int, samples: int, steps: int
) -> None:
    config = changed("demo-paint", {"train": {"batch_size": 8, "epochs": epochs}})
    run = check_config(config.changed("rollout", samples_per_problem=samples))
    problems = [Problem("", "", "", str(i)) for i in range(count)]
    found = with_steps(run, problems, Display(enabled=False)).config.train
    assert (found.steps, found.epochs) == (steps, None)
    drawn = steps * 8 // samples
    assert drawn - 8 // samples < epochs * count <= drawn


def test_steps_and_epochs_take_the_place_of_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "x.toml"
    recipe.write_text("[train]\nepochs = 2\nwarmup_steps = 200\n")
    assert read_recipe(recipe).train.epochs == 2
    line = ["config", str(recipe)]
    for words, given in (([], 2.0), (["--train.steps", "300"], None)):
        found = parse([*line, *words]).call()["train"]
        assert (found["epochs"]["value"], found["warmup_steps"]["value"]) == (given, 200)
    demo = read_recipe(find_recipe("demo-paint"))
    assert with_sections(demo, {"train": {"epochs": 2}}).train.epochs == 2
    by_epochs = demo.changed("train", epochs=2.0)
    assert with_sections(by_epochs, {"train": {"steps": 3}}).train.epochs is None
    assert from_table(to_table(by_epochs)) == by_epochs
    assert flags(by_epochs.changed("train", steps=3), demo) == ["--train.epochs=2.0"]
    assert main(["config", "demo-paint", "--train.epochs", "2"]) == 0
    recipe.write_text(capsys.readouterr().out)
    assert read_recipe(recipe) == by_epochs.changed("train", steps=Config().train.steps)
