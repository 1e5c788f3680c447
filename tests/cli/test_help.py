"""--help of every verb, its example, and shell completion."""

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from paint.cli import main
from paint.cli.main import COMMANDS
from paint.config.schema import Config
from paint.core.extensions import OptionTable
from runs import parse


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main([*verb.split(), "--help"]) == 0
    return capsys.readouterr().out


def example_of(verb: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The arguments of the one example in a verb's --help."""
    [line] = re.findall(r"^Example: paint (.*)$", help_of(verb, capsys), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_example_is_valid_command(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = example_of(verb, capsys)
    assert parse(example).command is COMMANDS[verb]


CHEAP = "train resume show export runs doctor eval grade plan advise"


@pytest.mark.slow
def test_help_cheap_examples_run_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in [*CHEAP.split(), "data validate"]:
        assert main(example_of(verb, capsys)) == 0, verb
    checkpoints = sorted(path.name for path in Path("runs/first/checkpoints").glob("step-*"))
    assert checkpoints == ["step-000002", "step-000004"]
    assert Path("exported/first/model.safetensors").exists()
    assert Path("runs/first/show.html").stat().st_size > 10_000
    assert Path("evals/demo/summary.json").exists()
    assert Path("advice/demo-paint/summary.json").exists()


def test_help_shows_defaults_of_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    def default_of(verb: str, flag: str) -> str:
        text = " ".join(help_of(verb, capsys).split())
        found = re.search(rf" {flag} [A-Z]+ .*?\(default: (.*?)\)", text)
        assert found
        return found[1]

    assert default_of("train demo-paint", "--train.steps") == "40"
    assert default_of("train", "--train.steps") == "100"
    assert default_of("compare demo-grpo demo-paint", "--model.path") == "demo"
    assert default_of("compare ablations/mask-placement", "--context.mask-ratio-wrong") == "0.3"
    assert default_of("compare ablations/mask-ratio", "--context.mask-ratio-wrong") == "0.0"
    assert default_of("eval", "--rollout.max-new-tokens") == "38912"


def test_help_does_not_import_torch() -> None:
    lines = [["--help"], *([*verb.split(), "--help"] for verb in COMMANDS), ["data", "--help"]]
    code = (
        f"import sys; from paint.cli import main; assert not any(map(main, {lines}));"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_help_explains_each_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("train", capsys)
    for section in fields(Config):
        for field in fields(getattr(Config(), section.name)):
            if field.type is not OptionTable:
                flag = f"--{section.name}.{field.name}".replace("_", "-")
                entries = re.findall(
                    rf"^  {flag}[ ,].*?\(default: ", text, re.MULTILINE | re.DOTALL
                )
                assert [len(entry.split()) > 4 for entry in entries] == [True], flag


@pytest.mark.slow
def test_completion_of_the_page_offers_verbs_and_flags(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/getting-started/install.md").read_text()
    [script] = re.findall(r"```bash\n(_paint\(\).*?)```", page, re.DOTALL)
    program = tmp_path / "paint"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paint.cli "$@"\n')
    program.chmod(0o755)

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(map(shlex.quote, words))
        complete = (
            f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
            f'_paint paint {shlex.quote(words[-1])}; printf "%s\n" "${{COMPREPLY[@]}}"'
        )
        path = f"{tmp_path}:/usr/bin:/bin"
        found = subprocess.run(["bash", "-c", complete], capture_output=True, env={"PATH": path})
        return found.stdout.decode().split()

    assert offered("paint res") == ["resume"]
    assert "--train.steps" in offered("paint train demo-paint --train.st")
    assert "--grading.deadline" in offered("paint grade runs/a --grading.de")
