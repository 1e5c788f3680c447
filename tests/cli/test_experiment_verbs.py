"""paint probe, demo and ablate: recipes, settings as flags, and refused settings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paint.cli import main
from paint.cli.main import parse


@pytest.mark.parametrize("verb", [["probe"], ["ablate", "mask-ratio"]])
def test_experiment_verbs_take_recipe_settings_as_flags(
    verb: list[str], tmp_path: Path, said: Callable[[], str]
) -> None:
    folder = str(tmp_path / "x")
    assert main([*verb, "demo-paint", "--rollout.nonsense", "1", "--folder", folder]) == 2
    assert "--rollout.nonsense" in said()
    # The recipe's own method is distillation: what is refused is what the flag says.
    assert main([*verb, "demo-paint", "--train.method", "sft", "--folder", folder]) == 2
    assert "sft" in said()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("flags", [["--train.seed", "7"], ["--log.name", "x"]])
def test_ablate_ignored_settings_are_refused(
    flags: list[str], tmp_path: Path, said: Callable[[], str]
) -> None:
    assert (
        main(["ablate", "mask-ratio", "demo-paint", *flags, "--folder", str(tmp_path / "x")]) == 2
    )
    assert "--folder, --seed and --seeds" in said()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--problems", "201"], "--problems: must be in [1, 200], got 201"),
        (["demo", "opsd-qwen3-1.7b"], "opsd-qwen3-1.7b trains 'Qwen/Qwen3-1.7B'"),
        (["ablate", "mask-ratios", "demo-paint"], "mask-ratio"),
        (["ablate", "mask-ratio"], "RECIPE"),
        (["probe", "demo-paint", "--context", "theirs"], "wrong_answer"),
    ],
)
def test_experiment_verbs_wrong_value_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in said()
    assert not list(tmp_path.iterdir())


def test_probe_context_is_separate_from_recipe_context() -> None:
    flags = ["--context", "own", "other", "--context.mask-ratio-wrong", "0.2", "--ratios", "0.4"]
    command = parse(["probe", "demo-paint", *flags])
    assert (command.context, command.ratios) == (("own", "other"), (0.4,))
    assert (command.config.context.source, command.config.context.mask_ratio_wrong) == ("own", 0.2)
