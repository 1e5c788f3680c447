"""A guide with which all prompts of the teacher begin is read once, and a run stays the same."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models import teacher
from paint.models.caches import LEAST, read_beginning
from paint.training import teacher_views
from paint.training.teacher_views import with_shared_beginning
from runs import adapter, assert_same, changed, small_run, train, train_in_parts

SMALL = small_run(8, limit=20, steps=2, batch_size=4, micro_batch_size=2, checkpoint_every=1)
SMALL |= {"prompts": {"student": "{{ problem }}", "teacher_system": "{{ context }}"}}


def guided(folder: Path, *changes: dict[str, dict[str, Any]]) -> Config:
    guide = folder / "guide.md"
    guide.write_text(" ".join(f"Add ${i}$ to ${2 * i}$." for i in range(20)))
    own = {"context": {"source": "file", "file": str(guide)}}
    return changed("demo-paint", SMALL, own, *changes)


@pytest.mark.parametrize(("weights", "reads"), [("frozen", 1), ("live", 2), ("ema", 2)])
def test_train_with_guide_reads_it_once_a_run_or_a_step(
    weights: str, reads: int, tmp_path: Path
) -> None:
    config = guided(tmp_path, {"teacher": {"weights": weights}})
    with patch.object(teacher, "read_beginning", side_effect=read_beginning) as read:
        train(config, tmp_path / "run")
    lengths = {len(call.args[1]) for call in read.call_args_list}
    assert read.call_count == reads
    assert len(lengths) == 1
    assert min(lengths) >= 2 * LEAST

    train_in_parts(config, tmp_path / "parts", 1)
    assert_same(adapter(tmp_path / "run"), adapter(tmp_path / "parts"))


def test_train_with_guide_has_gradient_of_whole_rows_in_any_micro_batches(tmp_path: Path) -> None:
    config = guided(tmp_path, {"train": {"steps": 1}})
    train(config, tmp_path / "shared")
    train(config.changed("train", micro_batch_size=4), tmp_path / "together")
    with patch.object(teacher_views, "shared_length", return_value=0):
        train(config, tmp_path / "whole")
    # Not weights: Adam turns rounding of a gradient near 0 into a step.
    shared, together, whole = (
        [read_metrics(tmp_path / run)[0][name] for name in ("loss", "kl", "gradient_norm")]
        for run in ("shared", "together", "whole")
    )
    assert together == pytest.approx(shared, rel=1e-4)
    assert whole == pytest.approx(shared, rel=1e-4)


@pytest.mark.parametrize("recipe", ["demo-paint", "demo-opsd"])
def test_train_without_guide_reads_whole_rows(recipe: str, tmp_path: Path) -> None:
    short = {name: values for name, values in SMALL.items() if name != "prompts"}
    with patch.object(teacher, "read_beginning") as read:
        train(changed(recipe, short), tmp_path / "run")
    read.assert_not_called()


def test_shared_beginning_is_that_of_all_ranks_and_turns() -> None:
    def rollout(row: int, prompt: list[int]) -> Rollout:
        view, written = TeacherPrompt("", True, prompt), Completion((1,), (0.0,), truncated=False)
        return Rollout(row, Problem("", "", "", ""), [1], written, "", view)

    mine = [rollout(row, [5] * 4 * LEAST + [row]) for row in range(2)]
    other = [5] * 3 * LEAST + [6] * LEAST
    shared = {r.teacher_prompt.shared for r in with_shared_beginning(mine) if r.teacher_prompt}
    assert shared == {4 * LEAST}
    with patch.object(teacher_views, "all_gather_objects", lambda prompts: [*prompts, other]):
        rows = with_shared_beginning(mine)
    assert {r.teacher_prompt.shared for r in rows if r.teacher_prompt} == {3 * LEAST}
