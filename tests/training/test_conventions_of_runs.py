"""A model's conventions in runs and evaluations: the date, the printed line, how references end."""

import json
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_templates import TEMPLATES
from paint.cli import main
from paint.config.run_folder import read_run, read_run_json
from paint.config.schema import Config, ModelConfig
from paint.core.display import Display
from paint.evaluation.generate import with_date
from paint.lab.eval_protocols import protocol_for
from paint.lab.runner import ExperimentRun, run_experiment
from paint.models.policy import load_policy, load_tokenizer
from runs import changed, small_run, stored, train

FIRST, SECOND = "2024-02-03", "2024-02-09"
SMALL = small_run(
    16, limit=20, at_once=4, steps=1, batch_size=4, micro_batch_size=4, checkpoint_every=1
)


def model_with(template: str, folder: Path) -> str:
    """Write a template into a copy of the demo's model; return the copy's path."""
    (folder / "chat_template.jinja").write_text(TEMPLATES[template])
    return str(folder)


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the current day."""

    def set_day(text: str) -> None:
        calendar = SimpleNamespace(today=lambda: date.fromisoformat(text))
        monkeypatch.setattr("chatforms.conventions.date", calendar)

    return set_day


def small(path: str, recipe: str = "demo-paint", **sections: dict[str, Any]) -> Config:
    return changed(recipe, SMALL, {"model": {"path": path}}, sections)


def prompts_of(run: Path, path: str, step: int = 1) -> list[str]:
    tokenizer = load_tokenizer(path)
    return [str(tokenizer.decode(row["prompt_ids"])) for row in stored(run, step)]


def asked(folder: Path) -> dict[str, Any]:
    """The settings of an evaluation by policy."""
    paths = folder.glob("*/*/demo/settings.json")
    return {path.parts[-3]: json.loads(path.read_text()) for path in paths}


def test_run_template_with_clock_keeps_its_date_when_resumed_and_evaluated(
    demo_copy: Path, tmp_path: Path, day: Any
) -> None:
    path, run = model_with("DATED", demo_copy), tmp_path / "run"
    day(FIRST)
    train(small(path), run)
    day(SECOND)
    train(small(path, train={"steps": 2}), run, resume=True)
    for step in (1, 2):
        assert all("03 Feb 2024" in text for text in prompts_of(run, path, step))
    assert read_run(run).model.date == FIRST
    assert read_run_json(run)["conventions"]["date"] == FIRST
    other = load_policy(read_run(run).model, seed=0)
    assert other.conventions.date == FIRST

    flags = ["--benchmarks", "demo", "--no-thinking", "--rollout.max-new-tokens", "4"]
    flags += ["--limit", "2", "--samples", "1", "--output-dir", str(tmp_path / "evals")]
    assert main(["eval", str(run), *flags]) == 0
    dates = {name: table["date"] for name, table in asked(tmp_path / "evals").items()}
    assert dates == dict.fromkeys(("base", "run-step-000001", "run-step-000002"), FIRST)


def test_evaluation_continued_on_another_day_keeps_its_date(
    demo_copy: Path, tmp_path: Path, day: Any
) -> None:
    path = model_with("DATED", demo_copy)
    flags = ["eval", path, "--benchmarks", "demo", "--no-thinking", "--limit", "2"]
    flags += ["--rollout.max-new-tokens", "4", "--output-dir"]
    day(FIRST)
    assert main([*flags, str(tmp_path / "a"), "--samples", "1"]) == 0
    day(SECOND)
    assert main([*flags, str(tmp_path / "a"), "--samples", "2"]) == 0
    assert main([*flags, str(tmp_path / "b"), "--samples", "1"]) == 0
    assert asked(tmp_path / "a")["base"]["date"] == FIRST
    assert asked(tmp_path / "a")["base"]["conventions"]["date"] == FIRST
    assert asked(tmp_path / "b")["base"]["date"] == SECOND

    model = ModelConfig(path=path)
    assert with_date(model, tmp_path / "a").date == FIRST
    assert with_date(model, tmp_path / "c").date == SECOND
    assert with_date(ModelConfig(path=path, date="2020-01-01"), tmp_path / "a").date == "2020-01-01"
    assert with_date(ModelConfig(path="demo"), tmp_path / "a").date == "auto"


@pytest.mark.slow
def test_experiment_continued_on_another_day_has_one_date(
    demo_copy: Path, tmp_path: Path, day: Any
) -> None:
    path = model_with("DATED", demo_copy)
    protocol = protocol_for(small("demo"), None, problems=2, samples=1)
    for today, names in ((FIRST, ["a"]), (SECOND, ["a", "b"])):
        day(today)
        runs = [ExperimentRun(name, small(path)) for name in names]
        run_experiment(runs, [0], tmp_path, protocol, Display(enabled=False))
    assert read_run(tmp_path / "b/seed-0").model.date == FIRST
    dates = {json.loads(p.read_text())["date"] for p in tmp_path.rglob("settings.json")}
    assert dates == {FIRST}


def test_sft_prompt_that_opens_a_thought_closes_it_and_says_so(
    demo_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = model_with("QWEN3_THINKING", demo_copy), tmp_path / "run"
    train(small(path, "demo-sft", model={"student_thinking": False, "path": path}), run)
    said = " ".join(capsys.readouterr().out.split())
    policy = load_policy(read_run(run).model, seed=0)
    assert policy.conventions.line() in said
    assert "thinking cannot be switched off: the chat template opens <think>" in said
    assert read_run_json(run)["conventions"] == policy.conventions.table()
    for row in stored(run):
        text = policy.decode(row["completion_ids"], special=True)
        assert text.startswith("\n</think>\n\n")
        assert text.endswith("<|im_end|>")
        assert policy.decode(row["prompt_ids"], special=True).endswith("<think>\n")
