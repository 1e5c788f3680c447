"""Evaluate every checkpoint on the user's own problems, as the paper evaluates every 20 steps.

RUN/validation is an evaluation like any other, with a folder for each checkpoint: `paint grade RUN`
makes its table again. The student before the first step is evaluated too; checkpoints are compared
with it.

Left out on purpose: keeping the best checkpoint. The table shows them all.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator

from paint.config import Config
from paint.data.golds import name_unparsed
from paint.data.problem_sets import Benchmark, load_benchmark
from paint.data.problems import Problem
from paint.display import Display
from paint.engines.protocol import Engine, sampling_of
from paint.evaluation.asking import (
    Prompts,
    Protocol,
    Task,
    deployment_prompts,
    open_task,
    require_room,
    sample_of,
    sample_seeds,
)
from paint.evaluation.metrics import avg_at_k
from paint.evaluation.stages import grade
from paint.evaluation.store import Store, StoreError, find_stores, reopen_store
from paint.grading.base import Grader
from paint.grading.grader import MathGrader
from paint.grading.registry import find_grader
from paint.model.policy import Policy
from paint.model.weights import trained_in
from paint.ranks import gathered, on_first_rank
from paint.runs import step_folder, step_places


@dataclass(frozen=True)
class Validation:
    """What the checkpoints of a run are evaluated on, and how.

    Attributes:
        prompts: what the student reads of each problem.
        model, engine: as in the config, for the record.
        at_once: samples that are generated together on all ranks.
    """

    benchmark: Benchmark
    prompts: Prompts
    protocol: Protocol
    run: Path
    model: str
    engine: str
    at_once: int

    def task(self, policy: Policy, step: int) -> Task:
        """The samples of the checkpoint of a step; step 0 is the student before training."""
        name = step_folder(Path(), step).name
        trained = trained_in(self.run / "checkpoints" / name, policy.tuning) if step else None
        folder = self.run / "validation" / name / self.benchmark.name
        return Task(folder, self.benchmark.problems, self.prompts, self.protocol, trained)


def load_validation(policy: Policy, config: Config, run: Path, ranks: int) -> Validation | None:
    """What ``config.validation`` asks for; None where it names no problems.

    Raises:
        ConfigError: the longest completion does not fit in the model's positions.
        DataError: no such problems.
        StoreError: earlier checkpoints were evaluated on other problems.
    """
    options = config.validation
    if not options.path:
        return None

    benchmark = load_benchmark(options.path, limit=options.limit)
    protocol = Protocol(options.samples, options.thinking, sampling_of(options), config.train.seed)
    validation = Validation(
        benchmark,
        deployment_prompts(policy, benchmark.problems, thinking=options.thinking),
        protocol,
        run,
        config.model.path,
        config.rollout.engine,
        config.rollout.batch_size
        * max(ranks, len(config.rollout.urls), len(config.rollout.server_gpus)),
    )
    require_room(policy, validation.task(policy, 0))
    on_first_rank(lambda: _require_same_problems(run, benchmark))
    if isinstance(find_grader(config.grading.grader), MathGrader):
        on_first_rank(lambda: name_unparsed(benchmark.name, benchmark.problems, Display().note))
    return validation


def validate(
    validation: Validation,
    policy: Policy,
    engine: Engine,
    accelerator: Accelerator,
    grader: Grader,
    display: Display,
    step: int,
    stop: Callable[[], None],
) -> dict[str, float]:
    """Evaluate the policy as it is after ``step``; samples that are stored are not asked for again.

    Args:
        step: optimizer steps done; 0 is the student before training.
        stop: called between batches of samples; raises when the run is asked to stop.

    Returns:
        The figures for trackers, on the first rank; nothing where the checkpoint was evaluated
        before.
    """
    task = validation.task(policy, step)
    total = len(task.problems) * task.protocol.samples

    with ExitStack() as stack:
        stores: list[Store] = []  # on the first rank, one

        def open_store() -> list[tuple[Problem, int]]:
            opened = open_task(policy, task, model=validation.model, engine=validation.engine)
            stores.append(stack.enter_context(opened))
            return stores[0].missing

        missing = on_first_rank(open_store)

        if missing:
            engine.adopt()
        title = f"validation after step {step}"
        with display.counting(title, total, total - len(missing)) as count:
            for start in range(0, len(missing), validation.at_once):
                batch = missing[start : start + validation.at_once]
                with accelerator.split_between_processes(batch) as mine:
                    completions = engine.generate(
                        [task.prompts[problem.id] for problem, _ in mine],
                        task.protocol.sampling,
                        sample_seeds(task.protocol, mine),
                    )
                    samples = gathered(
                        [
                            sample_of(policy, task, problem, number, completion)
                            for (problem, number), completion in zip(mine, completions, strict=True)
                        ]
                    )
                for store in stores:
                    for sample in samples:
                        store.add(sample)
                        count.add(sample.tokens)
                stop()
        for store in stores:
            store.write_sums()

        if not stores or (not missing and (task.folder / "grades.jsonl").exists()):
            return {}
        graded = grade(stores[0], grader, display)

    interval = avg_at_k(graded.correct)
    display.note(f"{title}: Avg@{task.protocol.samples} {interval.points()} (95 % interval)")
    rewards = {} if graded.rewards is None else {"validation_reward": float(graded.rewards.mean())}
    return {
        **rewards,
        "validation_avg_at_k": interval.mean,
        "validation_avg_at_k_low": interval.low,
        "validation_avg_at_k_high": interval.high,
        "validation_truncated_share": float(graded.truncated.mean()),
        "validation_completion_tokens": float(graded.tokens.mean()),
    }


def _require_same_problems(run: Path, benchmark: Benchmark) -> None:
    wanted = [(p.id, p.problem, p.answers) for p in benchmark.problems]
    steps = step_places(run / "validation")
    for folder in [folder for step in steps for folder in find_stores(step)]:
        with reopen_store(folder) as store:
            stored = [(p.id, p.problem, p.answers) for p in store.problems]
        if folder.name != benchmark.name or wanted != stored:
            raise StoreError(
                f"{folder} has other problems or gold answers than validation.path has now, so "
                f"checkpoints would not compare; put the file back as it was, or move "
                f"{run / 'validation'} away"
            )
