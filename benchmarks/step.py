"""Benchmark of a training step without rollouts against TRL's and OPSD's.

    python benchmarks/step.py           (make bench-step installs the peers and runs it)

A step is what follows the rollouts: both views' forward passes, the loss, the backward pass, the
clipped gradient, AdamW. All train the same LoRA adapters on the same model with the same token ids,
one completion at a time.

    paint              this package's own step with the paper's objective and all of its metrics
    trl sdft           SDFTTrainer, forward KL over the whole vocabulary (distillation_alpha 0)
    trl sdft, top 100  the same with its own default: the divergence over 100 tokens
    trl gold           GOLDTrainer, forward KL (beta 0); its teacher is a second model that reads
                       the student's prompt, so it reads less
    trl distillation   DistillationTrainer, forward KL (beta 0): TRL's loss in chunks; a teacher
                       like GOLD's
    ..., autocast      a TRL trainer with its own default, bf16: its adapters are computed in
                       bfloat16, too; on a GPU alone
    opsd, restated     what OPSD's public trainer does between rollout and optimizer, in our own
                       words (siyan-zhao/OPSD at 8ae338d: it needs other versions of its libraries)

Models: a Qwen3 of few layers with random weights and the full vocabulary, in float32 (bfloat16 on a
GPU, or where --sizes.dtype says so), and SmolLM2 where --smollm2 names its folder.

Every contender has a process of its own. Seconds are medians of several steps after a first one, on
a CPU those of the processors: other work on the machine does not count. Memory is the peak of the
first step beside what is loaded, models and trainer, so with gradients and the optimizer's
averages. The goal: half the seconds of the fastest peer, at half of its memory.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import torch
import tyro
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from models import random_qwen3
from paint.algorithms.paint import score_rollouts
from paint.config import schema as cfg
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models.policy import load_policy
from paint.models.teacher import open_teacher
from paint.resolve.check import check_config
from paint.training.train_step import Setup, accumulate, update
from workers import Worker, answers_alone, chosen, cpu_seconds_of, seconds_of, serve

TEMPERATURE, CLIP, LEARNING_RATE, MAX_NORM = 1.1, 0.06, 5e-6, 0.1
OURS = "paint"


def own_device() -> str:
    """Where all compute."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def own_dtype() -> cfg.Dtype:
    """In what all compute unless told otherwise."""
    return "bfloat16" if torch.cuda.is_available() else "float32"


@dataclass(frozen=True)
class Sizes:
    """A step's rows, and their numbers; every completion is a micro-batch of its own."""

    completions: int = 2
    """Completions of a step."""
    completion: int = 1024
    """Tokens of a completion."""
    prompt: int = 200
    """Tokens of the student's prompts."""
    teacher_prompt: int = 800
    """Tokens of the teacher's prompts, where a trainer has any."""
    dtype: cfg.Dtype = field(default_factory=own_dtype)
    """Number format of the weights; the adapters are float32."""


@dataclass(frozen=True)
class Options:
    """Time and memory of a training step, beside its peers'."""

    sizes: Sizes = Sizes()
    layers: int = 4
    """Layers of the Qwen3."""
    hidden: int = 1024
    """Its width."""
    vocabulary: int = 151_936
    """Rows of its head."""
    smollm2: Path | None = None
    """Folder of SmolLM2-135M-Instruct; None: only the Qwen3."""
    repeat: int = 3
    """Steps that are timed, after one that is not."""
    only: tuple[str, ...] = ()
    """Contenders, by name; none: all that can run here."""
    json: Path = Path("runs/bench-step.json")
    """File for the figures."""


@dataclass(frozen=True)
class Row:
    """The token ids of one completion and of the two prompts before it."""

    prompt: list[int]
    teacher_prompt: list[int]
    completion: list[int]


def rows_of(vocabulary: int, sizes: Sizes) -> list[Row]:
    """Random token ids, the same for all contenders."""
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> list[int]:
        return torch.randint(vocabulary, (length,), generator=generator).tolist()

    return [
        Row(ids(sizes.prompt), ids(sizes.teacher_prompt), ids(sizes.completion))
        for _ in range(sizes.completions)
    ]


# The contenders: each loads the model and returns what runs one step.

Run = Callable[[], Any]


def paint(path: str, sizes: Sizes) -> Run:
    """Ours: everything in paint.algorithms.paint.paint_step behind the rollouts."""
    model = cfg.ModelConfig(path=path, dtype=sizes.dtype)
    config = cfg.Config(
        model=model,
        train=cfg.TrainConfig(batch_size=sizes.completions, micro_batch_size=1, warmup_steps=0),
    )
    policy = load_policy(model, seed=0, device=own_device())
    optimizer = torch.optim.AdamW(policy.trainable, lr=LEARNING_RATE)
    absent = cast(Any, None)  # rollouts are given, and nothing is graded
    teacher = open_teacher(policy, config.teacher)
    setup = Setup(
        check_config(config), policy, teacher, [], absent, optimizer, Accelerator(), absent
    )

    rollouts = [
        Rollout(
            i,
            Problem("", "", "", str(i)),
            row.prompt,
            Completion(tuple(row.completion), (0.0,) * sizes.completion, truncated=True),
            "",
            TeacherPrompt("", False, row.teacher_prompt),
        )
        for i, row in enumerate(rows_of(policy.lm_head.out_features, sizes))
    ]

    def run() -> None:
        accumulate(setup, rollouts, partial(score_rollouts, setup))
        update(setup, 0)

    return run


def opsd(path: str, sizes: Sizes) -> Run:
    """OPSD's loss path: all logits of both views, entropies for its log, clipped forward KL."""
    policy = load_policy(cfg.ModelConfig(path=path, dtype=sizes.dtype), seed=0, device=own_device())
    optimizer = torch.optim.AdamW(policy.trainable, lr=LEARNING_RATE)
    rows = rows_of(policy.lm_head.out_features, sizes)
    teacher = open_teacher(policy, cfg.TeacherConfig())

    def logits(prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*prompt, *completion]], device=policy.device)
        made: Tensor = policy.base(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return made[0, len(prompt) - 1 : -1]

    def entropy(of: Tensor) -> float:
        log_probs = (of.detach() / TEMPERATURE).log_softmax(-1)
        return float(-(log_probs.exp() * log_probs).sum())

    def run() -> None:
        for row in rows:
            student = logits(row.prompt, row.completion)
            entropy(student)
            with torch.no_grad(), teacher.view():
                target = logits(row.teacher_prompt, row.completion)
                entropy(target)

            student, target = student / TEMPERATURE, target / TEMPERATURE
            divergence = nn.functional.kl_div(
                student.log_softmax(-1), target.log_softmax(-1), reduction="none", log_target=True
            )
            loss = divergence.clamp(max=CLIP).sum() / len(row.completion)
            (loss / len(rows)).backward()

        nn.utils.clip_grad_norm_(policy.trainable, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return run


def sdft(mode: str, path: str, sizes: Sizes, *, autocast: bool = False) -> Run:
    """TRL's SDFTTrainer; the teacher is the model without its adapter."""
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

    model, tokenizer = load(path, sizes.dtype)
    alpha = {"distillation_alpha": 0.0} if mode == "full_logits" else {}
    args = SDFTConfig(
        **arguments(sizes, autocast),
        num_generations=1,
        max_prompt_length=None,
        max_completion_length=sizes.completion,
        temperature=TEMPERATURE,
        distillation_mode=mode,
        **alpha,
    )
    examples = dataset({"prompt": "What is 1 + 1?", "privileged_context": "It is 2."})
    trainer = SDFTTrainer(
        model, args, examples, processing_class=tokenizer, peft_config=adapter(path)
    )

    def batch(row: Row) -> dict[str, Tensor]:
        return {
            "prompt_ids": tensor(row.prompt),
            "prompt_mask": ones(row.prompt),
            "completion_ids": tensor(row.completion),
            "completion_mask": ones(row.completion),
            "teacher_input_ids": tensor([*row.teacher_prompt, *row.completion]),
            "teacher_attention_mask": ones([*row.teacher_prompt, *row.completion]),
        }

    return steps_of(trainer, [batch(row) for row in rows_of(model.config.vocab_size, sizes)])


def gold(path: str, sizes: Sizes, *, autocast: bool = False) -> Run:
    """TRL's GOLDTrainer with a second copy of the model as teacher."""
    from trl.experimental.gold import GOLDConfig, GOLDTrainer

    (model, tokenizer), (teacher, _) = load(path, sizes.dtype), load(path, sizes.dtype)
    args = GOLDConfig(
        **arguments(sizes, autocast),
        max_length=None,
        max_completion_length=sizes.completion,
        temperature=TEMPERATURE,
        beta=0.0,
        lmbda=1.0,
    )
    chat = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "It is 2."},
    ]
    trainer = GOLDTrainer(
        model,
        teacher,
        args,
        train_dataset=dataset({"messages": chat}),
        processing_class=tokenizer,
        peft_config=adapter(path),
    )

    def batch(row: Row) -> dict[str, Tensor]:
        whole = [*row.prompt, *row.completion]
        labels = [*[-100] * len(row.prompt), *row.completion]
        return {
            "input_ids": tensor(whole),
            "attention_mask": ones(whole),
            "labels": tensor(labels),
            "prompts": tensor(row.prompt),
        }

    return steps_of(trainer, [batch(row) for row in rows_of(model.config.vocab_size, sizes)])


def distillation(path: str, sizes: Sizes, *, autocast: bool = False) -> Run:
    """TRL's DistillationTrainer with a second copy of the model as teacher."""
    from trl import DistillationConfig, DistillationTrainer

    (model, tokenizer), (teacher, _) = load(path, sizes.dtype), load(path, sizes.dtype)
    args = DistillationConfig(
        **arguments(sizes, autocast),
        max_completion_length=sizes.completion,
        temperature=TEMPERATURE,
        beta=0.0,
    )
    trainer = DistillationTrainer(
        model,
        teacher,
        args=args,
        train_dataset=dataset({"prompt": "What is 1 + 1?"}),
        processing_class=tokenizer,
        peft_config=adapter(path),
    )

    def batch(row: Row) -> dict[str, Tensor]:
        return {
            "prompt_ids": tensor(row.prompt),
            "prompt_mask": ones(row.prompt),
            "completion_ids": tensor(row.completion),
            "completion_mask": ones(row.completion),
        }

    return steps_of(trainer, [batch(row) for row in rows_of(model.config.vocab_size, sizes)])


CONTENDERS: dict[str, Callable[[str, Sizes], Run]] = {
    OURS: paint,
    "trl sdft": partial(sdft, "full_logits"),
    "trl sdft, top 100": partial(sdft, "topk_logits"),
    "trl gold": gold,
    "trl distillation": distillation,
    "opsd, restated": opsd,
    "trl sdft, autocast": partial(sdft, "full_logits", autocast=True),
    "trl gold, autocast": partial(gold, autocast=True),
    "trl distillation, autocast": partial(distillation, autocast=True),
}
ON_GPU_ALONE = {"trl sdft, autocast", "trl gold, autocast", "trl distillation, autocast"}


# What TRL's trainers have in common


def load(path: str, dtype: cfg.Dtype) -> tuple[Any, Any]:
    """Model and tokenizer as TRL takes them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    return model.to(own_device()), AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def adapter(path: str) -> Any:
    """The adapters of the paper's setting."""
    from peft import LoraConfig

    ours = cfg.ModelConfig(path=path)
    return LoraConfig(
        r=ours.lora_rank,
        lora_alpha=ours.lora_alpha,
        target_modules=list(ours.lora_targets),
        task_type="CAUSAL_LM",
    )


def arguments(sizes: Sizes, autocast: bool) -> dict[str, Any]:
    """Settings of a trainer that are ours, too, or keep it from reporting.

    Args:
        autocast: TRL's default, which also computes the adapters in bfloat16; otherwise everything
            is computed in its own format, as ours.
    """
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": sizes.completions,
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": MAX_NORM,
        "gradient_checkpointing": False,
        "bf16": autocast,
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
    }


def dataset(example: dict[str, Any]) -> Any:
    """A data set that a trainer wants to see; nothing of it is trained on."""
    from datasets import Dataset

    return Dataset.from_list([example] * 8)


def tensor(ids: Sequence[int]) -> Tensor:
    """One row of token ids."""
    return torch.tensor([ids], device=own_device())


def ones(ids: Sequence[int]) -> Tensor:
    """Its mask: nothing is padded."""
    return torch.ones_like(tensor(ids))


def steps_of(trainer: Any, batches: Sequence[dict[str, Tensor]]) -> Run:
    """The trainer's own steps over given rollouts, and its optimizer's as its loop does it."""
    trainer._prepare_inputs = lambda batch: batch  # else it would generate
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.create_optimizer()
    # TRL's loop counts the tokens of the whole step, and its losses divide by them.
    trained = [batch["labels" if "labels" in batch else "completion_ids"] for batch in batches]
    tokens = sum(int((ids != -100).sum()) for ids in trained)

    def run() -> None:
        for batch in batches:
            trainer.training_step(trainer.model, dict(batch), torch.tensor(tokens))
        nn.utils.clip_grad_norm_(trainer.model.parameters(), MAX_NORM)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return run


# The measurements


def work(answers: TextIO, name: str, path: str, sizes: Sizes) -> None:
    """The worker: build the contender, and run it for each line."""

    def build() -> Run:
        run = CONTENDERS[name](path, sizes)
        # The C library learns from what is freed how much memory to keep.
        torch.ones(2**22)
        return run

    serve(answers, build, seconds=seconds_of if torch.cuda.is_available() else cpu_seconds_of)


def compare(
    title: str,
    path: str,
    names: Sequence[str],
    options: Options,
    console: Console,
    store: Callable[[dict[str, dict[str, Any]]], None],
) -> dict[str, dict[str, Any]]:
    """Figures of every contender for one model, stored after each contender.

    One after the other: on a CPU they would share its memory. One that cannot run has an "error".
    """
    figures = dict[str, dict[str, Any]]()
    for name in names:
        console.print(f"{title}: {name}", style="dim")
        worker = Worker(__file__, [name, path, asdict(options.sizes)])
        figures[name] = {**worker.first, "seconds": []}
        for _ in range(0 if "error" in worker.first else options.repeat):
            seconds = worker("seconds")
            if isinstance(seconds, dict):  # it was ended: there was no memory left
                figures[name] = {**seconds, "seconds": []}
                break
            figures[name]["seconds"].append(seconds)
        worker.close()

        if "error" in figures[name]:
            console.print(f"{name} cannot run here: {figures[name]['error']}")
        store(figures)
    return figures


def beside_ours(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each peer's seconds and bytes over ours: medians, and peaks."""
    if OURS not in figures or not figures[OURS]["seconds"]:
        return {}
    ours = figures[OURS]
    return {
        name: {
            "seconds": statistics.median(found["seconds"]) / statistics.median(ours["seconds"]),
            "peak_bytes": found["peak_bytes"] / ours["peak_bytes"],
        }
        for name, found in figures.items()
        if name != OURS and found["seconds"]
    }


def verdict(ratios: dict[str, dict[str, float]]) -> str:
    """How far the goal is: twice as fast as the fastest peer, at half of its memory."""
    if not ratios:
        return "no peer ran"
    fastest = min(ratios, key=lambda name: ratios[name]["seconds"])
    seconds, peak = ratios[fastest]["seconds"], ratios[fastest]["peak_bytes"]
    met = "met" if seconds >= 2 and peak >= 2 else "missed"
    return (
        f"goal {met}: the fastest peer, {fastest}, takes {seconds:.2f} times our seconds and "
        f"{peak:.2f} times our memory (goal: 2 and 2)"
    )


def table(title: str, figures: dict[str, dict[str, Any]], options: Options) -> Table:
    """One model's figures."""
    sizes, ratios = options.sizes, beside_ours(figures)
    result = Table(
        title=f"{title}: a step of {sizes.completions} x {sizes.completion:,} tokens, "
        f"{sizes.dtype}, {torch.get_num_threads()} threads"
    )
    result.add_column("")
    for heading in ("seconds", "min to max", "tokens/s", "peak GB", "x our s", "x our GB"):
        result.add_column(heading, justify="right")
    for name, found in figures.items():
        if "error" in found:
            result.add_row(name, "-", found["error"][:40])
            continue
        s, ratio = found["seconds"], ratios.get(name)
        result.add_row(
            name,
            f"{statistics.median(s):.3g}",
            f"{min(s):.3g} to {max(s):.3g}",
            f"{found['tokens_per_second']:.0f}",
            f"{found['peak_bytes'] / 1e9:.2f}",
            f"{ratio['seconds']:.2f}" if ratio else "",
            f"{ratio['peak_bytes']:.2f}" if ratio else "",
        )
    return result


def main(options: Options) -> None:
    """Measure, print, store."""
    console = Console(width=140)
    gpu = torch.cuda.is_available()
    names = chosen([name for name in CONTENDERS if gpu or name not in ON_GPU_ALONE], options.only)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    about = {
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sizes": asdict(options.sizes),
    }

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        qwen3 = random_qwen3(
            Path(folder),
            layers=options.layers,
            hidden=options.hidden,
            vocabulary=options.vocabulary,
        )
        title = (
            f"Qwen3, {options.layers} layers, h = {options.hidden:,}, V = {options.vocabulary:,}"
        )
        paths = {title: qwen3}
        if options.smollm2 is not None and (options.smollm2 / "config.json").exists():
            paths["SmolLM2-135M"] = str(options.smollm2)
        else:
            console.print("SmolLM2 is skipped: --smollm2 names no folder that holds it")

        def store(title: str, figures: dict[str, dict[str, Any]]) -> None:
            tokens = options.sizes.completions * options.sizes.completion
            for found in figures.values():
                if found["seconds"]:
                    found["tokens_per_second"] = tokens / statistics.median(found["seconds"])
            ratios = beside_ours(figures)
            results[title] = {
                "contenders": figures,
                "beside_ours": ratios,
                "goal": verdict(ratios),
            }
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(about | {"models": results}, indent=1) + "\n")

        for title, path in paths.items():
            figures = compare(title, path, names, options, console, partial(store, title))
            console.print(table(title, figures, options))
            console.print(results[title]["goal"])
    console.print(f"written to {options.json}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        name, path, sizes = json.loads(sys.argv[2])
        work(answers_alone(), name, path, Sizes(**sizes))
    else:
        main(tyro.cli(Options, description=__doc__))
