"""End a run when its validation no longer rises, and name the best checkpoint by it."""

from pathlib import Path
from typing import Any

import paint
from paint.core.display import Display
from paint.evaluation.change import graded_validation
from paint.evaluation.intervals import with_value


def scores_of(run: Path) -> dict[int, float]:
    """The mean score of each validated checkpoint, by its step; 0 is the base, which has none."""
    graded = graded_validation(run, Display())
    return {step: float(with_value(one.scores).mean()) for (step, _), one in graded.items() if step}


class StopEarly(paint.Callback):
    patience = 2  # validations after the best one
    run: Path | None = None

    def on_checkpoint(self, path: Path) -> None:
        self.run = path.parents[1]  # it is validated after this call and before the next step

    def on_step(self, step: int, metrics: Any, rollouts: Any) -> bool:
        scores = list(scores_of(self.run).values()) if self.run else []
        self.run = None
        return len(scores) > self.patience + scores.index(max(scores)) if scores else False

    def on_end(self, run: paint.Run) -> None:
        scores = scores_of(run.path)
        best = max(scores, key=lambda step: scores[step])
        print(f"best: {run.path}/checkpoints/step-{best:06d}, with {scores[best]:.3f} of {scores}")


if __name__ == "__main__":
    problems = {"path": "demo", "limit": 8, "samples": 2}
    train = {"steps": 8, "checkpoint_every": 2}
    paint.train("demo-paint", train=train, validation=problems, callbacks=[StopEarly()])
