"""Removed settings and flags are refused with what replaces them, and the replacements exist."""

import re

import pytest

from paint.algorithms.base import find_algorithm
from paint.cli import main
from paint.config.recipe import find_recipe, from_table, read_recipe, shipped_recipes, to_table
from paint.config.removed import (
    REMOVED_FLAGS,
    REMOVED_SETTINGS,
    REMOVED_VALUES,
    require_no_removed_flag,
)
from paint.config.schema import Config, ConfigError

FLAGS = [(command, flag) for command, flags in REMOVED_FLAGS.items() for flag in flags]


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_removed_setting_in_recipe_is_refused_with_successor(name: str) -> None:
    section, key = name.split(".")
    with pytest.raises(ConfigError, match=re.escape(REMOVED_SETTINGS[name])):
        from_table({section: {key: 1}})
    assert key not in to_table(Config()).get(section, {})


@pytest.mark.parametrize(("name", "value"), REMOVED_VALUES)
def test_removed_value_in_recipe_is_refused_with_successor(name: str, value: str) -> None:
    section, key = name.split(".")
    with pytest.raises(ConfigError, match=re.escape(REMOVED_VALUES[name, value])):
        from_table({section: {key: value}})


@pytest.mark.parametrize(("command", "flag"), FLAGS)
def test_removed_flag_is_refused_with_successor(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([f"--{flag}", "x"], [f"--{flag}=x"]):
        assert main([*command.split(), *words]) == 2
        assert REMOVED_FLAGS[command][flag] in capsys.readouterr().err


LINES = [
    ("train demo-paint --objective.wrong-weight 0", "train.options.wrong_weight"),
    ("train demo-paint --teacher.no-reason-first", "ReasonFirst"),
    ("train demo-paint --train.method mixed", "Rewarded"),
    ("plan demo-paint --rollout.engine=merged", '"local"'),
]


@pytest.mark.parametrize(("line", "successor"), LINES)
def test_removed_setting_on_command_line_is_refused_with_successor(
    line: str, successor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert successor in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["demo"], ["--json"], ["--train.method"], ["--train.method=sft"]]
)
def test_line_without_removed_flag_is_accepted(words: list[str]) -> None:
    require_no_removed_flag("doctor", words)


@pytest.mark.parametrize("command", REMOVED_FLAGS)
def test_replacements_of_flags_are_in_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    words = capsys.readouterr().out.split()
    for successor in REMOVED_FLAGS[command].values():
        assert not successor.startswith("--") or successor in words


def test_replacements_of_settings_exist() -> None:
    for successor in [*REMOVED_SETTINGS.values(), *REMOVED_VALUES.values()]:
        for recipe in re.findall(r"\(recipe ([\w-]+)\)", successor):
            assert recipe in shipped_recipes()
            algorithm = find_algorithm(read_recipe(find_recipe(recipe)).train)
            method = f"{type(algorithm).__module__}:{type(algorithm).__name__}"
            assert method in successor
            for option in re.findall(r"train\.options\.(\w+)", successor):
                assert hasattr(algorithm.options, option)
