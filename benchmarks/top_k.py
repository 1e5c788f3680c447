"""How far the loss of a teacher's k likeliest tokens is from that of its whole vocabulary.

    python benchmarks/top_k.py [--adapter RUN/checkpoints/STEP/adapter]

The demo's model answers 64 training problems; its teacher reads the complete solution. Printed for
each k: the change of the loss, and cosine and quotient of norms of the adapter's gradient, for
PAINT's objective and without its clip (docs/how-to/rollouts.md has the
table).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paint.config.recipe import find_recipe, read_recipe
from paint.data.problems import read_problems
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, load_policy
from paint.models.weights import load_trained
from paint.objective.fused import fused_paint_loss
from paintvariants.top_k import top_k_loss

OBJECTIVES: dict[str, dict[str, Any]] = {
    "PAINT": {},
    "no clip": {"clip_mode": "none", "interpolation_weight": 0.0, "top_fraction": 0.0},
}


@dataclass(frozen=True)
class Options:
    """The loss of a teacher's k likeliest tokens beside that of its vocabulary, on the demo."""

    adapter: Path | None = None
    """Folder of a trained adapter; None: the base, whose adapter changes nothing."""
    problems: int = 64
    """Training problems, from the first."""
    k: tuple[int, ...] = (1, 4, 16, 64, 256)
    """Entries a token that are known."""


def main(options: Options) -> list[dict[str, float | str]]:
    """Print the table, and return its rows."""
    config = read_recipe(find_recipe("demo-paint"))
    problems = read_problems(config.data, needs={"solution": "the teacher"}).problems
    problems = problems[: options.problems]
    torch.manual_seed(0)
    policy = load_policy(config.model, seed=0)
    prompts = [policy.student_prompt(problem) for problem in problems]
    teacher_prompts = [
        policy.teacher_prompt(problem, problem.solution, complete=True) for problem in problems
    ]
    if options.adapter:
        load_trained(policy, options.adapter)
    engine = LocalEngine(policy, batch_size=len(prompts))
    seeds = [derive_seed(0, 0, row) for row in range(len(prompts))]
    completions = engine.generate(prompts, sampling_from(config.rollout), seeds)
    ids = [completion.ids for completion in completions]
    lengths = list(map(len, ids))
    tokens = torch.tensor([token for row in ids for token in row])
    with torch.no_grad(), policy.model.disable_adapter():
        target = policy.hidden_states(teacher_prompts, ids)
        log_probs = policy.lm_head(target).log_softmax(-1)

    def measure(loss: Callable[[Tensor], Any]) -> tuple[float, Tensor]:
        value = loss(policy.hidden_states(prompts, ids)).value
        value.backward()
        return float(value.detach()), gradient_of(policy)

    rows: list[dict[str, float | str]] = []
    for name, objective in OBJECTIVES.items():
        shared = {"tokens": tokens, "temperature": 1.0, **objective}

        def whole(states: Tensor, shared: dict[str, Any] = shared) -> Any:
            return fused_paint_loss(states, target, policy.lm_head, lengths, **shared)

        value, gradient = measure(whole)
        for k in (*options.k, log_probs.shape[1]):
            known, entries = log_probs.topk(k)

            def part(
                states: Tensor,
                known: Tensor = known,
                entries: Tensor = entries,
                shared: dict[str, Any] = shared,
            ) -> Any:
                return top_k_loss(states, policy.lm_head, lengths, entries, known, **shared)

            its_value, its_gradient = measure(part)
            cosine = torch.nn.functional.cosine_similarity(gradient, its_gradient, 0)
            rows.append(
                {
                    "objective": name,
                    "k": k,
                    "value": its_value / value - 1,
                    "cosine": float(cosine),
                    "norm": float(its_gradient.norm() / gradient.norm()),
                }
            )
    print_rows(rows, int(tokens.numel()))
    return rows


def gradient_of(policy: Policy) -> Tensor:
    """The gradient of all trained weights, in float64, which is set to none."""
    parts = []
    for parameter in policy.trainable:
        assert parameter.grad is not None
        parts.append(parameter.grad.flatten().double())
        parameter.grad = None
    return torch.cat(parts)


def print_rows(rows: Sequence[dict[str, float | str]], tokens: int) -> None:
    """The table of the rows."""
    table = Table(title=f"Beside the whole vocabulary, {tokens:,} tokens", title_justify="left")
    for column in ("objective", "k", "loss", "cosine", "norm"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row["objective"]),
            str(row["k"]),
            f"{100 * float(row['value']):+.3f} %",
            f"{row['cosine']:.4f}",
            f"{row['norm']:.4f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
