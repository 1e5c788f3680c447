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


def test_probe_context_is_separate_from_recipe_context() -> None:
    flags = ["--context", "own", "other", "--context.mask-ratio-wrong", "0.2", "--ratios", "0.4"]
    command = parse(["probe", "demo-paint", *flags])
    assert (command.context, command.ratios) == (("own", "other"), (0.4,))
    assert (command.config.context.source, command.config.context.mask_ratio_wrong) == ("own", 0.2)
