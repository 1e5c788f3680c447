"""Commands in documents parse, and Python blocks run, on the demo in place of other models."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import matplotlib
import pytest
import torch

import paint
from paint.config.recipe import find_recipe, from_table, read_recipe, shipped_recipes
from paint.config.schema import PAPER_PROMPTS, Config
from paint.core.demo_files import HELD_OUT_PROBLEMS, MODEL
from paint.resolve.check import cautions_of, check_config
from runs import parse, tight_and_loose

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
# The experiment log has commands of their day.
COMMANDS = [
    pytest.param(command, id=f"{document.stem}-{command[:60]}")
    for document in DOCUMENTS
    if document.name != "log.md"
    for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.M | re.S)
    for command in re.findall(
        r"^(?:\$ |\w+=\S+ |\.venv/bin/)*"
        r"(?:paint|python -m paint\.training\.torchrun --nproc-per-node \d+) ([a-z].*)",
        block.replace("\\\n", " "),
        re.M,
    )
]

# Tests of their own run these; the reference has signatures.
OTHERS = ("notebook.md", "extend.md", "forgetting.md", "python-api.md", "log.md")
BLOCKS = [
    pytest.param(block, id=document.stem)
    for document in DOCUMENTS
    if document.name not in OTHERS
    for block in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_documented_command_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/extensions")
    monkeypatch.syspath_prepend(ROOT / "examples")
    # Recipes that the reader writes stand for any other, and so do runs that are read as one.
    recipe = r"(?<![\w/-])(RECIPE|[\w-]+\.toml)(?= |$)|(?<=^config )runs/\w+"
    command = re.sub(recipe, "demo-paint", command)
    parse(shlex.split(command.partition(" > ")[0], comments=True))


def test_table_of_forgetting_pairs_the_rows_of_lm_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/how-to/forgetting.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    metrics = {"ifeval": "prompt_level_strict_acc", "hellaswag": "acc_norm"}
    for name, right in (("base", 30), ("trained", 10)):
        folder = tmp_path / "forgetting" / name / "model"
        folder.mkdir(parents=True)
        for task, metric in metrics.items():
            rows = [{"doc_id": i, metric: float(i < right)} for i in reversed(range(40))]
            text = "\n".join(map(json.dumps, rows))
            (folder / f"samples_{task}_2026-11-27T18-22-53.671708.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        [t, "75.0%", "25.0%", "-50.0%"] for t in metrics
    ]
    assert re.search(r"\(-6\d\.\d% to -3\d\.\d%\)$", lines[0])


def test_documented_commands_are_found() -> None:
    assert len(COMMANDS) > 70


RECIPES = [
    *(pytest.param(read_recipe(find_recipe(name)), id=name) for name in shipped_recipes()),
    *(
        pytest.param(from_table(tomllib.loads(block)), id=f"{document.stem}-{number}")
        for document in DOCUMENTS
        for number, block in enumerate(
            re.findall(r"^```toml\n(.*?)^```", document.read_text(), re.M | re.S)
        )
        if "reward_weighted:" not in block  # an extension that the page writes
    ),
]


@pytest.mark.parametrize("config", RECIPES)
def test_recipe_of_ours_is_not_warned_of(config: Config) -> None:
    run = check_config(config)
    assert list(cautions_of(run)) == []
    # D9: where the prompts are not the paper's, both views read one chat template.
    if run.algorithm.needs_context and config.prompts != PAPER_PROMPTS:
        assert config.model.teacher_thinking == config.model.student_thinking


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_documented_python_block_runs(
    block: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib.use("Agg")
    (tmp_path / "runs").mkdir()
    for name in ("first", "demo-paint"):
        (tmp_path / "runs" / name).symlink_to(run)
    shutil.copy(HELD_OUT_PROBLEMS, tmp_path / "validation.jsonl")
    monkeypatch.chdir(tmp_path)
    hidden = torch.randn(5, 4, requires_grad=True)
    names = {
        "paint": paint,
        "lengths": [2, 3],
        "lm_head": torch.randn(7, 4),
        "student_hidden": hidden,
        "teacher_hidden": torch.randn(5, 4),
        "student_logits": hidden @ torch.randn(4, 7),
        "teacher_logits": torch.randn(5, 7),
    }
    short = tight_and_loose(tmp_path, {"train": {"steps": 2}})
    small = {
        "Qwen/Qwen3-1.7B": str(MODEL),
        "step-000100": "step-000003",
        '["demo-opsd", "demo-paint"]': repr(short),
        '"steps": 10': '"steps": 2',
        'output_dir="runs/mine"': 'output_dir="runs/mine", train={"steps": 2}',
        "samples=4": "samples=1",
    }
    for given, replacement in small.items():
        block = block.replace(given, replacement)
    exec(block, names)
