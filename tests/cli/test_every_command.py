"""What every command does alike: it ends with one line on what is misspelt or missing."""

import inspect
from pathlib import Path

import pytest

from paint.cli import main
from paint.cli.main import COMMANDS
from paint.cli.parser import flags_of, settings_type
from paint.cli.reader import setting_flags
from paint.commands import parameters_of

# The words before the flags, of what is missing.
WORDS = {
    "advise": "nowhere.toml",
    "bake": "nowhere.md nowhere.jsonl demo-bake",
    "compare": "nowhere.toml",
    "config": "nowhere.toml",
    "data validate": "nowhere.jsonl demo-paint",
    "demo": "nowhere",
    "doctor": "nowhere.toml",
    "eval": "nowhere/model",
    "export": "nowhere out",
    "grade": "nowhere",
    "held-out-kl": "nowhere nowhere.jsonl",
    "plan": "nowhere.toml",
    "resume": "nowhere",
    "runs": "nowhere",
    "serve": "nowhere.toml",
    "show": "nowhere",
    "train": "nowhere.toml",
}

# What the shell calls otherwise than Python, or has alone.
OF_THE_SHELL = {"yes": "confirm", "model.path": "model", "data.path": "data"}
SHELL_ONLY = {"json", "verbose"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "doctor"])
def test_command_missing_file_ends_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{name} {WORDS[name]}".split()) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    assert "nowhere" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_arguments_of_the_function_by_the_same_names(name: str) -> None:
    command = COMMANDS[name]
    arguments = set(inspect.signature(command.function).parameters)
    settings = settings_type(command.function)
    of_sections = setting_flags(settings) if settings else {}
    for flag in flags_of(command):
        section = flag.partition(".")[0]
        is_named = OF_THE_SHELL.get(flag, flag) in arguments or section in arguments
        assert is_named or flag in of_sections or flag in SHELL_ONLY, flag
    assert len(parameters_of(command.function)) == len(arguments)
