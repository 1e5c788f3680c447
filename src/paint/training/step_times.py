"""Step times: what bounds a run, measured in its first steps, and a faster split of its GPUs."""

from collections.abc import Mapping, Sequence

from paint.training.check import Resolved

COUNTED = 2
"""Fewest steps that are counted before a run says what bounds it."""

GENERATING = ("sync", "rollout", "wait")  # phases in which the trainer waits for completions
WORTH = 0.9  # a split is named if a step would take at most this fraction of the present one


def measured_steps(run: Resolved) -> int:
    """Steps after which a run says what bounds it.

    The first, which warms up, is not counted. The others are a group of steps, if one of a group
    samples the completions of all (paint.training.batched_rollouts).
    """
    group = 1 if run.engine.is_remote else 1 + run.rollout.off_policy_steps
    return 1 + max(COUNTED, group)


def bottleneck(run: Resolved, ranks: int, steps: Sequence[Mapping[str, float]]) -> str:
    """Say what a step's time is made of, and which split of the GPUs would take less.

    With r and u seconds for rollouts and the update on s serving and t training GPUs, a split into
    t' and s' is expected to take r s / s' + u t / t' seconds; off policy, where both run at once,
    the larger of the two. Servers and trainers are assumed to speed up with their GPUs.

    Args:
        ranks: number of training GPUs.
        steps: seconds by phase of the first steps (``Clock.seconds``).
    """
    counted = steps[1:]
    total = sum(sum(step.values()) for step in counted) / len(counted)
    waited = sum(step.get(name, 0.0) for step in counted for name in GENERATING) / len(counted)
    update = total - waited
    rollout = run.rollout
    is_async = rollout.off_policy_steps > 0 and run.engine.is_remote
    what = "waiting for rollouts" if is_async else "rollouts"
    said = f"steps take {_seconds(total)}: {what} {_seconds(waited)}, update {_seconds(update)}"

    size = len(rollout.server_gpus[0].split(",")) if rollout.server_gpus else 0
    serving = size * len(rollout.server_gpus)
    if not size or rollout.colocate or (is_async and not waited):
        return said
    generated = total if is_async else waited  # the servers work during the update, too

    def seconds(servers: int) -> float:
        trainers = ranks + serving - servers
        parts = generated * serving / servers, update * ranks / trainers
        return max(parts) if is_async else sum(parts)

    splits = [
        servers
        for servers in range(size, ranks + serving, size)
        if ranks + serving - servers <= run.config.train.batch_size
    ]
    best = min(splits, key=seconds, default=serving)
    if best == serving or seconds(best) > WORTH * total:
        return said
    split = f"{ranks + serving - best}+{best}"
    return f"{said}; with `--split {split}` a step would take about {_seconds(seconds(best))}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"
