"""Benchmark of generation on this machine: the local engine beside transformers' generate.

    python benchmarks/generation.py [--model FOLDER ...] [--rows 1 16] [--tokens 64]

Both sample with the same policy, its adapter included, from the same prompts with the paper's
sampling. They take turns, and the medians of their tokens a second are compared. Models: the
demo's, one of SmolLM2-135M's shape with random weights, and those of --model.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table

from models import random_qwen3
from paint.config.schema import Dtype, ModelConfig
from paint.core.device import own_device, wait_for_device
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, load_policy

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=64)


@dataclass(frozen=True)
class Options:
    """Tokens a second of the local engine and of transformers' generate."""

    model: tuple[Path, ...] = ()
    """Folders of further models."""
    rows: tuple[int, ...] = (1, 16)
    """Completions at once."""
    prompt: int = 100
    """Tokens of a prompt."""
    tokens: int = 64
    """Most tokens of a completion."""
    repeat: int = 3
    """Calls of each that are timed, after one that is not."""
    only_demo: bool = False
    """The demo's model alone."""
    json: Path = Path("runs/bench-generation.json")
    """File for the figures."""


def by_engine(
    policy: Policy, prompts: Sequence[list[int]], sampling: Sampling
) -> Callable[[], int]:
    """What samples a completion of each prompt by the local engine, and counts their tokens."""
    engine = LocalEngine(policy, batch_size=len(prompts))

    def run() -> int:
        completions = engine.generate(prompts, sampling, range(len(prompts)))
        return sum(len(completion.ids) for completion in completions)

    return run


def by_transformers(
    policy: Policy, prompts: Sequence[list[int]], sampling: Sampling
) -> Callable[[], int]:
    """The same by ``generate``; the prompts have equal lengths, so that nothing is padded."""
    ids = torch.tensor(prompts, device=policy.device)
    ends = torch.tensor(policy.end_ids, device=policy.device)

    def run() -> int:
        with torch.no_grad():
            texts = policy.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=policy.end_ids,
                pad_token_id=policy.end_ids[0],
            )
        completions = texts[:, ids.shape[1] :]
        ended = torch.isin(completions, ends)
        # Tokens up to the first that ends a completion.
        return int((ended.cumsum(1) - ended.long() == 0).sum())

    return run


def compare(path: str, options: Options) -> list[dict[str, float]]:
    """Tokens a second by both, and their ratio, for each number of rows."""
    dtype: Dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    policy = load_policy(ModelConfig(path=path, dtype=dtype), seed=0, device=own_device())
    generator = torch.Generator().manual_seed(0)
    found = []
    for rows in options.rows:
        most = min(policy.lm_head.out_features, 1000)
        prompts = torch.randint(most, (rows, options.prompt), generator=generator).tolist()
        sampling = replace(SAMPLING, max_new_tokens=options.tokens)
        runs = {
            "engine": by_engine(policy, prompts, sampling),
            "transformers": by_transformers(policy, prompts, sampling),
        }
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for call in range(options.repeat + 1):
            for name, run in runs.items():
                wait_for_device()
                began = time.perf_counter()
                tokens = run()
                wait_for_device()
                if call:
                    rates[name].append(tokens / (time.perf_counter() - began))
        ours, theirs = (statistics.median(rates[name]) for name in runs)
        found.append({"rows": rows, "engine": ours, "transformers": theirs, "ratio": ours / theirs})
    return found


def main(options: Options) -> dict[str, list[dict[str, float]]]:
    """Print and write the table."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"demo": "demo"}
        if not options.only_demo:
            small = random_qwen3(
                Path(folder) / "small",
                layers=30,
                hidden=576,
                intermediate=1536,
                heads=9,
                kv_heads=3,
                head_size=64,
                vocabulary=49_152,
            )
            paths["SmolLM2-135M's shape"] = small
        paths |= {path.name: str(path) for path in options.model}
        for name, path in paths.items():
            figures[name] = compare(path, options)
    table = Table(title="Tokens a second", title_justify="left")
    for column in ("model", "rows", "local engine", "transformers", "ratio"):
        table.add_column(column)
    for name, rows in figures.items():
        for row in rows:
            cells = (f"{row[key]:,.0f}" for key in ("rows", "engine", "transformers"))
            table.add_row(name, *cells, f"{row['ratio']:.2f}")
    Console().print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1))
    return figures


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
