"""Finished evaluations, and the rows of reports that commands wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paint.config.schema import Config, ModelConfig, RolloutConfig
from paint.data.problems import Problem
from paint.evaluation.frame import Measurement, Report, read_report, select_rows
from paint.evaluation.generate import EvalTask, SamplingProtocol, deployment_prompts, open_task
from paint.evaluation.metrics import GradedSamples
from paint.inference.engine import Completion, Sampling
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy


def report_in(folder: Path, name: str = "summary") -> Report:
    """The report that a command wrote to a folder."""
    return read_report(folder / f"{name}.json", "")


def row_of(rows: Report | Sequence[Measurement], **columns: Any) -> Measurement:
    """The one row with these values."""
    [row] = select_rows(rows.rows if isinstance(rows, Report) else rows, **columns)
    return row


def policies_of(report: Report) -> list[str]:
    """The policies of a report, in order."""
    return list(dict.fromkeys(row.policy for row in report.rows))


def compared_in(report: Report) -> list[str]:
    """The policies of the differences, in order."""
    return [row.policy for row in report.rows if row.against]


def evaluated(
    policy: Policy, folder: Path, problems: list[Problem], texts: dict[tuple[str, int], str]
) -> Path:
    """A finished evaluation with these texts, by problem and sample; "..." ends a cut one."""
    samples = 1 + max((sample for _, sample in texts), default=1)
    prompts = deployment_prompts(policy, problems, thinking=False)
    protocol = SamplingProtocol(samples, False, Sampling(1.0, 1.0, -1, 80))
    task = EvalTask(folder, problems, prompts, protocol)
    by_id = {problem.id: problem for problem in problems}
    config = Config(ModelConfig(path="demo"), rollout=RolloutConfig(engine="local"))
    with open_task(policy, config, task) as store:
        for (problem, number), text in reversed(texts.items()):
            completion = Completion((1,) * len(text), (), truncated=text.endswith("..."))
            store.add(Rollout(number, by_id[problem], prompts[problem], completion, text))
    return folder


def graded_samples(correct: Any, **columns: Any) -> GradedSamples:
    """Graded samples with these verdicts, by problem and sample, and further columns."""
    table = np.asarray(correct, dtype=bool)
    none = np.zeros(table.shape, dtype=bool)
    plain: dict[str, Any] = {
        "problems": [str(i) for i in range(len(table))],
        "correct": table,
        "votes": None,
        "tokens": np.full(table.shape, 7),
        "truncated": none,
        "unboxed": None,
        "repetitive": none,
    }
    return GradedSamples(**plain | columns)


def of_rewards(rewards: np.ndarray, **columns: Any) -> GradedSamples:
    """Graded samples with these rewards, by problem and sample, and NaN for none."""
    return graded_samples(rewards == 1, rewards=rewards, **columns)
