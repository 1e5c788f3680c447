"""Every checkpoint on problems of the user's own, as the paper evaluates every 20 steps.

What is stored under RUN/validation is an evaluation like any other, a folder a checkpoint: `paint grade RUN` makes the
table again. The student before the first step is evaluated, too, and is what the checkpoints are compared with.

Left out on purpose: keeping the best checkpoint. The report shows them all.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from paint.benchmarks import Benchmark, load_benchmark
from paint.config import Config
from paint.display import Display
from paint.evaluate import Protocol, answer_of, grade, open_evaluation, require_room
from paint.figures import avg_at_k
from paint.grading import Grader
from paint.policy import Policy, trained_in
from paint.rollout import Engine, Sampling, seed_of
from paint.store import Store, StoreError, find_stores, reopen_store
from paint.vllm import on_first_rank


@dataclass(frozen=True)
class Validation:
    """What the checkpoints of a run are evaluated on, and how.

    Attributes:
        model, engine: as in the config, for the record.
        at_once: answers that are asked for together: no rank waits longer than for the longest of them.
    """

    benchmark: Benchmark
    protocol: Protocol
    run: Path
    model: str
    engine: str
    at_once: int


def load_validation(policy: Policy, config: Config, run: Path, ranks: int) -> Validation | None:
    """What ``config.validation`` asks for; None where it names no problems.

    Raises:
        ConfigError: the longest answer does not fit in the model's positions. DataError: no such problems.
        StoreError: earlier checkpoints of the run were evaluated on others.
    """
    options = config.validation
    if not options.path:
        return None
    benchmark = load_benchmark(options.path, limit=options.limit)
    sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_new_tokens)
    protocol = Protocol(options.samples, options.thinking, sampling, config.train.seed)
    require_room(policy, benchmark.problems, protocol)
    on_first_rank(lambda: _require_same_problems(run, benchmark))
    at_once = config.rollout.batch_size * max(ranks, len(config.rollout.urls))
    return Validation(benchmark, protocol, run, config.model.path, config.rollout.engine, at_once)


def _require_same_problems(run: Path, benchmark: Benchmark) -> None:
    wanted = [(problem.id, problem.problem, problem.answer) for problem in benchmark.problems]
    for folder in find_stores(run / "validation"):
        with reopen_store(folder) as store:
            if folder.name != benchmark.name or wanted != [(p.id, p.problem, p.answer) for p in store.problems]:
                raise StoreError(
                    f"{folder} has other problems or gold answers than validation.path has now, so checkpoints would "
                    f"not compare; put the file back as it was, or move {run / 'validation'} away"
                )


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
    """Evaluate the policy, which is that of the checkpoint of ``step``; what is stored already is not asked again.

    Args:
        step: optimizer steps done; 0 is the student as it starts.
        stop: is called between batches of answers, and raises when the run is asked to stop.

    Returns:
        The figures for trackers, on the first rank; nothing where the checkpoint was evaluated before.
    """
    protocol, benchmark, size = validation.protocol, validation.benchmark, validation.at_once
    name = f"step-{step:06d}"
    with ExitStack() as stack:
        store: Store | None = None
        if accelerator.is_main_process:
            checkpoint = validation.run / "checkpoints" / name
            trained = trained_in(checkpoint, policy.tuning) if step else None
            folder = validation.run / "validation" / name / benchmark.name
            problems, model, kind = benchmark.problems, validation.model, validation.engine
            store = stack.enter_context(open_evaluation(policy, folder, model, trained, problems, protocol, kind))
        [missing] = broadcast_object_list([store.missing if store else None])
        if missing:
            engine.adopt()
        total = len(benchmark.problems) * protocol.samples
        with display.counting(f"validation after step {step}", total, total - len(missing)) as count:
            for start in range(0, len(missing), size):
                with accelerator.split_between_processes(missing[start : start + size]) as mine:
                    prompts = [policy.student_prompt(p.problem, thinking=protocol.thinking) for p, _ in mine]
                    seeds = [seed_of(protocol.seed, sample, problem.id) for problem, sample in mine]
                    completions = engine.generate(prompts, protocol.sampling, seeds)
                    rows = zip(mine, prompts, completions, strict=True)
                    answers = gather_object([answer_of(policy, p.id, k, prompt, c) for (p, k), prompt, c in rows])
                if store is not None:
                    for answer in answers:
                        store.add(answer)
                        count.add(answer.tokens)
                stop()
        if store is None or (not missing and (store.folder / "grades.jsonl").exists()):
            return {}
        found = grade(store, grader, display)
    interval = avg_at_k(found.correct)
    display.note(f"validation after step {step}: Avg@{protocol.samples} {interval.points()} (95 % interval)")
    return {
        "validation_avg_at_k": interval.mean,
        "validation_avg_at_k_low": interval.low,
        "validation_avg_at_k_high": interval.high,
        "validation_truncated_share": float(found.truncated.mean()),
        "validation_completion_tokens": float(found.tokens.mean()),
    }
