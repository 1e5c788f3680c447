"""Checkpoints: what is trained, the optimizer, an averaged teacher and the step.

That is enough to go on bit by bit.
"""

from pathlib import Path
from typing import Any

import torch

from paint import files
from paint.errors import explained, reason
from paint.model.policy import Policy
from paint.model.teacher import Teacher
from paint.model.weights import load_trained, save_trained, trained_digest, trained_in
from paint.ranks import gathered, on_first_rank
from paint.runs import (
    RunError,
    latest_checkpoint,
    read_facts,
    require_checkpoint,
    step_folder,
    step_of,
)
from paint.training.update import Setup


class RanksDiffer(RunError):
    """Ranks that took the same steps hold other weights."""


def require_same_weights(folder: Path, setup: Setup, step: int) -> None:
    """Refuse to save what only some ranks hold; all ranks call it together.

    Raises:
        RanksDiffer: on the first rank. EndedElsewhere: on the others, then.
    """
    digests = gathered([trained_digest(setup.policy)])
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]

    def refuse() -> None:
        raise RanksDiffer(
            f"after step {step}, the weights of rank {', '.join(others)} are not those of rank 0, "
            f"as on GPUs of several kinds or with a faulty one, and that step is not saved; go on "
            f"from the last checkpoint with `paint resume {folder}`"
        )

    if others:
        on_first_rank(refuse)


def save(folder: Path, setup: Setup, step: int) -> Path:
    """Write a checkpoint, which gets its name when all of it is on disk.

    One that is there already stays as it is.

    Raises:
        RunError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    final = step_folder(folder / "checkpoints", step)
    if final.exists():
        return final

    state = {"step": step, "run": read_facts(folder)["id"]}
    try:
        files.sync(folder / "metrics.jsonl")  # after a power cut, no checkpoint is without figures
        with files.new_folder(final) as partial:
            save_trained(setup.policy, trained_in(partial, setup.policy.tuning))
            setup.teacher.save(partial)
            if setup.ahead is not None:
                setup.ahead.save(partial, step)
            torch.save(setup.optimizer.state_dict(), partial / "optimizer.pt")
            files.write_json(partial / "state.json", state)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise RunError(
            f"checkpoint {final} could not be written: {reason(error)}\n"
            f"Free some space, then `paint resume {folder}`; earlier checkpoints are untouched."
        ) from error
    return final


def restore(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, teacher: Teacher
) -> int:
    """Load the latest checkpoint into policy, optimizer and teacher; return its step, 0 for none.

    Raises:
        Damaged, PolicyError, RunError: the checkpoint is not what was written.
    """
    checkpoint = latest_checkpoint(folder)
    on_first_rank(lambda: require_checkpoint(checkpoint) if checkpoint else None)
    if checkpoint is None:
        return 0

    load_trained(policy, trained_in(checkpoint, policy.tuning))
    teacher.load(checkpoint)
    state = _optimizer_state(checkpoint / "optimizer.pt", policy.device)
    with explained(checkpoint / "optimizer.pt", RunError, "start a new run"):
        optimizer.load_state_dict(state)
    return step_of(checkpoint)


def _optimizer_state(path: Path, device: torch.device) -> Any:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception:
        # torch's own text advises to run whatever code the file holds.
        raise RunError(f"{path} holds no state that this version of torch reads") from None
