"""Words of a line: each is a value of its flag, or refused by the flag's or the setting's name."""

import sys
from operator import attrgetter

import pytest

from paint.cli.main import main
from runs import parse

REFUSED = {
    "--model.liger=none": ["model.liger", '"none"', "true or false"],
    "--model.liger none": ['"none" is one value too many'],
    "--train.steps 3 4": ['"4" is one value too many'],
    "--train.steps": ["--train.steps", "needs a value"],
    "--train.steps 1_0": ["train.steps", '"1_0"', "an integer"],
    "--train.steps 1e3": ["train.steps", '"1e3"', "an integer"],
    "--objective.clip=\uff10\uff11": ["objective.clip", "a number"],
    "--objective.clip nan": ["objective.clip", '"nan"', "a number"],
    "--grading.weights 1 \u0662": ["grading.weights", "a number"],
    "--train.method grpo --train.options.kk 1": ["train.options.kk", "there are clip, kl"],
    "--max-steps 3": ["--max-steps", "train.steps here"],
    "--train.lr=1e-5": ["--train.lr", "train.learning_rate here"],
    "--teacher.weights emma": ["teacher.weights", '"emma"', "did you mean ema?"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_word_that_is_no_value_is_refused_by_name_and_value(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "demo-paint", *line.split()]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    for part in REFUSED[line]:
        assert part in said


@pytest.mark.parametrize(
    "words", ["--model.liger=False", "--model.liger false", "--model.no-liger"]
)
def test_switch_with_a_value_is_read(words: str) -> None:
    assert not parse(["train", "demo-paint", *words.split()]).config.model.liger
    on = parse(["train", "--model.liger=TRUE", "demo-paint"])
    assert on.config.model.liger


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ("--rollout.urls http://a http://b_1 --gpus 2", "rollout.urls", ("http://a", "http://b_1")),
        ("--grading.weights -1 2 --grading.grader math exact", "grading.weights", (-1.0, 2.0)),
        ("--model.gradient-checkpointing True", "model.gradient_checkpointing", True),
    ],
)
def test_words_after_a_flag_are_its_values(words: str, path: str, value: object) -> None:
    config = parse(["train", "demo-paint", *words.split()]).config
    assert attrgetter(path)(config) == value


def test_words_of_parameters_are_read_by_their_types() -> None:
    assert parse(["show", "--no-open", "runs/1_0"]).parameters["targets"] == ("runs/1_0",)
    line = ["resume", "run", "--server-gpus", "cpu", "cpu", "--urls", "http://a", "--model.path=m"]
    given = {"run": "run", "server_gpus": ("cpu", "cpu"), "urls": ("http://a",), "model": "m"}
    assert parse(line).parameters == given


@pytest.mark.parametrize("line", ["eval demo", "advise demo-paint"])
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
