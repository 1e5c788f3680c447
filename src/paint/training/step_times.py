"""Step times: what bounds a run, measured in its first steps, and a faster split of its GPUs."""

from collections.abc import Mapping, Sequence

from paint.core.display import format_duration
from paint.training.check import Resolved

COUNTED = 2
"""Fewest steps that are counted before a run reports what bounds it."""

GENERATING = ("sync", "rollout", "wait")  # phases in which the trainer waits for completions
PHASE = "seconds_"
"""Prefix of the metrics that are seconds of a phase."""

WORTH = 0.9  # a split is named if a step would take at most this fraction of the present one


def measured_steps(run: Resolved) -> int:
    """Steps after which a run reports what bounds it.

    The first, which warms up, is not counted. The others are a group of steps, if one of a group
    samples the completions of all (paint.training.batched_rollouts).
    """
    if run.engine.is_remote:
        return 1 + COUNTED
    return 1 + max(COUNTED, 1 + run.rollout.off_policy_steps)


def bottleneck(run: Resolved, ranks: int, steps: Sequence[Mapping[str, float]]) -> str:
    """Say what a step's time is made of, and which split of the GPUs would take less.

    With r and u seconds for rollouts and the update on s serving and t training GPUs, a split into
    t' and s' is expected to take r s / s' + u t / t' seconds; off policy, where both run at once,
    the larger of the two. Servers and trainers are assumed to speed up with their GPUs.

    Args:
        ranks: number of training GPUs.
        steps: seconds by phase of the first steps (``Clock.seconds``).
    """
    counted = steps[1:]  # the first warms up
    total = waited = 0.0
    for step in counted:
        total += sum(step.values()) / len(counted)
        for name in GENERATING:
            waited += step.get(name, 0.0) / len(counted)
    update = total - waited
    rollout = run.rollout
    is_async = rollout.off_policy_steps > 0 and run.engine.is_remote
    what = "waiting for rollouts" if is_async else "rollouts"
    text = f"steps take {_seconds(total)}: {what} {_seconds(waited)}, update {_seconds(update)}"
    if not rollout.server_gpus or rollout.colocate or (is_async and not waited):
        return text

    size = len(rollout.server_gpus[0].split(","))  # GPUs of one server
    serving = size * len(rollout.server_gpus)
    gpus = ranks + serving
    generated = total if is_async else waited  # the servers work during the update, too

    def seconds(servers: int) -> float:
        generating = generated * serving / servers
        updating = update * ranks / (gpus - servers)
        if is_async:
            return max(generating, updating)
        return generating + updating

    most_trainers = run.config.train.batch_size  # every rank needs a row
    splits = []
    for count in range(size, gpus, size):
        if gpus - count <= most_trainers:
            splits.append(count)
    best = min(splits, key=seconds, default=serving)
    if best == serving or seconds(best) > WORTH * total:
        return text
    split = f"{gpus - best}+{best}"
    return f"{text}; with `--split {split}` a step would take about {_seconds(seconds(best))}"


def describe_phases(steps: Sequence[Mapping[str, float]], seconds: float) -> str:
    """The time of a run by phase of its steps, longest first, and the rest.

    Args:
        steps: metrics of the steps (docs/reference/metrics.md).
        seconds: of the complete run, set-up and validation included.
    """
    phases: dict[str, float] = {}
    for row in steps:
        for name, value in row.items():
            if name.startswith(PHASE) and name != "seconds_left":
                phase = name.removeprefix(PHASE)
                phases[phase] = phases.get(phase, 0.0) + value
    parts = []
    for phase in sorted(phases, key=phases.__getitem__, reverse=True):
        if round(phases[phase]):
            parts.append(f"{phase} {format_duration(phases[phase])}")
    rest = max(seconds - sum(phases.values()), 0.0)
    parts.append(f"set-up, validation and saving {format_duration(rest)}")
    return f"took {format_duration(seconds)}: {', '.join(parts)}"


def _seconds(value: float) -> str:
    if value < 10:
        return f"{value:.2g} s"
    return f"{value:,.0f} s"
