"""What a run opens before its first step: machine, rows, folder, trackers and engine."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from paint.config.recipe import to_table
from paint.config.run_folder import RunError, latest_checkpoint, read_run_json, step_of
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.distributed import all_gather_objects, run_on_rank0
from paint.core.storage import digest
from paint.data.contexts import Contexts
from paint.data.mixtures import draw_problems
from paint.data.problems import Problem, problems_digest
from paint.data.row_checks import announce_rows
from paint.evaluation.defaults import training_tokens
from paint.evaluation.generate import other_form
from paint.grading.contract import Grader
from paint.inference.engine import Engine
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.local import LocalEngine
from paint.inference.machine import find_machine
from paint.models.policy import Policy
from paint.models.weights import model_digests
from paint.resolve.algorithm import Algorithm, needs_of
from paint.resolve.check import Resolved
from paint.resolve.plan import Machine
from paint.training.prompt_filter import describe_missing_answers, warn_template_mismatch


def machine_of_ranks(accelerator: Accelerator) -> Machine:
    """Return this machine, as all ranks see it."""
    machine = find_machine(accelerator.device, accelerator.num_processes)
    # Ranks that divide the rows must agree: the smallest memory counts, and one rank's timings.
    memory = min(all_gather_objects([machine.memory]))
    slowdown = all_gather_objects([machine.slowdown])[0]
    return replace(machine, memory=memory, slowdown=slowdown)


def with_steps(run: Resolved, problems: Sequence[Problem], display: Display) -> Resolved:
    """Return the run with ``train.steps`` in the place of ``train.epochs``."""
    train = run.config.train
    if train.epochs is None:
        return run
    at_once = train.batch_size // run.rollout.samples_per_problem
    steps = math.ceil(train.epochs * len(problems) / at_once)
    display.note(
        f"train.epochs {train.epochs:g}: {steps:,} steps of {at_once} of {len(problems):,} problems"
    )
    return run.changed("train", steps=steps, epochs=None)


def check_problems(
    run: Resolved, policy: Policy, grader: Grader, problems: Sequence[Problem], display: Display
) -> None:
    """Warn of prompts that do not match, of missing answers, and of rows that cannot be graded."""
    if run.algorithm.needs_context:
        warn_template_mismatch(display, policy)
    display.warnings([describe_missing_answers(run, problems)])

    def try_rows() -> None:
        with display.working("trying the rows by their own solutions"):
            announce_rows(grader, problems, run.config.data.place, display)

    is_graded = run.algorithm.needs_rollouts and not run.config.conversation.environment
    if is_graded:
        run_on_rank0(try_rows)
    if run.generates:
        graders = run.config.grading.grader
        display.warnings([other_form(policy.prompts, graders, problems[0])])


def drawn_count(config: Config) -> int:
    """Return how many problems the steps of a run draw, repeated ones included."""
    return config.train.steps * (config.train.batch_size // config.rollout.samples_per_problem)


def drawn_problems(config: Config, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that the steps of a run draw, in the order of the data."""
    drawn = drawn_count(config)
    if len(config.data.sources) < 2:
        drawn = min(drawn, len(problems))  # the first epoch has each problem once
    found = set(draw_problems(problems, config.data, drawn, 0, config.train.seed))
    return [problems[i] for i in sorted(found)]


def run_facts(
    policy: Policy, problems: Sequence[Problem], contexts: Contexts, algorithm: Algorithm
) -> dict[str, Any]:
    """Return what run.json has next to the config: digests, by which a run is resumed, and what a
    page needs to know of the model and the method.
    """
    return {
        "problems": problems_digest(problems),
        "context": digest(contexts.shared),
        "model": model_digests(policy),
        "conventions": policy.conventions.table(),
        "needs": needs_of(algorithm),
        # As data: a page writes prompts with them where their functions are not importable.
        "tools": list(policy.tools),
    }


def last_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """Return the last checkpoint of a run, and its step; of a new run None and 0."""
    last = latest_checkpoint(folder)
    done = step_of(last) if last else 0
    if len(set(all_gather_objects([done]))) > 1:
        raise RunError(
            f"not every rank sees the same checkpoints in {folder}; put it on a disk that all share"
        )
    return last, done


def open_trackers(config: Config, folder: Path, accelerator: Accelerator) -> None:
    """Open the trackers of ``log.trackers``; a resumed run resumes there, by its id or name."""
    if not config.log.trackers:
        return
    table = to_table(config)
    # TensorBoard takes no nested tables, no lists and no None.
    flat = {f"{name}.{k}": str(v) for name in table for k, v in table[name].items()}
    name, run_id = folder.absolute().name, read_run_json(folder)["id"]
    own = {
        "wandb": {"name": name, "id": run_id, "resume": "allow"},
        "trackio": {"name": f"{name}-{run_id}", "resume": "allow"},
    }
    project = os.environ.get("WANDB_PROJECT") or os.environ.get("TRACKIO_PROJECT") or "paint"
    accelerator.init_trackers(project, config=flat, init_kwargs=own)


@contextmanager
def open_run_engine(
    run: Resolved, policy: Policy, problems: Sequence[Problem], folder: Path, display: Display
) -> Iterator[Engine]:
    config = run.config
    if not run.generates:  # SFT without validation samples nothing, and starts no server
        yield LocalEngine(policy, batch_size=1)
        return
    setup = EngineSetup(
        policy,
        config.model,
        config.rollout,
        folder,
        display,
        max_tokens=training_tokens(config),
        problems=drawn_problems(config, problems),
        server_flags=run.server_flags,
    )
    with open_engine(setup) as engine:
        yield engine
