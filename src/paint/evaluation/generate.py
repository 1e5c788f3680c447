"""One way to ask a policy: open its stores, open an engine, generate what is missing.

`paint eval`, experiments and the probe list their tasks and call ``asked``. Validation asks the
policy that is being trained, through the engine that training holds, on all ranks: it takes the
parts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from paint.config import schema as cfg
from paint.config.run_folder import require_checkpoint
from paint.config.schema import ConfigError
from paint.core.device import own_device
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.storage import SUMS, digest, digest_of_file, lock_folder
from paint.data.problems import DataError, Problem
from paint.evaluation.store import Sample, Store, StoreError, open_store, prompt_digest
from paint.inference.engine import Completion, Engine, Sampling, derive_seed
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.registry import engine_type
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.special_tokens import REASON, special_text_finder
from paint.models.weights import ADAPTER, load_trained, read_lora, weights_digest

PAPER_SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=38_912)

Prompts = Mapping[str, list[int]]
"""The token ids that the policy reads, by problem."""


@dataclass(frozen=True)
class SamplingProtocol:
    """How samples are drawn; the defaults are the paper's (section 'Experimental Details').

    Attributes:
        samples: k, a problem.
        shown: what the prompts show beside the problem, for the record; None is nothing, as in the
            deployment prompt.
    """

    samples: int = 12
    thinking: bool = True
    sampling: Sampling = PAPER_SAMPLING
    seed: int = 0
    shown: str | None = None


@dataclass(frozen=True)
class EvalTask:
    """One policy's samples of one problem set.

    Attributes:
        folder: of the store; its name is the problem set's, its parent's name the policy's.
        prompts: what is read of each problem.
        trained: folder of an adapter or, where every weight was trained, of a model; None is the
            base.
    """

    folder: Path
    problems: Sequence[Problem]
    prompts: Prompts
    protocol: SamplingProtocol
    trained: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.folder.parent.name}, {self.folder.name}"


def base_as_rank1_adapter(model: cfg.ModelConfig) -> cfg.ModelConfig:
    """The base model as a policy: under the smallest adapter, which changes nothing untrained."""
    return replace(
        model, train_mode="lora", lora_rank=1, lora_alpha=1, gradient_checkpointing=False
    )


def load_eval_policy(
    model: cfg.ModelConfig, rollout: cfg.RolloutConfig, *, seed: int = 0
) -> Policy:
    """The policy that is asked, on the device that ``rollout.engine`` leaves to it."""
    # With servers, this process only writes adapters and checks log-probs: the GPU is theirs.
    device = "cpu" if engine_type(rollout.engine).is_remote else own_device()
    return load_policy(model, seed=seed, device=device)


def deployment_prompts(policy: Policy, problems: Sequence[Problem], *, thinking: bool) -> Prompts:
    """What the student reads: the problem alone.

    Raises:
        DataError: a problem holds text that the model's chat format takes for control; none goes
            unasked.
    """
    for problem in problems:
        if found := special_text_finder(policy.tokenizer, problem=problem.problem):
            raise DataError(
                f"problem {problem.id} holds {REASON}{found} ({problem.problem[:60]!r} ...); the "
                f"model would read another conversation. Spell it otherwise"
            )
    return {p.id: policy.student_prompt(p.problem, thinking=thinking) for p in problems}


@contextmanager
def collect_samples(
    policy: Policy,
    model: cfg.ModelConfig,
    rollout: cfg.RolloutConfig,
    tasks: Sequence[EvalTask],
    folder: Path,
    display: Display,
) -> Iterator[list[Store]]:
    """The stores of all tasks, with every sample that was asked for.

    Args:
        policy: the base model, as it was loaded from ``model``.
        rollout: the engine that generates.
        tasks: those of the base model first, and those of one policy side by side.
        folder: where an engine keeps its log and its adapters.

    Raises:
        ConfigError: a prompt and its completion do not fit in the model's positions.
        StoreError: a folder holds an evaluation in another setting.
        CorruptFileError: what is stored, or what was trained, was changed since it was written.
        FolderInUse: another process is at work there.
        EngineError, LogprobMismatchError, PolicyError: of the engine, and of what was trained.
    """
    max_tokens = max(require_room(policy, task) for task in tasks)
    with wrap_errors(folder, StoreError, "choose another place (--folder)"):
        folder.mkdir(parents=True, exist_ok=True)

    with lock_folder(folder), ExitStack() as stack:
        stores = [
            stack.enter_context(open_task(policy, task, model=model.path, engine=rollout.engine))
            for task in tasks
        ]
        for store in stores:
            if store.dropped:
                display.note(f"{store.folder}: the last sample was cut short, and is asked again")

        if any(store.missing for store in stores):
            problems = [problem for task in tasks for problem in task.problems]
            setup = EngineSetup(policy, model, rollout, folder, display, max_tokens)
            with open_engine(setup, problems) as engine:
                _generate_all(policy, engine, tasks, stores, display)
        yield stores


def generate(
    policy: Policy, engine: Engine, task: EvalTask, store: Store, display: Display
) -> None:
    """Ask for every sample that is missing, and store each as soon as it is there."""
    missing, total = store.missing, len(store.rows)
    with display.counting(task.title, total, total - len(missing)) as count:

        def keep(index: int, completion: Completion) -> None:
            store.add(sample_of(policy, task, *missing[index], completion))
            count.add(len(completion.ids))

        engine.stream(
            [task.prompts[problem.id] for problem, _ in missing],
            task.protocol.sampling,
            sample_seeds(task.protocol, missing),
            keep,
        )
    store.write_sums()


def sample_seeds(protocol: SamplingProtocol, rows: Sequence[tuple[Problem, int]]) -> list[int]:
    """The seed of every (problem, sample): the same for all policies, engines and orders."""
    return [derive_seed(protocol.seed, sample, problem.id) for problem, sample in rows]


def sample_of(
    policy: Policy, task: EvalTask, problem: Problem, number: int, completion: Completion
) -> Sample:
    """What is stored of a completion."""
    prompt = task.prompts[problem.id]
    return Sample(
        problem.id,
        number,
        prompt_digest(prompt),
        policy.transcript(prompt, completion.ids),
        len(completion.ids),
        completion.truncated,
        completion.source,
    )


def open_task(
    policy: Policy, task: EvalTask, *, model: str, engine: str
) -> AbstractContextManager[Store]:
    """The store of a task, with the samples that an earlier, interrupted call left in it.

    Args:
        model: name of the base model, for the record; models are known by their weights.
        engine: local, vllm or merged, whose completions for one seed may differ.

    Raises:
        StoreError: the folder holds an evaluation in another setting.
    """
    protocol, trained = task.protocol, task.trained
    is_whole_model = trained is not None and policy.tuning == "full"
    identity = _trained_digest(trained) if trained else None
    setting = {
        "model": model,
        "weights": identity if is_whole_model else weights_digest(policy),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter": None if is_whole_model else identity,
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
    prompts = [task.prompts[problem.id] for problem in task.problems]
    return open_store(task.folder, setting, task.problems, prompts)


def require_room(policy: Policy, task: EvalTask) -> int:
    """The tokens of the longest prompt and the longest completion together.

    Raises:
        ConfigError: they do not fit in the model's positions; nothing is ever cut.
    """
    longest = max(map(len, task.prompts.values()))
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
    tasks: Sequence[EvalTask],
    stores: Sequence[Store],
    display: Display,
) -> None:
    is_base = True
    for trained, group in groupby(zip(tasks, stores, strict=True), key=lambda row: row[0].trained):
        unfinished = [(task, store) for task, store in group if store.missing]
        if not unfinished:
            continue

        if trained is not None:
            load_trained(policy, trained)
            is_base = False
        elif not is_base:
            raise ValueError("the base model is asked before what was trained from it")
        engine.sync_weights()
        for task, store in unfinished:
            generate(policy, engine, task, store, display)


def _trained_digest(trained: Path) -> str:
    """The identity of an adapter or a model: of its weights, and of an adapter's shape.

    What lies in a checkpoint must be what was written there.
    """
    checkpoint = trained.parent
    if (checkpoint / SUMS).exists() or (checkpoint / "state.json").exists():
        found = require_checkpoint(checkpoint, trained.name)
        weights = {
            name.removeprefix(f"{trained.name}/"): sum
            for name, sum in found.items()
            if name.endswith(".safetensors")
        }
    else:
        with wrap_errors(trained / ADAPTER, PolicyError, "name a folder with an adapter"):
            weights = {ADAPTER: digest_of_file(trained / ADAPTER)}
    if not weights:
        raise PolicyError(f"{trained} holds no weights (no *.safetensors)")

    shape: list[object] = []
    if ADAPTER in weights:
        lora = read_lora(trained)
        shape = [lora["r"], lora["lora_alpha"], sorted(lora["target_modules"])]
    return digest(json.dumps([weights, shape], sort_keys=True))[:16]
