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
GOOD = {"compare": "demo-paint", "doctor": "", "demo": ""}
"""Words that are right, where a recipe is read before the flags."""

# What the shell calls otherwise than Python, or has alone.
OF_THE_SHELL = {"yes": "confirm", "model.path": "model", "data.path": "data"}
SHELL_ONLY = {"json", "verbose"}


def ends_with_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(line.split()) == 2, line
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    assert not set("╭│╰") & set(said)
    return said


def recipe_words(name: str) -> str:
    """The words of a command with a recipe that is there in place of a missing one."""
    return GOOD.get(name, WORDS[name].replace("nowhere.toml", "demo-paint"))


def test_every_command_has_words() -> None:
    assert WORDS.keys() >= COMMANDS.keys()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_misspelt_flag_ends_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = max(flags_of(COMMANDS[name]) or ["x"], key=len).replace("_", "-")
    for flag in (f"{longest}x", longest[:-1], longest.replace("-", "").replace("e", "", 1)):
        if flag in flags_of(COMMANDS[name]):
            continue
        said = ends_with_one_line(f"{name} {recipe_words(name)} --{flag} 1", capsys)
        assert f"unknown flag --{flag}" in said
        if len(longest) > 6:
            assert "did you mean " in said


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in ("doctor",)])
def test_command_missing_file_ends_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ends_with_one_line(f"{name} {WORDS[name]}", capsys)
    assert "nowhere" in said


@pytest.mark.parametrize(
    "name", [n for n in COMMANDS if "nowhere.toml" in WORDS[n] and n != "doctor"]
)
def test_command_misspelt_key_of_recipe_ends_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.toml").write_text("[train]\nstepss = 3\n")
    said = ends_with_one_line(f"{name} {WORDS[name].replace('nowhere', 'mine')}", capsys)
    assert "unknown key train.stepss; did you mean train.steps?" in said


@pytest.mark.parametrize("word", ["trian", "evall", "resum", "shw", "plann"])
def test_command_misspelt_name_ends_in_one_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean" in ends_with_one_line(f"{word} x", capsys)


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
