"""How long a step takes on this machine: an estimate from one short measurement, before the first.

    rollout  decode steps, and one pass over the prompts
    learn    micro-batches, each of some seconds and of further ones a token and pass

Few tokens are measured, and more while that takes a fraction of a second. What was measured is kept
by model, device and shape in the user's state folder. The gradient of what is measured is dropped,
and no random number of the run is drawn.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from paint.config.recipe import to_table
from paint.config.schema import Config, TrainConfig
from paint.core.device import own_device, to_device, wait_for_device
from paint.core.display import Display, agrees, format_duration
from paint.core.errors import PaintError, is_out_of_memory
from paint.core.nesting import parse_json
from paint.core.storage import digest, write_json
from paint.core.trust import state_folder
from paint.core.versions import versions
from paint.data.contexts import Contexts
from paint.data.mixtures import draw_problems
from paint.data.problems import Problem, read_problems
from paint.inference.engine import sampling_from
from paint.inference.local import LocalEngine
from paint.inference.machine import find_machine
from paint.models.caches import shared_length
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.objective.fused import fused_log_probs, fused_paint_loss
from paint.resolve.check import Resolved, check_training, resolve
from paint.training.prompt_filter import filter_problems

NOT_ESTIMATED = "time: not estimated, as there is no memory to measure a step"

LONG = 3600.0
"""Seconds of a run from which the command line asks before it starts."""

ENOUGH = 0.1  # seconds of a measurement after which no larger one is made
SHORT_PROMPT = 8  # tokens of a prompt before decode steps that are timed
DECODED = 4  # looks of the engine by which two timed completions differ
FILE = "step_times.json"  # in the user's state folder
MOST_KEPT = 200  # measurements in it
MOST_ROWS = 32  # rows of the first step whose lengths stand for those of all steps


@dataclass(frozen=True)
class Speed:
    """What was measured, in seconds; 0 for what a method does not do."""

    decode: float  # a step of ``rows`` rows
    rows: int
    fixed: float  # a micro-batch, whatever its tokens
    token: float  # a token and pass: the student's two, the teacher's one


@dataclass(frozen=True)
class StepTime:
    """The estimate for a run."""

    seconds: float  # a step
    tokens: float  # of a completion that are assumed, mean
    most: float  # seconds of a step whose completions have the most tokens
    most_tokens: float
    steps: int
    token: float  # seconds of a generated token, where completions are generated here; or 0
    assumed: str  # how long completions are taken to be, in words

    @property
    def total(self) -> float:
        """Seconds of all steps."""
        return self.seconds * self.steps

    def of_length(self, tokens: float) -> float:
        """Seconds of a step whose completions have so many tokens."""
        if self.most_tokens == self.tokens:
            return self.seconds
        share = (tokens - self.tokens) / (self.most_tokens - self.tokens)
        return self.seconds + share * (self.most - self.seconds)

    def __str__(self) -> str:
        text = (
            f"time, an estimate: about {format_step(self.seconds)} a step, "
            f"{format_duration(self.total)} for {self.steps:,} steps, {self.assumed}"
        )
        if self.most_tokens > self.tokens:
            text += f"; {format_step(self.most)} a step if all have {self.most_tokens:,.0f}"
        return f"{text}; without graders of your own and validation"


def format_step(seconds: float) -> str:
    """The seconds of a step, with a digit after the point where they are few."""
    return f"{seconds:.1f} s" if seconds < 20 else format_duration(seconds)


def estimate(
    policy: Policy, teacher: Teacher, run: Resolved, problems: Sequence[Problem], steps: int
) -> StepTime | None:
    """The time of so many steps of one process; None where there is no memory for a measurement."""
    work = _Work.of(policy, run, problems)
    try:
        speed = _kept_speed(policy, run, work, partial(_measure, policy, teacher, run, work))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None  # the step itself has smaller parts, or says what is too large
    finally:
        if policy.device.type == "cuda":
            torch.cuda.empty_cache()  # a server may be started on the same GPU
    seconds, most = (work.seconds(speed, run, length) for length in (work.mean, work.longest))
    assumed = work.assumed
    if run.algorithm.needs_rollouts and not speed.decode:
        assumed += ", without rollouts, which are not made here"
    if run.rollout.max_attempts > 1:
        assumed += ", each problem drawn once"
    if run.config.conversation.is_on:
        assumed += ", each conversation of one turn"
    token = speed.decode / speed.rows
    return StepTime(seconds, work.mean, most, work.longest, steps, token, assumed)


def estimate_config(config: Config, display: Display) -> StepTime | None:
    """The estimate for a run that is not started. Raises PaintError as a start does."""
    device = own_device()
    run = resolve(check_training(config), find_machine(device))
    candidates = read_problems(config.data, needs=run.needed_fields)
    with display.working("loading the model"):
        policy = load_policy(
            run.config.model, seed=config.train.seed, device=device, prompts=config.prompts
        )
    problems = filter_problems(policy, run, candidates, Display(enabled=False))
    run = with_steps(run, problems, display)
    teacher = open_teacher(policy, run.teacher)
    with display.working("measuring how long a step takes"):
        return estimate(policy, teacher, run, problems, run.config.train.steps)


def announce_time(
    config: Config,
    display: Display,
    *,
    label: str,
    trainings: int,
    answers: int,
    longest: int,
    confirm: bool,
) -> None:
    """Say how long several trainings take, and answers; a terminal asks before a long work.

    Args:
        config: of the first training, which stands for all.
        answers: that are generated beside the trainings, of at most ``longest`` tokens.

    Raises PaintError where the answer is no.
    """
    found = estimate_config(config, display)
    if torch.cuda.is_available():  # the model that was measured is gone: a server may need the room
        torch.cuda.empty_cache()
    if found is None:
        display.note(NOT_ESTIMATED)
        return
    total, most = found.total * trainings, found.token * answers * longest
    text = f"time, an estimate: about {format_duration(found.total)} for the training of {label}"
    if trainings > 1:
        text += f", {format_duration(total)} for all {trainings} if they take as long"
    text += f" ({found.assumed})"
    if most:
        text += f"; at most {format_duration(most)} for {answers:,} answers"
    display.note(f"{text}; without graders of your own")
    if total + most >= LONG and not confirm and not agrees():
        raise PaintError("not started; fewer trainings, steps, problems or samples take less time")


def with_steps(run: Resolved, problems: Sequence[Problem], display: Display) -> Resolved:
    """The run with the steps of ``train.epochs``, which they take the place of. Raises ConfigError.

    run.json has the steps, as it has what other settings became.
    """
    train = run.config.train
    if train.epochs is None:
        return run
    at_once = train.batch_size // run.rollout.samples_per_problem
    steps = math.ceil(train.epochs * len(problems) / at_once)
    display.note(
        f"train.epochs {train.epochs:g}: {steps:,} steps of {at_once} of {len(problems):,} problems"
    )
    return run.changed("train", steps=steps, epochs=None)


def describe_taken(expected: StepTime, steps: Sequence[Mapping[str, float]]) -> str:
    """The estimate beside what the steps took, by their metrics."""
    phases = [
        value
        for row in steps
        for name, value in row.items()
        if name.startswith("seconds_") and name != "seconds_left"
    ]
    taken = format_step(sum(phases) / len(steps))
    tokens = sum(row["completion_tokens"] for row in steps) / len(steps)
    text = f"estimated {format_step(expected.seconds)} a step"
    if round(tokens) != round(expected.tokens):
        of_length = format_step(expected.of_length(tokens))
        text += f" for {expected.tokens:,.0f} tokens ({of_length} for the {tokens:,.0f} there were)"
    return f"{text}, took {taken}"


@dataclass(frozen=True)
class _Work:
    """Rows of the first step, which stand for those of all."""

    prompts: list[list[int]]
    teacher_prompts: list[list[int]]  # [] for a method whose teacher reads none
    completions: list[list[int]]  # as long as they are taken to be
    longest: float = 0.0  # tokens that a completion may have
    assumed: str = ""
    solution: float = 0.0  # mean tokens of solutions beside the method; 0: not learned from

    @classmethod
    def of(cls, policy: Policy, run: Resolved, problems: Sequence[Problem]) -> "_Work":
        config, algorithm = run.config, run.algorithm
        count = min(
            max(config.train.batch_size // config.rollout.samples_per_problem, 1), MOST_ROWS
        )
        drawn = draw_problems(problems, config.data, count, 0, config.train.seed)
        rows = [problems[i] for i in drawn]
        prompts = [policy.student_prompt(row) for row in rows]
        teacher_prompts = []
        if algorithm.needs_context:
            contexts = Contexts(config.context, problems)
            for row in rows:
                texts = policy.prompt_texts(row, [contexts.longest(row)], complete=False)
                ids = policy.tokenizer.encode(texts[1], add_special_tokens=False)
                teacher_prompts.append(ids)
            # Read once a run or a step, and not for each row.
            shared = shared_length(teacher_prompts)
            teacher_prompts = [ids[shared:] for ids in teacher_prompts]
        limit = config.rollout.max_new_tokens
        references = [policy.reference_ids(row) for row in rows] if run.learns_solutions else []
        solution = _mean_length(references) if references else 0.0
        if not algorithm.needs_rollouts:
            assumed = f"of solutions of {solution:,.0f} tokens"
            return cls(prompts, teacher_prompts, references, solution, assumed)
        if all(row.solution for row in rows):
            completions = [policy.solution_ids(row.solution)[:limit] for row in rows]
            length = f"as long as the solutions, {_mean_length(completions):,.0f} tokens"
        else:
            completions = [policy.end_ids[:1] * limit for _ in rows]
            length = f"of all of their {limit:,} tokens"
        assumed = f"for completions {length}"
        return cls(prompts, teacher_prompts, completions, limit, assumed, solution)

    @property
    def mean(self) -> float:
        """Tokens of a completion, mean over the rows."""
        return _mean_length(self.completions)

    def passes(self, completion: float) -> float:
        """Tokens of a row times passes, as those of a micro-batch: mean over the rows."""
        student = 2 * (_mean_length(self.prompts) + completion)
        if not self.teacher_prompts:
            return student
        return student + _mean_length(self.teacher_prompts) + completion

    def seconds(self, speed: Speed, run: Resolved, completion: float) -> float:
        """A step's seconds where completions have so many tokens."""
        train = run.config.train
        rows, width = train.batch_size, _mean_length(self.teacher_prompts or self.prompts)
        micros = self._micro_batches(train, rows, width + completion)
        seconds = micros * speed.fixed + rows * self.passes(completion) * speed.token
        if self.solution:
            length = _mean_length(self.prompts) + self.solution
            problems = rows // run.config.rollout.samples_per_problem
            seconds += self._micro_batches(train, problems, length) * speed.fixed
            seconds += problems * 2 * length * speed.token
        if speed.decode:
            seconds += rows * _mean_length(self.prompts) * speed.token
            seconds += math.ceil(rows / speed.rows) * completion * speed.decode
        return seconds

    @staticmethod
    def _micro_batches(train: TrainConfig, rows: int, length: float) -> int:
        """Micro-batches of so many rows of a mean length."""
        by_tokens = math.ceil(rows * length / train.token_limit)
        return min(max(math.ceil(rows / train.row_limit), by_tokens), rows)

    def parts(self, row_limit: int) -> Iterator["_Work"]:
        """Ever larger parts of a micro-batch: a fraction of a row, a row, and several."""
        yield self._part(1, 8)
        yield self._part(1, 2)
        rows = min(row_limit, len(self.prompts))
        count = 1
        while count < rows:
            yield self._part(count, 1)
            count *= 4
        yield self._part(rows, 1)

    def _part(self, rows: int, divisor: int) -> "_Work":
        """Some rows, each shortened by a divisor."""
        prompts, teacher_prompts, completions = (
            [ids[: max(len(ids) // divisor, 1)] for ids in view[:rows]]
            for view in (self.prompts, self.teacher_prompts, self.completions)
        )
        return _Work(prompts, teacher_prompts, completions)


def _mean_length(rows: Sequence[Sequence[int]]) -> float:
    return sum(map(len, rows)) / len(rows)


def _measure(policy: Policy, teacher: Teacher, run: Resolved, work: _Work) -> Speed:
    """Measure a decode step, and passes of a micro-batch or of a part of it."""
    config = run.config
    rows = min(config.rollout.batch_size, config.train.batch_size)
    decode = 0.0
    sizes: list[float] = []
    times: list[float] = []
    # Sampling has seeds of its own. This is for what else may draw.
    with torch.random.fork_rng(devices=[policy.device] if policy.device.type == "cuda" else []):
        if run.algorithm.needs_rollouts and issubclass(run.engine.load(), LocalEngine):
            decode = _decode_seconds(policy, run, work.prompts[0], rows)
        for part in work.parts(config.train.row_limit):
            if not times:
                _learn(policy, teacher, run, part)  # the first pass is slower than others
            sizes.append(part.passes(part.mean) * len(part.prompts))
            times.append(_timed(partial(_learn, policy, teacher, run, part), policy.device))
            if times[-1] > ENOUGH and len(times) > 1:
                break
    # A line through the last two sizes, of which a small one is mostly what every pass takes.
    token = (times[-1] - times[-2]) / max(sizes[-1] - sizes[-2], 1.0)
    fixed = times[-1] - token * sizes[-1]
    if token <= 0 or fixed < 0:
        token, fixed = times[-1] / sizes[-1], 0.0
    return Speed(decode, rows, fixed, token)


def _decode_seconds(policy: Policy, run: Resolved, prompt: Sequence[int], rows: int) -> float:
    """Seconds of a step of so many rows: by how much longer a longer completion takes."""
    engine, sampling = LocalEngine(policy, batch_size=rows), sampling_from(run.rollout)
    prompts, seeds = [prompt[-SHORT_PROMPT:]] * rows, list(range(rows))
    at_once = engine.steps_at_once  # a completion of one token takes as many steps
    times = []
    for looks in (1, 1 + DECODED):
        few = replace(sampling, max_new_tokens=looks * at_once)
        times.append(_timed(partial(engine.generate, prompts, few, seeds), policy.device))
    return max(times[1] - times[0], 0.0) / (DECODED * at_once)


def _learn(policy: Policy, teacher: Teacher, run: Resolved, part: _Work) -> None:
    """Forward and backward passes of a step on some rows, whose gradient is dropped."""
    tokens = to_device([i for ids in part.completions for i in ids], policy.device)
    if part.teacher_prompts:
        target = teacher.hidden_states(part.teacher_prompts, part.completions)
        student = policy.hidden_states(part.prompts, part.completions)
        loss = fused_paint_loss(
            student,
            target,
            policy.lm_head,
            list(map(len, part.completions)),
            run.objective,
            tokens=tokens,
            teacher_lm_head=teacher.lm_head,
        ).value
    else:
        student = policy.hidden_states(part.prompts, part.completions)
        scores = fused_log_probs(student, policy.lm_head, tokens, temperature=1.0)
        loss = scores.log_prob.mean()
    loss.backward()
    for parameter in policy.trainable:
        parameter.grad = None


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work; of two runs the shorter, where the first took little."""
    times = []
    for _ in range(2):
        wait_for_device()
        began = time.perf_counter()
        work()
        wait_for_device()
        times.append(time.perf_counter() - began)
        # A GPU's first run compiles kernels for these shapes, and captures graphs.
        if times[0] > 3 * ENOUGH and device.type != "cuda":
            break
    return min(times)


def _kept_speed(policy: Policy, run: Resolved, work: _Work, measure: Callable[[], Speed]) -> Speed:
    """What was measured before for this model, device and shape, or else now."""
    device, config = policy.device, run.config
    name = f"cpu, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    shape = {
        "architecture": policy.base.config.to_dict(),
        "settings": to_table(config)["model"],
        "objective": to_table(config)["objective"],
        "device": name,
        "rows": [config.rollout.batch_size, config.train.batch_size, config.train.row_limit],
        "lengths": [round(math.log2(length)) for length in (work.mean, work.passes(0.0))],
        "needs": [run.algorithm.needs_rollouts, run.algorithm.needs_context],
        "engine": config.rollout.engine,
        "versions": versions("torch", "transformers"),
    }
    key = digest(json.dumps(shape, sort_keys=True, default=str))[:16]
    path, kept = state_folder() / FILE, {}
    with suppress(OSError, ValueError):  # none yet, or one that is written anew
        kept = dict(parse_json(path.read_bytes().decode()))
    with suppress(KeyError, TypeError):
        return Speed(**kept[key])
    speed = measure()
    with suppress(OSError):  # of a user without a folder: it is measured again
        write_json(path, dict(list(kept.items())[-MOST_KEPT:]) | {key: asdict(speed)})
    return speed
