"""Checkpoints: what is trained, the optimizer, an averaged teacher and the step.

That is enough to go on bit by bit.
"""

import json
from pathlib import Path

import torch

from paint import files
from paint.model.policy import Policy
from paint.model.teacher import Teacher
from paint.model.weights import load_trained, save_trained, trained_in
from paint.runs import RunError, latest_checkpoint, step_folder
from paint.training.update import Setup


def save(folder: Path, setup: Setup, step: int) -> Path:
    """Write a checkpoint, which gets its name when all of it is on disk.

    One that is there already stays as it is.

    Raises:
        RunError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    final = step_folder(folder / "checkpoints", step)
    if final.exists():
        return final

    try:
        with files.new_folder(final) as partial:
            save_trained(setup.policy, trained_in(partial, setup.policy.tuning))
            setup.teacher.save(partial)
            torch.save(setup.optimizer.state_dict(), partial / "optimizer.pt")
            files.write(partial / "state.json", json.dumps({"step": step}) + "\n")
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise RunError(
            f"checkpoint {final} could not be written: {error}\n"
            f"Free some space, then `paint resume {folder}`; earlier checkpoints are untouched."
        ) from error
    return final


def restore(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, teacher: Teacher
) -> int:
    """Load the latest checkpoint into policy, optimizer and teacher; return its step, 0 for none.

    Raises:
        RunError: the checkpoint is damaged.
    """
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        return 0

    try:
        step = int(json.loads((checkpoint / "state.json").read_text())["step"])
        load_trained(policy, trained_in(checkpoint, policy.tuning))
        teacher.load(checkpoint)
        state = torch.load(checkpoint / "optimizer.pt", map_location=policy.device)
        optimizer.load_state_dict(state)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(
            f"{checkpoint} is damaged ({error}); delete it to go on from the one before"
        ) from error
    return step
