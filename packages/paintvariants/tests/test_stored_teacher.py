"""A teacher whose likeliest entries are stored with the completions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.core.display import Display
from paint.data.problems import DataError
from paint.models.policy import load_policy
from paintvariants.stored_teacher import StoredTeacher
from runs import changed, stored, train, variant, write_problems

SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "data": {"limit": 6},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 4, "micro_batch_size": 4, "checkpoint_every": 1},
}
QUIET = Display(enabled=False)


def arm(source: Path, *changes: dict[str, dict[str, Any]]) -> Config:
    """The small run on stored rollouts, with changes."""
    engine = {"rollout": {"engine": "stored", "stored": str(source)}}
    return changed("demo-paint", SMALL, engine, *changes)


@pytest.mark.slow
def test_train_on_stored_teacher_of_whole_vocabulary_is_training_on_the_teacher(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first"
    train(changed("demo-paint", SMALL), first, display=QUIET)
    one: dict[str, dict[str, Any]] = {"train": {"steps": 1}, "objective": {"temperature": 1.0}}
    train(arm(first, one), tmp_path / "teacher", display=QUIET)
    policy = load_policy(arm(first).model, seed=0)
    rows = []
    for row in stored(first):
        with torch.no_grad():
            prompt, ids = row["teacher_prompt_ids"], row["completion_ids"]
            logits = policy.lm_head(policy.hidden_states([prompt], [ids]))
        top = logits.log_softmax(-1).topk(logits.shape[1])
        found = {"teacher_ids": top.indices.tolist(), "teacher_log_probs": top.values.tolist()}
        rows.append(row | found)
    source = Path(write_problems(tmp_path / "scored.jsonl", rows))
    by_file = arm(source, one, variant(StoredTeacher))
    train(by_file, tmp_path / "stored", display=QUIET)
    [found], [expected] = (read_metrics(tmp_path / name) for name in ("stored", "teacher"))
    names = ("loss", "gradient_norm", "kl", "clip_frac", "student_entropy", "teacher_entropy")
    for name in (*names, "unclipped_mass", "selected_kl", "first_kl", "off_policy_kl"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-7), name

    with pytest.raises(DataError, match=r"at temperature 1, and the loss is at 1\.1; pass --obj"):
        train(by_file.changed("objective", temperature=None), tmp_path / "hot")
    with pytest.raises(DataError, match=r"has no teacher_ids and no teacher_log_probs; score it"):
        train(arm(first, one, variant(StoredTeacher)), tmp_path / "none")
