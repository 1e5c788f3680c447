"""Checkpoints: trained weights, optimizer state, teacher state and step; resuming is bit-exact."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from paint.config.run_folder import (
    RunError,
    latest_checkpoint,
    read_run_json,
    require_checkpoint,
    step_folder,
)
from paint.core import storage
from paint.core.distributed import all_gather_objects, run_on_rank0
from paint.core.errors import NonFiniteError, reason, wrap_errors
from paint.core.extensions import extension_errors
from paint.models.policy import Policy
from paint.models.teacher import Teacher
from paint.models.weights import (
    NonFiniteWeights,
    load_trained,
    not_finite,
    save_trained,
    trained_digest,
    trained_in,
)
from paint.training.train_step import Setup


class RanksDiffer(RunError):
    """The ranks hold different weights after the same steps."""


def require_same_weights(folder: Path, setup: Setup, step: int) -> None:
    """Raise RanksDiffer on rank 0 unless all ranks, which call it together, have equal weights."""
    # Each rank applies the summed gradient by itself. Nothing else keeps the copies equal.
    digests = all_gather_objects([trained_digest(setup.policy)])
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]

    def refuse() -> None:
        raise RanksDiffer(
            f"after step {step}, the weights of rank {', '.join(others)} differ from those of rank "
            f"0, as with GPUs of several kinds or a faulty one, and the step is not saved; resume "
            f"from the last checkpoint with `paint resume {folder}`"
        )

    # On rank 0 alone, so that the message appears once: the other ranks raise PeerExit.
    if others:
        run_on_rank0(refuse)


def save(folder: Path, setup: Setup, step: int) -> Path:
    """Write a checkpoint atomically and return its folder; an existing one is not changed.

    Raises NonFiniteError for trained weights that are not finite, and RunError.
    """
    final = step_folder(folder / "checkpoints", step)
    # If the validation of a saved step fails, the loop saves the same step again.
    if final.exists():
        return final

    named = setup.policy.model.named_parameters()
    damaged = not_finite((name, value) for name, value in named if value.requires_grad)
    if damaged:
        last = latest_checkpoint(folder)
        way_on = f"`paint resume {folder}` goes on from {last.name}" if last else "none was saved"
        raise NonFiniteError(
            f"after step {step}, {damaged} has values that are not finite, and the step is not "
            f"saved; correct the callback or the optimizer that made them, or start a new run with "
            f"a lower train.learning_rate; the last checkpoint: {way_on}"
        )
    # By the id, require_checkpoint refuses a checkpoint that was put into another run.
    state = {"step": step, "run": read_run_json(folder)["id"]}
    with extension_errors("train.optimizer", setup.config.train.optimizer):
        optimizer_state = setup.optimizer.state_dict()
    try:
        # After a power failure, no checkpoint must lack its metrics.
        storage.fsync_path(folder / "metrics.jsonl")
        with storage.atomic_dir(final) as partial:
            save_trained(setup.policy, trained_in(partial, setup.policy.tuning))
            setup.teacher.save(partial)
            if setup.off_policy_rollouts is not None:
                setup.off_policy_rollouts.save(partial, step)
            torch.save(optimizer_state, partial / "optimizer.pt")
            storage.write_json(partial / "state.json", state)
    # A full disk is a SafetensorError of safetensors, and a RuntimeError of torch.save.
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RunError(
            f"checkpoint {final} could not be written: {reason(error)}\n"
            f"Free some space, or raise the limit, then `paint resume {folder}`; earlier "
            f"checkpoints are untouched."
        ) from error
    return final


def restore(
    checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer, teacher: Teacher
) -> None:
    # Rank 0 alone reads every file for its checksum.
    run_on_rank0(lambda: require_checkpoint(checkpoint))
    try:
        load_trained(policy, trained_in(checkpoint, policy.tuning))
    except NonFiniteWeights as error:
        raise RunError(f"{error}, or delete {checkpoint} to resume from the previous one") from None
    teacher.load(checkpoint)
    path = checkpoint / "optimizer.pt"
    try:
        # weights_only: a pickle could execute code.
        state = torch.load(path, map_location=policy.device, weights_only=True)
    except Exception:
        # The message of torch is dropped: it advises to execute code from the file.
        raise RunError(f"{path} holds no state that this version of torch reads") from None
    with wrap_errors(path, RunError, "start a new run"):
        load_optimizer_state(optimizer, state)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a ``state_dict`` in its own dtypes, not in those of the parameters."""
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # torch numbers the parameters of a state in the order of the groups.
    for index, values in state["state"].items():
        loaded = optimizer.state[parameters[index]]
        for name, value in values.items():
            is_converted = isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype
            # The tensors in a container may have been converted, too.
            if is_converted or isinstance(value, dict | list | tuple):
                loaded[name] = value
