"""Values of flags: switches with a value, and closed lists with the nearest choice."""

import dataclasses
import sys
from typing import Annotated, Literal

import pytest
from tyro.conf import arg

from paint.cli.flag_values import with_plain_values
from paint.cli.main import COMMANDS, main, parse
from paint.core.errors import ConfigError


@dataclasses.dataclass
class Inner:
    fast_mode: bool = True
    kind: Literal["frozen", "ema"] = "ema"
    text: str = ""


@dataclasses.dataclass
class Outer:
    confirm: Annotated[bool, arg(name="yes")] = False
    controls: tuple[Literal["none", "other"], ...] = ()
    inner: Inner = dataclasses.field(default_factory=Inner)
    config: Annotated[Inner, arg(name="")] = dataclasses.field(default_factory=Inner)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--yes", "--yes"),
        ("--yes=True --inner.kind ema", "--yes --inner.kind ema"),
        ("--yes=false", "--no-yes"),
        ("--inner.fast-mode=False", "--inner.no-fast-mode"),
        ("--inner.fast_mode False name", "--inner.no-fast_mode name"),
        ("--fast-mode TRUE", "--fast-mode"),
        ("--controls none other --yes", "--controls none other --yes"),
        ("--kind=frozen a --inner.text --yes=1x", None),
        ("recipe --inner.text=False", "recipe --inner.text=False"),
    ],
)
def test_with_plain_values_reads_switches_with_a_value(line: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="--yes is a switch"):
            with_plain_values(Outer, line.split())
        return
    assert with_plain_values(Outer, line.split()) == expected.split()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--inner.kind emma", 'must be one of frozen, ema, got "emma"; did you mean ema'),
        ("--kind=frozne", "did you mean frozen"),
        ("--controls none othr", '--controls must be .* got "othr"; did you mean other'),
        ("--kind zzz", 'got "zzz"$'),
    ],
)
def test_with_plain_values_names_the_nearest_choice(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_plain_values(Outer, line.split())


def test_parse_switch_with_a_value_sets_it() -> None:
    words = "train demo-paint --model.teacher-thinking=True --model.student-thinking=False"
    config = parse(words.split()).options.config
    assert (config.model.teacher_thinking, config.model.student_thinking) == (True, False)


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ("--context.source solutoin", "did you mean solution?"),
        ("--grading.grader maht", "did you mean math?"),
        ("--train.optimizer adam", "did you mean adamw?"),
        ("--objective.divergence revers_kl", "did you mean reverse_kl?"),
        ("--teacher.weights emma", "did you mean ema?"),
        ("--log.trackers wandbb", "did you mean wandb?"),
    ],
)
def test_misspelt_name_of_a_closed_list_has_a_hint(
    flags: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "demo-paint", *flags.split()]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("line", ["eval demo", "advise demo-paint", "data openthoughts out.jsonl"])
def test_interrupted_command_that_continues_says_so(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["paint.cli.main"], "_call", interrupt)
    assert main(line.split()) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command continues\n")
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "paint doctor: interrupted\n"


def test_commands_that_continue_are_those_of_the_documents() -> None:
    assert {name for name, command in COMMANDS.items() if command.continues} == {
        "advise",
        "bake",
        "compare",
        "data openthoughts",
        "demo",
        "eval",
    }
