"""Runs on several sources: the same to the bit when resumed elsewhere, and metrics by source."""

import json
from pathlib import Path
from typing import Any

import pytest

from paint.cli import main
from paint.config.run_folder import RunError, read_metrics, read_run
from paint.core.storage import read_jsonl
from paint.demo.files import HELD_OUT_PROBLEMS, TRAINING_PROBLEMS
from paint.training.trainer import train
from runs import adapter, assert_same, assert_same_history, changed, stored, write_problems

SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 2, "batch_size": 8, "learning_rate": 1e-4, "checkpoint_every": 1},
}


@pytest.mark.slow
def test_run_on_mixture_resumed_elsewhere_is_bitwise_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(read_jsonl(TRAINING_PROBLEMS, ""))[:20]
    (tmp_path / "moved").mkdir()
    # Without ids: both files have rows 1 to 5.
    for row in rows:
        del row["id"]
    parts = {"x": rows[:5], "y": rows[5:]}
    paths = [write_problems(tmp_path / f"{name}.jsonl", part) for name, part in parts.items()]
    held_out = list(read_jsonl(HELD_OUT_PROBLEMS, ""))
    sets = {"p": held_out[:2], "q": held_out[2:5]}
    own = [write_problems(tmp_path / f"{name}.jsonl", part) for name, part in sets.items()]
    config = changed("demo-paint", SMALL, {"data": {"path": paths, "weights": [3, 1]}})
    config = config.changed("validation", path=tuple(own), samples=1, max_new_tokens=16)
    one, other = tmp_path / "one", tmp_path / "other"
    train(config.changed("validation", path=""), one)  # which moves no weight
    train(config.changed("train", steps=1), other)
    for path in own:  # the run has copies
        Path(path).unlink()
    moved = [str(Path(path).rename(tmp_path / "moved" / Path(path).name)) for path in paths]
    line = ["resume", str(other), "--steps", "2"]
    assert main(line) == 2  # the files are elsewhere
    assert main([*line, "--data.path", *moved]) == 0
    assert_same(adapter(one), adapter(other))
    assert_same_history(one, other)
    assert read_run(other).data.weights == (3.0, 1.0)

    report = json.loads((other / "validation/summary.json").read_text())
    levels = {
        (row["policy"], row["benchmark"]): row["n"]
        for row in report["rows"]
        if row["metric"] == "avg_at_k" and not row["against"]
    }
    steps = [f"step-00000{step}" for step in range(3)]
    assert levels == {
        (step, name): n for step in steps for name, n in (("p", 2), ("q", 3), ("macro", None))
    }
    assert "after step 2, q: Avg@1" in capsys.readouterr().out

    for step, metrics in enumerate(read_metrics(other), start=1):
        rollouts = stored(other, step)
        assert [row["data_source"] for row in rollouts].count("x") == 6
        for name, of_source in (("x", 6), ("y", 2)):
            part = [row for row in rollouts if row["problem_id"].startswith(f"{name}/")]
            right = sum(row["correct"] for row in part) / len(part)
            assert metrics[f"sources/{name}/completions"] == len(part) == of_source
            assert metrics[f"sources/{name}/accuracy"] == pytest.approx(right)
        # Of completions that weigh the same, the step's KL is the mean of both.
        parts_of_kl = 6 * metrics["sources/x/kl"] + 2 * metrics["sources/y/kl"]
        assert metrics["kl"] == pytest.approx(parts_of_kl / 8)
    config = read_run(other).changed("data", path=tuple(moved))
    with pytest.raises(RunError, match=r"data\.weights"):
        train(config.changed("data", weights=(1.0, 1.0)), other, resume=True)
    write_problems(Path(moved[1]), parts["y"][1:])
    with pytest.raises(RunError, match=r"other problems than .*x\.jsonl"):
        train(config, other, resume=True)
