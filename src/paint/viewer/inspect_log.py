"""Export of evaluations to the log format of inspect-ai, for ``inspect view``.

Each policy and problem set has one JSON log, in version 2 of the format. A sample's epoch is its
number from 1. Its score is the strict verdict, with the reason as the explanation.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.versions import versions
from paint.evaluation.grade import policy_names, stored_in
from paint.evaluation.metrics import avg_at_k
from paint.evaluation.store import COMPLETIONS, StoreError
from paint.viewer.evaluation import Graded, read_graded

SCORER = "strict"


def write_logs(targets: Sequence[Path], out: Path, display: Display) -> Path:
    """Write a log for every evaluation below some folders, and return the folder of the logs.

    Raises:
        StoreError, CorruptFileError, FolderInUse: as `read_graded`; a log cannot be written.
    """
    paths = stored_in(targets)
    for path, policy in policy_names(paths).items():
        graded = read_graded(path)
        when = datetime.fromtimestamp((path / COMPLETIONS).stat().st_mtime, UTC)
        log = log_of(policy, path.name, graded, when.isoformat(timespec="seconds"))
        stem = f"{when:%Y-%m-%dT%H-%M-%S}_{_plain(path.name)}_{_plain(policy)}"
        with wrap_errors(out, StoreError, "choose another place with --out"):
            storage.write_atomic(
                out / f"{stem}.json", json.dumps(log, ensure_ascii=False, indent=1) + "\n"
            )
    display.note(f"{len(paths)} logs written to {out}; `inspect view --log-dir {out}` shows them")
    return out


def log_of(policy: str, benchmark: str, graded: Graded, when: str) -> dict[str, Any]:
    """Build one log, as inspect-ai's EvalLog reads it."""
    settings, problems = graded.store.settings, graded.store.problems
    by_id = {problem.id: problem for problem in problems}
    samples = []
    for row, sample in zip(graded.rows, graded.samples, strict=True):
        problem, strict = by_id[sample.problem], row["strict"]
        stop = "max_tokens" if sample.truncated else "stop"
        message = {"role": "assistant", "content": sample.text, "source": "generate"}
        samples.append(
            {
                "id": problem.id,
                "epoch": sample.sample + 1,
                "input": problem.problem,
                "target": list(problem.answers),
                "messages": [
                    {"role": "user", "content": problem.problem, "source": "input"},
                    {**message, "model": policy},
                ],
                "output": {
                    "model": policy,
                    "choices": [{"message": message, "stop_reason": stop}],
                    "usage": _usage(sample.tokens),
                },
                "scores": {
                    SCORER: {
                        "value": "C" if strict["correct"] else "I",
                        "answer": strict["answer"],
                        "explanation": strict["reason"],
                        "metadata": {
                            name: row[name] for name in ("lenient", "vote", "reward") if name in row
                        },
                    }
                },
                "model_usage": {policy: _usage(sample.tokens)},
                "metadata": {"source": sample.source, "looping": row["looping"]},
            }
        )

    interval = avg_at_k(graded.graded.correct)
    metrics = {"accuracy": interval.mean, "low_95": interval.low, "high_95": interval.high}
    identity = storage.digest(policy, benchmark, when)[:22]
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": identity,
            "run_id": storage.digest(identity)[:22],
            "task_id": storage.digest(benchmark)[:22],
            "created": when,
            "task": benchmark,
            "dataset": {
                "name": benchmark,
                "samples": len(problems),
                "sample_ids": [problem.id for problem in problems],
            },
            "model": policy,
            "config": {"epochs": settings["samples"]},
            "packages": versions(),
            "metadata": {name: settings[name] for name in settings if name != "versions"},
        },
        "plan": {"name": "paint eval", "steps": []},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [
                {
                    "name": SCORER,
                    "scorer": SCORER,
                    "metrics": {name: {"name": name, "value": x} for name, x in metrics.items()},
                }
            ],
        },
        "stats": {
            "started_at": when,
            "completed_at": when,
            "model_usage": {policy: _usage(int(graded.graded.tokens.sum()))},
        },
        "samples": samples,
    }


def _usage(tokens: int) -> dict[str, int]:
    return {"input_tokens": 0, "output_tokens": tokens, "total_tokens": tokens}


def _plain(name: str) -> str:
    """Replace all but letters and digits by hyphens; underscores separate parts of file names."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)
