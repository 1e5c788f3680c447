"""A word that is no value of its flag is refused by the flag's name."""

import pytest

from paint.cli.main import main, parse
from paint.core.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.liger=none"], '--model.liger is a switch, got "none"'),
        (["--model.liger", "none"], '--model.liger is a switch, got "none"; write'),
        (["--model.no-liger", "1"], "write --model.liger or --model.no-liger"),
        (["--rollout.colocate=3"], '--rollout.colocate is a switch, got "3"'),
        (["--train.steps", "3", "4"], '--train.steps takes one value, got "4" after it, too'),
        (
            ["--train.steps", "1_0"],
            '--train.steps must be a number in the digits 0 to 9, got "1_0"',
        ),
        (["--objective.clip=\uff10\uff11"], "--objective.clip must be a number in the digits"),
        (["--log.token-rows", "1_0"], "--log.token-rows must be a number in the digits"),
        (["--grading.weights", "1", "\u0662"], "--grading.weights must be a number in the digits"),
        (["--gpus", "1_0"], "--gpus must be a number in the digits"),
        (["--train.method", "grpo", "--train.options.kl", "1_0"], "--train.options.kl must be"),
    ],
)
def test_word_that_is_no_value_is_refused_by_its_flag(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["train", "demo-paint", *words])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-steps", "3"], "--max-steps is --train.steps here"),
        (["--train.lr=1e-5"], "--train.lr is --train.learning-rate here"),
        (["--num_generations", "8"], "--num_generations is --rollout.samples-per-problem here"),
    ],
)
def test_flag_by_another_librarys_name_is_refused_with_its_own(
    words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["train", "demo-paint", *words])
    assert str(caught.value) == message


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
    assert parse(["show", "--no-open", "runs/1_0"]).options.targets == (("runs/1_0",),)
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
