"""The algorithms of examples/: where their settings make them a known one, they are that one."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.training.trainer import train
from runs import changed

SMALL: dict[str, dict[str, Any]] = {
    "rollout": {"max_new_tokens": 24, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3},
}


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module(name)


def figures(folder: Path, *sections: dict[str, Any]) -> dict[str, float]:
    """The metrics of a run's only step."""
    train(changed("demo-paint", SMALL, *sections), folder)
    return read_metrics(folder)[0]


@pytest.mark.slow
def test_contrast_of_strength_minus_one_is_the_other_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contrast = example("contrast", monkeypatch)
    monkeypatch.setattr(contrast, "AGAINST", "answer")
    found = {}
    for strength, source in ((0.0, "solution"), (-1.0, "answer")):
        monkeypatch.setattr(contrast, "STRENGTH", strength)
        method = {"train": {"method": "contrast:Contrast"}}
        found[source] = figures(tmp_path / f"of-{source}", method)["kl"]
        expected = figures(tmp_path / source, {"context": {"source": source}})["kl"]
        assert found[source] == pytest.approx(expected, rel=1e-4)
    assert found["solution"] != pytest.approx(found["answer"], rel=0.1)


@pytest.mark.slow
def test_rlsd_without_range_for_credit_is_grpo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlsd = example("rlsd", monkeypatch)
    group = {"rollout": {"samples_per_problem": 8, "max_new_tokens": 60}}
    expected = figures(tmp_path / "grpo", group, {"train": {"method": "grpo"}})["gradient_norm"]
    assert expected > 0
    for epsilon in (0.0, 0.2):
        monkeypatch.setattr(rlsd, "EPSILON", epsilon)
        method = {"train": {"method": "rlsd:Rlsd"}}
        found = figures(tmp_path / str(epsilon), group, method)["gradient_norm"]
        assert (found == pytest.approx(expected, rel=1e-4)) == (epsilon == 0)
