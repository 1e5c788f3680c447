"""Commands: one file each, the same from Python and from the command line."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

import paint
from paint import commands
from paint.cli import main
from paint.cli.main import COMMANDS
from paint.cli.parser import flags_of, read_line, settings_type
from paint.commands.evaluate import _configured
from paint.config.recipe import differences, find_recipe, read_recipe
from paint.core.demo_files import problems_path
from paint.core.errors import ConfigError
from paint.resolve.check import check_config
from runs import Sections, adapter, assert_same, changed, parse, rows_of, write_problems

Capture = pytest.CaptureFixture[str]

COUNT = '''
"""``paint count``."""

from pathlib import Path

from paint.commands.api.arguments import Count


def count(file: str | Path, *, times: Count = 1) -> int:
    """Count the lines of a file.

    Example: paint count notes.txt

    Args:
        file: The file.
        times: Factor.
    """
    return times * len(Path(file).read_text().splitlines())


def report(lines: int) -> str:
    """The text that the command line prints."""
    return f"{lines} lines"
'''


def test_command_of_one_file_is_on_both_faces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    (tmp_path / "notes.txt").write_text("a\nb\n")
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    notes = str(tmp_path / "notes.txt")
    assert paint.count(notes, times=3) == 6  # type: ignore[attr-defined]
    found = commands.load_commands()
    line = read_line(found["count"], ["count", notes, "--times", "2"])
    assert line.call() == 4
    assert found["count"].report is not None
    assert found["count"].report(4) == "4 lines"
    monkeypatch.delitem(sys.modules, "paint.commands.count")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paint.bake("rules.md", [], patience=0), "patience must be at least 1"),
        (lambda: paint.train("demo-paint", gpus=-1), "gpus must be at least 0, got -1"),
        (lambda: paint.advise("demo-paint", samples=1), "samples must be in"),
        (lambda: paint.compare("demo-paint", seeds=cast("int", "2")), "seeds must be an integer"),
    ],
)
def test_argument_out_of_its_range_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("name", COMMANDS)
def test_parameters_and_settings_of_a_command_are_flags(name: str) -> None:
    command = COMMANDS[name]
    settings = settings_type(command)
    flags = {flag.target.partition(".")[0]: flag for flag in flags_of(command).values()}
    for parameter in inspect.signature(command.function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert all(field.name in flags for field in fields(settings))
        else:
            assert parameter.name in flags
    assert getattr(paint, command.function.__name__) is command.function


def test_refusals_without_model_do_not_import_torch(tmp_path: Path) -> None:
    lacking = write_problems(tmp_path / "lacking.jsonl", [{"problem": "1 + 1?", "answer": "2"}])
    good = {"problem": "1 + 1?", "solution": "2", "answer": "2"}
    late = write_problems(tmp_path / "late.jsonl", [good] * 150 + [{"problem": "1 + 1?"}])
    begun = tmp_path / "begun" / "run.json"
    begun.parent.mkdir()
    begun.write_text("{}")
    lines = [
        "train demo-paint --train.steps 0",
        "train demo-paint --data.path nowhere.jsonl",
        f"train demo-paint --data.path {lacking}",
        "train demo-paint --validation.path nowhere.jsonl",
        "compare demo-paint --data.path nowhere.jsonl",
        "eval demo --benchmarks nowhere.jsonl",
        "data validate nowhere.jsonl demo-paint",
        "resume nowhere",
        "export nowhere out",
        "show nowhere",
        "eval nowhere/at/all",
        f"train demo-paint --data.path {late}",
        f"train demo-paint --output-dir {begun.parent}",
    ]
    code = (
        f"import sys; from paint.cli import main\n"
        f"for line in {lines!r}:\n"
        f"    assert main(line.split()) == 2, line\n"
        f"    assert not {{'torch', 'transformers'}} & set(sys.modules), line"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr


def test_config_names_source_of_each_value() -> None:
    found = paint.show_config("demo-paint", data={"limit": 5}, train={"steps": 2})
    recipe = read_recipe(find_recipe("demo-paint"))
    assert found["train"]["steps"] == {"value": 2, "source": "given"}
    assert found["data"]["limit"] == {"value": 5, "source": "given"}
    assert found["model"]["lora_rank"] == {"value": recipe.model.lora_rank, "source": "recipe"}
    assert found["train"]["seed"] == {"value": 0, "source": "default"}


def test_config_of_machine_names_what_auto_becomes() -> None:
    found = paint.show_config("demo-paint", rollout={"engine": "auto"}, machine=True)
    assert found["rollout"]["engine"] == {"value": "local", "source": "machine"}


@pytest.mark.parametrize("recipe", ["demo-paint", "demo-grpo-long", "sipo"])
def test_config_command_prints_recipe_of_the_same_config(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [recipe, "--train.steps", "2", "--prompts.student", 'say "a" \\pi é {{ problem }}']
    assert main(["config", *line]) == 0
    (tmp_path / "same.toml").write_text(capsys.readouterr().out)
    assert read_recipe(tmp_path / "same.toml") == parse(["train", *line]).config
    lines = (tmp_path / "same.toml").read_text().splitlines()
    assert ["steps", "=", "2", "#", "given"] in [line.split() for line in lines]


TINY: Sections = {
    "model": {"path": "demo"},
    "data": {"path": "demo", "limit": 8},
    "rollout": {"max_new_tokens": 8},
    "train": {"steps": 1, "batch_size": 8},
}
OF_A_RUN: dict[str, tuple[str, Sections]] = {
    "demo-paint": ("demo-paint", {"context": {"source": ["solution", "other"]}}),
    "demo-grpo": ("demo-grpo", {"train": {"options": {"kl": 0.1}}, "log": {"token_rows": "all"}}),
    "several sources": ("demo-opsd", {"data": {"path": ["a.jsonl", "b.jsonl"], "weights": [1, 2]}}),
}


@pytest.mark.parametrize(("recipe", "own"), OF_A_RUN.values(), ids=OF_A_RUN)
def test_config_of_run_is_a_recipe_of_its_resolved_settings(
    recipe: str, own: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of(Path(problems_path("demo")))
    write_problems(Path("a.jsonl"), rows[:8])
    write_problems(Path("b.jsonl"), rows[8:16])
    run = paint.train(changed(recipe, TINY, own), output_dir="runs/first")
    capsys.readouterr()
    assert main(["config", "runs/first"]) == 0
    Path("again.toml").write_text(capsys.readouterr().out)
    again = check_config(read_recipe("again.toml")).config
    assert differences(run.config, again) == ['log.name: "first" -> None']
    assert paint.show_config(run) == paint.show_config("runs/first")
    if recipe == "demo-paint":
        assert main(["train", "again.toml", "--log.name", "second"]) == 0
        assert_same(adapter(run.path), adapter(Path("runs/second")))
    assert main(["train", "runs/first"]) == 2
    assert "paint config runs/first" in capsys.readouterr().err


def test_train_says_what_differs_from_recipe_and_calls_a_callback_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code = "import paint\nclass Stop(paint.Callback):\n"
    code += "    def on_step(self, step, metrics, rollouts):\n        return True\n"
    (tmp_path / "stopping.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    line = ["train", "demo-paint", "--train.batch-size", "2", "--rollout.max-new-tokens", "4"]
    assert main([*line, "-v", "--callbacks", "stopping:Stop", "--output-dir", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [note] = [line for line in lines if line.startswith("not as in")]
    assert "train.batch_size: " in note
    assert "log." not in note
    [step] = [line for line in lines if line.startswith("step 1/")]
    assert "KL to target" in step  # -v shows all metrics, not four
    assert paint.load_run("run").steps == [1]
    with pytest.raises(ConfigError, match="nowhere cannot be imported"):
        paint.train("demo-paint", callbacks=["nowhere:Stop"])


def test_evaluate_settings_take_functions_by_their_names() -> None:
    sections = {"grading": {"grader": says_yes}, "conversation": {"tools": [says_yes]}}
    found = _configured("demo", sections)
    assert found.grading.grader == found.conversation.tools == (f"{__name__}:says_yes",)


def says_yes(completion: str) -> float:
    """Rate a completion.

    Args:
        completion: its text.
    """
    return float("yes" in completion)
