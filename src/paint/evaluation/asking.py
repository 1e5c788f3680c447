"""One way to ask a policy: open its stores, open an engine, generate what is missing.

`paint eval`, experiments and the probe differ in whom they ask, and in what is read. Validation asks
the policy that is being trained, on all ranks, and shares everything here but the engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from accelerate import PartialState

from paint import config as cfg
from paint.config import ConfigError
from paint.data.problems import Problem
from paint.display import Display
from paint.engines.open import open_engine
from paint.engines.protocol import Completion, Engine, Sampling, seed_of
from paint.evaluation.store import Sample, Store, StoreError, open_store, prompt_digest
from paint.files import digest_of_bytes
from paint.model.policy import Policy, load_policy
from paint.model.weights import load_trained

WEIGHTS_READ = 1_000
"""Numbers of each parameter that tell a base model from others, at least."""

READ_BYTES = 2**24
"""Bytes of a file that are in memory at once."""

PAPER_SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=38_912)

Prompts = Mapping[str, list[int]]
"""Token ids to be answered, by problem."""


@dataclass(frozen=True)
class Protocol:
    """How samples are drawn; the defaults are the paper's (section 'Experimental Details').

    Attributes:
        shown: what the prompts show beside the problem, for the record; None is nothing, as in the
            deployment prompt.
    """

    samples: int = 12
    thinking: bool = True
    sampling: Sampling = PAPER_SAMPLING
    seed: int = 0
    shown: str | None = None


@dataclass(frozen=True)
class Task:
    """One policy's samples of one problem set.

    Attributes:
        folder: of the store; its name is the problem set's, its parent's name the policy's.
        trained: folder of an adapter or, where every weight was trained, of a model; None is the base.
        prompts: what is read instead of the deployment prompts, as ``protocol.shown`` names it.
    """

    folder: Path
    problems: Sequence[Problem]
    protocol: Protocol
    trained: Path | None = None
    prompts: Prompts | None = None

    @property
    def title(self) -> str:
        return f"{self.folder.parent.name}, {self.folder.name}"


def untrained(model: cfg.Model) -> cfg.Model:
    """The model as it is: under an adapter as small as there can be, which changes nothing."""
    return replace(model, tuning="lora", lora_rank=1, lora_alpha=1, gradient_checkpointing=False)


def load_asked(model: cfg.Model, rollout: cfg.Rollout, *, seed: int = 0) -> Policy:
    """The policy that is asked, on the device where ``rollout.engine`` wants it."""
    # With servers, this process only writes adapters and checks log-probs: the GPU is theirs.
    device = "cpu" if rollout.engine == "vllm" else PartialState().device
    return load_policy(model, seed=seed, device=device)


@contextmanager
def asked(
    policy: Policy,
    model: cfg.Model,
    rollout: cfg.Rollout,
    tasks: Sequence[Task],
    folder: Path,
    display: Display,
) -> Iterator[list[Store]]:
    """The stores of all tasks, with every sample that was asked for.

    Args:
        policy: the base under an adapter that changes nothing, as it was loaded from ``model``.
        rollout: the engine that answers.
        tasks: those of the base model first.
        folder: where an engine keeps its log and its adapters.

    Raises:
        ConfigError: a prompt and its completion do not fit in the model's positions.
        StoreError: a folder holds an evaluation in another setting.
        EngineError, EngineGap, PolicyError: of the engine, and of what was trained.
    """
    max_tokens = max(require_room(policy, task) for task in tasks)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(open_task(policy, task, model=model.path, engine=rollout.engine))
            for task in tasks
        ]
        for store in stores:
            if store.dropped:
                display.note(
                    f"{store.folder}: {store.dropped} damaged lines are dropped and asked for again"
                )

        if any(store.missing for store in stores):
            problems = [problem for task in tasks for problem in task.problems]
            with open_engine(
                policy, model, rollout, folder, display, problems=problems, max_tokens=max_tokens
            ) as engine:
                _generate_all(policy, engine, tasks, stores, display)
        yield stores


def generate(
    policy: Policy, engine: Engine, task: Task, store: Store, display: Display
) -> None:
    """Ask for every sample that is missing, and store each as soon as it is there."""
    missing = store.missing
    prompts = prompts_of(policy, task)
    total = len(store.rows)

    with display.counting(task.title, total, total - len(missing)) as count:

        def keep(number: int, completion: Completion) -> None:
            problem, sample = missing[number]
            store.add(sample_of(policy, problem.id, sample, prompts[problem.id], completion))
            count.add(len(completion.ids))

        engine.stream(
            [prompts[problem.id] for problem, _ in missing],
            task.protocol.sampling,
            sample_seeds(task.protocol, missing),
            keep,
        )


def prompts_of(policy: Policy, task: Task) -> Prompts:
    """What is read: the deployment prompts in the protocol's thinking mode, if nothing else is given."""
    if task.prompts is not None:
        return task.prompts
    thinking = task.protocol.thinking
    return {p.id: policy.student_prompt(p.problem, thinking=thinking) for p in task.problems}


def sample_seeds(protocol: Protocol, rows: Sequence[tuple[Problem, int]]) -> list[int]:
    """The seed of every (problem, sample): the same for all policies, engines and orders."""
    return [seed_of(protocol.seed, sample, problem.id) for problem, sample in rows]


def sample_of(
    policy: Policy, problem: str, number: int, prompt: Sequence[int], completion: Completion
) -> Sample:
    """What is stored of a completion."""
    return Sample(
        problem,
        number,
        prompt_digest(prompt),
        policy.transcript(prompt, completion.ids),
        len(completion.ids),
        completion.truncated,
        completion.source,
    )


def open_task(
    policy: Policy, task: Task, *, model: str, engine: str
) -> AbstractContextManager[Store]:
    """The store of a task: what an earlier, interrupted call left counts.

    Args:
        model: name of the base model, for the record; models are known by their weights.
        engine: kind of the engine (local, vllm, merged): their completions for one seed may differ.

    Raises:
        StoreError: the folder holds an evaluation in another setting.
    """
    protocol, trained = task.protocol, task.trained
    setting = {
        "model": model,
        "weights": _files_digest(trained)
        if trained and policy.tuning == "full"
        else _weights_digest(policy),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter": _files_digest(trained) if trained and policy.tuning == "lora" else None,
        "end_ids": policy.end_ids,
        "thinking": protocol.thinking,
        "shown": protocol.shown,
        **asdict(protocol.sampling),
        "seed": protocol.seed,
        "engine": engine,
        "samples": protocol.samples,
        "versions": {
            name: version(name) for name in ("paint", "torch", "transformers", "math-verify")
        },
    }
    prompts = prompts_of(policy, task)
    ordered = [prompts[problem.id] for problem in task.problems]
    return open_store(task.folder, setting, task.problems, ordered)


def require_room(policy: Policy, task: Task) -> int:
    """The tokens of the longest prompt and a completion.

    Raises:
        ConfigError: they do not fit in the model's positions; nothing is ever cut.
    """
    longest = max(map(len, prompts_of(policy, task).values()))
    new = task.protocol.sampling.max_new_tokens
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    if positions is not None and longest + new > positions:
        raise ConfigError(
            f"a prompt of {longest} tokens and max_new_tokens {new} do not fit in the model's "
            f"{positions} positions; max_new_tokens can be at most {positions - longest}"
        )
    return longest + new


def _generate_all(
    policy: Policy,
    engine: Engine,
    tasks: Sequence[Task],
    stores: Sequence[Store],
    display: Display,
) -> None:
    loaded: Path | None = None
    engine.adopt()
    for task, store in zip(tasks, stores, strict=True):
        if not store.missing:
            continue
        if task.trained != loaded:
            if task.trained is None:
                raise ValueError("the base model is asked before what was trained from it")
            load_trained(policy, task.trained)
            engine.adopt()
            loaded = task.trained
        generate(policy, engine, task, store, display)


def _weights_digest(policy: Policy) -> str:
    """What tells the base model from others under its path: some numbers of every parameter."""

    def parts() -> Iterator[bytes]:
        for name, value in policy.base.named_parameters():
            if "lora_" not in name:
                flat = value.detach().flatten()
                sample = flat[:: max(1, len(flat) // WEIGHTS_READ)].cpu().contiguous()
                yield name.replace(".base_layer", "").encode()
                yield sample.view(torch.uint8).numpy().tobytes()

    return digest_of_bytes(parts())[:16]


def _files_digest(folder: Path) -> str:
    """What tells an adapter or a model from another: its weights, and an adapter's shape."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise StoreError(f"{folder} holds no weights (no *.safetensors)")

    def parts() -> Iterator[bytes]:
        for path in (*weights, *folder.glob("adapter_config.json")):
            try:
                with path.open("rb") as file:
                    yield from iter(lambda: file.read(READ_BYTES), b"")  # noqa: B023
            except OSError as error:
                raise StoreError(f"{path} cannot be read: {error.strerror}") from error

    return digest_of_bytes(parts())[:16]
