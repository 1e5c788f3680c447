"""What it costs to generate with merged weights: merged into bf16 against base + adapter.

    python benchmarks/merged.py \\
        --server ".venv-vllm/bin/python -m vllm.entrypoints.openai.api_server"

Two models, trained in bf16 by the PAINT loss for 20, 50 and 100 steps: the lab's (at the lab's and
at the paper's learning rate), and a random one of Qwen3-1.7B's width (two of its layers, a small
vocabulary; the paper's learning rate and rank).

Weights:  how much of the update survives in bf16(W + dW) - W: its cosine with dW, and the share of
          entries that moved.
KL:       KL(true || engine) on sampled tokens, in float32 arithmetic, so that only the weights
          differ. ``base`` is how far training has moved the policy at all: an engine at that
          distance has lost the training.
Gap:      |log p_engine - log p_trainer| of these tokens: by the weights alone, and of the engines
          as they run in bf16.
"""

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import tyro
from peft.tuners.lora import LoraLayer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from models import random_qwen3_1_7b
from paint import config as cfg
from paint.data.problems import read_problems
from paint.display import Display
from paint.engines.canary import trainer_log_probs
from paint.engines.local import LocalEngine, MergedEngine
from paint.engines.open import open_vllm
from paint.engines.protocol import Completion, Engine, sampling_of
from paint.fused import fused_paint_loss
from paint.model.policy import Policy, load_policy
from paint.model.teacher import open_teacher
from paint.model.weights import load_adapter, save_adapter
from paint.recipe import find_recipe, read_recipe
from paint.training.run import train

PROMPTS = 64
VOCABULARY = 4096


@dataclass(frozen=True)
class Options:
    """Merged weights against swapped adapters."""

    steps: tuple[int, ...] = (20, 50, 100)
    """Steps after which is measured."""
    server: str = ""
    """Command that starts a vLLM server; empty: base + adapter are measured in this process."""
    server_args: str = "--enforce-eager"
    """Further arguments of the server."""
    lab_rates: tuple[float, ...] = (6e-4, 5e-6)
    """Learning rates of the lab's model: its recipe's, and the paper's."""
    random_model: bool = True
    """Also measure a random model of Qwen3-1.7B's width."""
    json: Path = Path("runs/bench-merged.json")
    """File for the figures."""


def layers(policy: Policy) -> list[Any]:
    """The layers that have an adapter."""
    return [module for module in policy.model.modules() if isinstance(module, LoraLayer)]


@contextmanager
def stored_as(policy: Policy, how: str) -> Iterator[None]:
    """A float32 policy with its weights as an engine stores them: true, base, merged or swapped."""
    saved = [p.detach().clone() for p in policy.model.parameters()]
    with ExitStack() as stack, torch.no_grad():
        if how == "merged":
            for layer in layers(policy):
                weight = layer.get_base_layer().weight
                weight.copy_((weight + layer.get_delta_weight("default")).bfloat16())
        if how == "swapped":
            for parameter in policy.trainable:
                parameter.copy_(parameter.bfloat16())
        if how in ("merged", "base"):
            stack.enter_context(policy.model.disable_adapter())
        yield
        for parameter, value in zip(policy.model.parameters(), saved, strict=True):
            parameter.copy_(value)


@torch.no_grad()
def log_probs(
    policy: Policy, prompts: Sequence[list[int]], completions: Sequence[Sequence[int]]
) -> Tensor:
    """Full distributions, tokens by vocabulary."""
    return torch.cat(
        [
            policy.lm_head(policy.hidden_states(prompts[i : i + 8], completions[i : i + 8]))
            .double()
            .log_softmax(-1)
            for i in range(0, len(prompts), 8)
        ]
    )


def survival(policy: Policy) -> dict[str, float]:
    """What merging keeps of the update: the cosine of both, and the share of entries that move."""
    wanted, done = [], []
    with torch.no_grad():
        for layer in layers(policy):
            weight, delta = layer.get_base_layer().weight, layer.get_delta_weight("default")
            wanted.append(delta.flatten())
            done.append(((weight + delta).bfloat16().float() - weight).flatten())
    a, b = torch.cat(wanted), torch.cat(done)
    return {
        "cosine": float(torch.cosine_similarity(a, b, dim=0)),
        "moved": float((b != 0).float().mean()),
    }


def weights_and_kl(
    exact: Policy, prompts: Sequence[list[int]], completions: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Figures of the weights alone, of a float32 policy whose base weights are bf16 numbers."""
    true = log_probs(exact, prompts, completions)
    tokens = torch.tensor([i for ids in completions for i in ids])[:, None]
    figures = survival(exact)
    for how in ("base", "merged", "swapped"):
        with stored_as(exact, how):
            other = log_probs(exact, prompts, completions)
        figures[f"kl_{how}"] = float((true.exp() * (true - other)).sum(-1).mean())
        figures[f"gap_{how}"] = float((true - other).gather(1, tokens).abs().mean())
    return figures


def gaps(
    policy: Policy, prompts: Sequence[list[int]], completions: Sequence[Completion]
) -> dict[str, float]:
    """Mean and 99th percentile of an engine's gap."""
    engine = torch.tensor([x for c in completions for x in c.log_probs])
    trainer = torch.cat(
        [
            trainer_log_probs(policy, prompts[i : i + 8], completions[i : i + 8])
            for i in range(0, len(prompts), 8)
        ]
    )
    gap = (engine - trainer).abs()
    return {"mean": float(gap.mean()), "p99": float(gap.quantile(0.99))}


def exact_copy(model: cfg.Model) -> Policy:
    """The policy in float32 arithmetic, with the base weights that its bf16 version has."""
    policy = load_policy(dataclasses.replace(model, dtype="float32"), seed=0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_" not in name:
                parameter.copy_(parameter.bfloat16())
    return policy


def lab(rate: float, options: Options, folder: Path, console: Console) -> list[dict[str, Any]]:
    """Train the lab's model in bf16, then measure its checkpoints with every engine."""
    recipe = read_recipe(find_recipe("lab-paint"))
    config = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, dtype="bfloat16"),
        train=dataclasses.replace(
            recipe.train, steps=max(options.steps), learning_rate=rate, checkpoint_every=10
        ),
        log=dataclasses.replace(recipe.log, keep_rollouts=False),
        rollout=dataclasses.replace(
            recipe.rollout, server=options.server or "none", server_args=options.server_args
        ),
    )
    console.print(
        f"training the lab's model for {max(options.steps)} steps at {rate:g}", style="dim"
    )
    with redirect_stdout(StringIO()):
        train(config, folder / "run")

    policy, exact = load_policy(config.model, seed=0), exact_copy(config.model)
    problems = read_problems(config.data).problems[-PROMPTS:]
    prompts = [policy.student_prompt(p.problem) for p in problems]
    sampling, rows = sampling_of(config.rollout), []
    max_tokens = config.data.max_prompt_tokens + config.rollout.max_new_tokens

    with ExitStack() as stack:
        engines: dict[str, Engine] = {
            "merged": MergedEngine(policy, batch_size=PROMPTS),
            "swapped, this process": LocalEngine(policy, batch_size=PROMPTS),
        }
        if options.server:
            display = Display(enabled=False)
            engines["swapped, vLLM"] = stack.enter_context(
                open_vllm(
                    policy,
                    config.model,
                    config.rollout,
                    folder,
                    display,
                    prompts[:4],
                    sampling,
                    max_tokens=max_tokens,
                )
            )

        for step in options.steps:
            checkpoint = folder / f"run/checkpoints/step-{step:06d}/adapter"
            load_adapter(policy, checkpoint)
            load_adapter(exact, checkpoint)
            row: dict[str, Any] = {"model": f"lab, {rate:g}", "step": step}
            for name, engine in engines.items():
                engine.adopt()
                completions = engine.generate(prompts, sampling, range(PROMPTS))
                row[f"gap {name}"] = gaps(policy, prompts, completions)
            rows.append(row | weights_and_kl(exact, prompts, [c.ids for c in completions]))
    return rows


def random_model(options: Options, folder: Path, console: Console) -> list[dict[str, Any]]:
    """Train two random layers of Qwen3-1.7B's width on random text, and measure the update."""
    path = random_qwen3_1_7b(folder / "model", layers=2, vocabulary=VOCABULARY)
    model = cfg.Model(path=path, dtype="bfloat16")
    policy = load_policy(model, seed=0)
    optimizer = torch.optim.AdamW(policy.trainable, lr=5e-6, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)

    def texts(count: int, length: int) -> list[list[int]]:
        return torch.randint(VOCABULARY, (count, length), generator=generator).tolist()

    # As in training, every step brings other problems. A teacher prompt shows the beginning of the
    # completion.
    for step in range(1, max(options.steps) + 1):
        console.print(f"random model: step {step}/{max(options.steps)}", end="\r", style="dim")
        prompts, completions = texts(8, 24), texts(8, 48)
        shown = [
            completion[:24] + prompt
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        with open_teacher(policy, cfg.Teacher()).view():
            teacher = policy.hidden_states(shown, completions)
        student = policy.hidden_states(prompts, completions)
        fused_paint_loss(student, teacher, policy.lm_head, [48] * 8, clip=0.3).value.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        if step in options.steps:
            save_adapter(policy, folder / f"adapter-{step}")

    exact = exact_copy(model)
    rows: list[dict[str, Any]] = []
    prompts, completions = texts(16, 24), texts(16, 48)
    for step in options.steps:
        load_adapter(exact, folder / f"adapter-{step}")
        measured = weights_and_kl(exact, prompts, completions)
        rows.append({"model": "random, Qwen3's width, 5e-06", "step": step} | measured)
    return rows


def main(options: Options) -> None:
    """Measure, print, store."""
    console = Console()
    rows = []
    for rate in options.lab_rates:
        with tempfile.TemporaryDirectory() as folder:
            rows += lab(rate, options, Path(folder), console)
    if options.random_model:
        with tempfile.TemporaryDirectory() as folder:
            rows += random_model(options, Path(folder), console)
    show(console, rows)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    console.print(f"written to {options.json}")


def show(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """One line a measurement."""
    console = Console(width=max(console.width, 170))
    table = Table(
        caption="KL, gap: by the weights alone; "
        "runs: gap of the engines as they run, mean and 99th percentile",
        title="generating with merged bf16 weights",
    )
    columns = (
        "model",
        "step",
        "cosine",
        "moved",
        "KL base",
        "KL merged",
        "KL swapped",
        "gap base",
        "gap merged",
    )
    for column in (*columns, "gap swapped", "runs merged", "runs here", "runs vLLM"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in rows:
        cells = [row["model"], str(row["step"]), f"{row['cosine']:.2f}", f"{row['moved']:.1%}"]
        cells += [
            f"{row[f'{kind}_{how}']:.1e}"
            for kind in ("kl", "gap")
            for how in ("base", "merged", "swapped")
        ]
        for name in ("merged", "swapped, this process", "swapped, vLLM"):
            gap = row.get(f"gap {name}")
            cells.append(f"{gap['mean']:.4f}, {gap['p99']:.3f}" if gap else "-")
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
