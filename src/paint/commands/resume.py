from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from paint.commands.api import arguments
from paint.commands.api.results import Run, load_run
from paint.config.recipe import executables_of, to_table
from paint.core.storage import require_free
from paint.core.trust import require_trusted, trust_records, vouch_for
from paint.resolve.check import check_config
from paint.training.callbacks import load_callbacks, tell_callbacks
from paint.training.launcher import run_training

HAS_STEPS = True


def resume(
    run: arguments.RunPath,
    *,
    model: Annotated[str | Path, arguments.Spelled("model.path")] = "",
    data: Annotated[str | Path | Sequence[str | Path], arguments.Spelled("data.path")] = (),
    steps: arguments.OptionalCount = None,
    urls: tuple[str, ...] | None = None,
    server_gpus: tuple[str, ...] | None = None,
    max_logprob_mismatch: float | None = None,
    callbacks: arguments.Callbacks = (),
    gpus: arguments.Gpus = 0,
    trust: arguments.Trust = False,
) -> Run:
    """Resume a run from its last checkpoint; the result is bit for bit that of an unstopped run.

    Example: paint resume runs/first --steps 4

    Args:
        run: A run, or its folder, which holds run.json.
        model: Where the model is now, if it has moved; its digest must be that of the start.
        data: Where the training problems are now, if they have moved, of several sources all in
            their order; their digest must be that of the start.
        steps: Optimizer steps in all, where they are more than the run was started with.
        urls: Addresses of the vLLM servers, where they have changed.
        server_gpus: GPUs of the servers that are started, one each, where they have changed.
        max_logprob_mismatch: Another limit on the mean difference between the engine's and the
            trainer's log-probs, above 0, in nats; it changes no value.

    Raises:
        PaintError, Interrupted: as ``train``. UntrustedError: the run names code, and is no record
            of this user on this machine.
    """
    if trust:
        trust_records()
    callbacks = load_callbacks(callbacks)
    run = load_run(run)
    require_free(run.path)
    changes: dict[str, Any] = {}
    if urls is not None:
        # A run has servers of its own or names others, so one setting empties the other.
        changes = {"urls": tuple(urls), "server_gpus": ()}
        vouch_for(urls)
    if server_gpus is not None:
        changes = {"urls": (), "server_gpus": tuple(server_gpus)}
    if max_logprob_mismatch is not None:
        changes["max_logprob_mismatch"] = max_logprob_mismatch
    config = run.config.changed("rollout", **changes)
    if model:
        config = config.changed("model", path=str(model))
    if data:
        paths = [data] if isinstance(data, str | Path) else data
        path = str(paths[0]) if len(paths) == 1 else tuple(map(str, paths))
        config = config.changed("data", path=path)
    if steps is not None:
        config = config.changed("train", steps=steps)
    require_trusted(executables_of(to_table(config)))
    run_training(check_config(config), run.path, gpus, None, callbacks)
    tell_callbacks(callbacks, "on_end", run)
    return run
