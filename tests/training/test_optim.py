"""The learning-rate schedules."""

import math

import pytest

from paint.config.schema import TrainConfig
from paint.training.optim import learning_rate


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_warmup_rises_linearly(schedule: str) -> None:
    config = TrainConfig(steps=10, warmup_steps=4, learning_rate=8e-4, schedule=schedule)  # type: ignore[arg-type]
    assert [learning_rate(config, t) for t in range(4)] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4])
    assert learning_rate(config, 4) == pytest.approx(8e-4)


def test_learning_rate_after_warmup_follows_schedule() -> None:
    def rates(schedule: str) -> list[float]:
        config = TrainConfig(steps=6, warmup_steps=2, learning_rate=1.0, schedule=schedule)  # type: ignore[arg-type]
        return [learning_rate(config, t) for t in range(2, 6)]

    assert rates("constant") == [1.0, 1.0, 1.0, 1.0]
    assert rates("linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates("cosine") == pytest.approx(
        [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]
    )
