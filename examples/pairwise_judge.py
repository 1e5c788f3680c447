"""Pairwise judge: how often a trained policy's answers are preferred to those of its base model.

The judge reads both answers to a problem and names the better one, in both orders, since judges
prefer a place. The reward is the share of the two orders that a completion wins, so the mean reward
is the win rate, about 0.5 for the base itself. `prefers_first` is 0.5 for a judge of no habit.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import paint

SHARES = {"A": 1.0, "B": 0.0, "TIE": 0.5}  # what the first answer gets


async def ask(problem: str, first: str, second: str) -> str:
    """A, B or tie, by a scripted judge that likes boxes, then brevity, and else the first answer.

    Ask an endpoint in its place, as examples/judge.py does.
    """
    await asyncio.sleep(0)
    values = [(r"\boxed" in answer, -len(answer)) for answer in (first, second)]
    return "A" if values[0] >= values[1] else "B"


async def prefers(completion: str, row: Mapping[str, Any]) -> paint.Grade:
    """The share of both orders in which the completion is preferred to ``row["base"]``."""
    problem, base = row["problem"], row["base"]
    said = await asyncio.gather(ask(problem, completion, base), ask(problem, base, completion))
    # Any other text is a KeyError: the judge is asked again, and then the call has failed.
    of_first = [SHARES[re.sub(r"[\W_]", "", verdict).upper()] for verdict in said]
    reward = (of_first[0] + 1 - of_first[1]) / 2
    reason = {0.0: "lost", 1.0: "won"}.get(reward, "split")
    return paint.Grade(reward, reason, metrics={"prefers_first": sum(of_first) / 2})


if __name__ == "__main__":
    problems: list[dict[str, Any]] = []
    for n in range(20):
        text = f"Start at ${n}$ and apply $+{n + 2}, -3, +{2 * n}$ modulo $100$."
        problems.append({"id": f"sum-{n}", "problem": text, "answer": str((4 * n - 1) % 100)})
    settings: dict[str, Any] = {
        "thinking": False,
        "rollout": {"top_p": 1.0, "max_new_tokens": 96},
        "output_dir": "evals",
    }
    base = paint.evaluate("demo", benchmarks=problems, samples=1, **settings)
    answers = dict(zip(base.samples["problem_id"], base.samples["text"], strict=True))
    rows = [row | {"base": answers[row["id"]]} for row in problems]

    run = paint.train("demo-paint", output_dir="runs/pairwise", train={"steps": 4})
    judged = paint.evaluate(
        run, benchmarks=rows, samples=4, grading={"grader": prefers}, **settings
    )
    metrics = judged.table[judged.table["metric"].isin(["reward", "prefers_first"])]
    print(metrics[["policy", "metric", "mean", "low", "high"]].to_string(index=False))
    print(judged.comparisons[["policy", "mean", "low", "high", "p"]].to_string(index=False))
