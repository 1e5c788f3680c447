"""Words of a line: each is a value of its flag, or refused by the flag's or the setting's name."""

import sys

import pytest

from paint.cli.main import COMMANDS, main, parse

REFUSED = {
    "--model.liger=none": ["model.liger", '"none"', "true or false"],
    "--model.liger none": ["--model.liger", '"none"'],
    "--model.no-liger=1": ["--model.no-liger", '"1"'],
    "--train.steps 3 4": ["--train.steps", '"4"'],
    "--train.steps": ["--train.steps", "needs a value"],
    "--train.steps --train.seed 1": ["--train.steps", "needs a value"],
    "--train.steps 1_0": ["train.steps", '"1_0"', "an integer"],
    "--train.steps 1e3": ["train.steps", '"1e3"', "an integer"],
    "--train.steps 0": ["train.steps", "at least 1", "got 0"],
    "--objective.clip=\uff10\uff11": ["objective.clip", "a number"],
    "--objective.clip nan": ["objective.clip", '"nan"', "a number"],
    "--log.token-rows 1_0": ["log.token_rows", '"1_0"'],
    "--grading.weights 1 \u0662": ["grading.weights", "a number"],
    "--gpus 1_0": ["--gpus", '"1_0"', "an integer"],
    "--train.method grpo --train.options.kl 1_0": ["train.options.kl", '"1_0"', "a number"],
    "--train.method grpo --train.options.kk 1": ["train.options.kk", "there are clip, kl"],
    "--max-steps 3": ["--max-steps", "train.steps here"],
    "--train.lr=1e-5": ["--train.lr", "train.learning_rate here"],
    "--num_generations 8": ["--num_generations", "rollout.samples_per_problem here"],
    "--train.stepss 8": ["--train.stepss", "did you mean train.steps?"],
    "--steps 8": ["--steps", "did you mean train.steps?"],
    "--teacher.weights emma": ["teacher.weights", '"emma"', "did you mean ema?"],
    "--log.trackers tensorboard wandbb": ["log.trackers", "wandbb", "did you mean wandb?"],
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
    assert not parse(["train", "demo-paint", *words.split()]).options.config.model.liger
    on = parse(["train", "--model.liger=TRUE", "demo-paint", "--yes"]).options
    assert (on.config.model.liger, on.confirm) == (True, True)


def test_values_and_positional_arguments_are_as_they_were() -> None:
    config = parse(
        ["train", "demo-paint", "--rollout.urls", "http://a", "http://b_1", "--gpus", "2"]
    )
    assert config.options.config.rollout.urls == ("http://a", "http://b_1")
    weights = ["--grading.weights", "-1", "2", "--grading.grader", "math", "exact"]
    assert parse(["train", "demo-paint", *weights]).options.config.grading.weights == (-1.0, 2.0)
    line = parse(
        ["train", "demo-paint", "--model.gradient-checkpointing", "True", "--model.no-liger"]
    )
    assert line.options.config.model.gradient_checkpointing is True
    assert not line.options.config.model.liger
    assert parse(["show", "--no-open", "runs/1_0"]).options.targets == ("runs/1_0",)
    resumed = parse(
        ["resume", "run", "--server-gpus", "cpu", "cpu", "--urls", "http://a", "http://b"]
    )
    assert resumed.options.server_gpus == ("cpu", "cpu")
    assert resumed.options.urls == ("http://a", "http://b")


@pytest.mark.parametrize("setting", ["data.path", "validation.path", "health.drift_path"])
def test_file_that_is_missing_is_refused_by_its_setting(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "demo-paint", f"--{setting}".replace("_", "-"), "2.0"]) == 2
    assert f"{setting}: 2.0 does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ("--context.source solutoin", "did you mean solution?"),
        ("--grading.grader maht", "did you mean math?"),
        ("--train.optimizer adam", "did you mean adamw?"),
        ("--objective.divergence revers_kl", "did you mean reverse_kl?"),
    ],
)
def test_misspelt_name_of_a_closed_list_has_a_hint(
    flags: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "demo-paint", *flags.split()]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


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


def test_commands_that_continue_are_those_of_the_documents() -> None:
    assert {name for name, command in COMMANDS.items() if command.continues} == {
        "advise",
        "bake",
        "compare",
        "demo",
        "eval",
    }
