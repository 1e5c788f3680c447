"""Sample generation for evaluations: open the stores, open an engine, generate missing samples.

Validation samples through the engine of the training, on all ranks, and shares the rest.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from chatforms.conventions import reads_clock, today
from paint.config import schema as cfg
from paint.config.recipe import to_table
from paint.config.run_folder import require_checkpoint
from paint.config.schema import ConfigError
from paint.core.device import own_device, product_slowdown
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.storage import SUMS, digest, digest_of_file, lock_folder, read_json
from paint.core.versions import versions
from paint.core.workspace import SETTINGS
from paint.data.problems import DataError, Problem
from paint.evaluation.store import SampleKey, Store, StoreError, open_store
from paint.grading.graders import FORMS
from paint.inference.conversations import Conversations, complete, open_conversations, with_tools
from paint.inference.engine import Completion, Engine, Sampling, derive_seed
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.rollout_grades import transcript_of
from paint.inference.rollouts import Rollout
from paint.models.model_errors import REASON, special_text_finder
from paint.models.policy import Policy, PolicyError, load_policy, load_tokenizer
from paint.models.prompts import student_chat
from paint.models.weights import ADAPTER, linear_layers_of, load_trained, read_lora, weights_digest
from paint.resolve.engines import engine_of
from paint.resolve.plan import SLOW, Machine, describe_slow, dtype_on
from paint.resolve.structure import position_limit

PROMPT_TOKENS = cfg.DataConfig().max_prompt_tokens
"""Most tokens of a prompt of a conversation in an evaluation."""

CONVERSATIONS_AT_ONCE = 256
"""Conversations of an evaluation that are sampled together, and lost together by a kill."""

PromptIds = Mapping[str, list[int]]  # prompt token ids by problem id


@dataclass(frozen=True)
class SamplingProtocol:
    samples: int  # k, of each problem
    thinking: bool
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class EvalTask:
    """One policy's samples of one problem set.

    Attributes:
        own_prompts: of samples that answer more than the problem, as of a teacher whose context
            depends on a completion, what each answers; others are then dropped from the store.
        settings: what else the samples depend on.
    """

    folder: Path  # the store's: POLICY/PROBLEM_SET
    problems: Sequence[Problem]
    prompts: PromptIds
    protocol: SamplingProtocol
    trained: Path | None = None  # folder of an adapter or a trained model; None for the base model
    own_prompts: Mapping[SampleKey, list[int]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def asked(self) -> Mapping[SampleKey, list[int]]:
        """Token ids of what each sample answers."""
        numbers = range(self.protocol.samples)
        return self.own_prompts or {
            (problem.id, n): self.prompts[problem.id] for problem in self.problems for n in numbers
        }


def base_as_rank1_adapter(model: cfg.ModelConfig) -> cfg.ModelConfig:
    """Return settings of the base model: a rank-1 adapter, which is the identity untrained."""
    return replace(
        model,
        train_mode="lora",
        lora_rank=1,
        lora_alpha=1,
        # One layer of rank 1 is enough for an identity, and the cheapest to serve.
        lora_targets=linear_layers_of(model.path)[:1],
        gradient_checkpointing=False,
    )


def load_eval_policy(config: cfg.Config) -> Policy:
    """Load the policy to evaluate, with its tools; with servers, which need GPUs, on the CPU."""
    model, device = config.model, own_device()
    if engine_of(config.rollout).is_remote:  # the policy itself only checks what servers answer
        device = torch.device("cpu")
        model = replace(model, dtype=dtype_on(model, Machine(gpus=1)))  # as theirs
    if device.type == "cpu" and model.dtype in ("bfloat16", "float16"):
        slowdown = product_slowdown(getattr(torch, model.dtype))
        if slowdown >= SLOW:
            Display().warn(f"model.dtype: {describe_slow(model.dtype, slowdown)}")
    policy = load_policy(model, seed=config.train.seed, device=device, prompts=config.prompts)
    return with_tools(policy, config.conversation)


def with_date(model: cfg.ModelConfig, folder: Path) -> cfg.ModelConfig:
    """Return the model with a date for a template that reads the clock, one for each folder.

    It is ``model.date``, or that of the runs and samples in the folder, or the current one.
    """
    if model.date != "auto" or not reads_clock(load_tokenizer(model.path)):
        return model
    # The records of samples and runs.
    for path in sorted([*folder.rglob(SETTINGS), *folder.rglob("run.json")]):
        day = read_json(path, "put it back as it was").get("conventions", {}).get("date")
        if day:
            return replace(model, date=day)
    return replace(model, date=today())


def deployment_prompts(policy: Policy, problems: Sequence[Problem], *, thinking: bool) -> PromptIds:
    """Return the deployment prompt of each problem, without a reference.

    Raises DataError for text that the chat format reads as a special token: none is skipped.
    """
    for problem in problems:
        found = special_text_finder(policy.tokenizer, problem=problem.problem)
        if found:
            raise DataError(
                f"problem {problem.name} contains {REASON}{found} ({problem.problem[:60]!r} ...), "
                f"which would change the conversation; spell it differently"
            )
    return {p.id: policy.student_prompt(p, thinking=thinking) for p in problems}


@contextmanager
def collect_samples(
    policy: Policy, config: cfg.Config, tasks: Sequence[EvalTask], folder: Path, display: Display
) -> Iterator[list[Store]]:
    """Generate the missing samples of all tasks and yield their complete stores.

    Args:
        policy: the base model, loaded from ``config`` (``load_eval_policy``).
        tasks: those of one policy side by side, since its weights are loaded for each group.
        folder: for the engine's log and adapters.
    """
    max_tokens = _most_tokens(policy, tasks, config.conversation)
    with wrap_errors(folder, StoreError, "choose another place (--output-dir)"):
        folder.mkdir(parents=True, exist_ok=True)

    with lock_folder(folder), ExitStack() as stack:
        stores = [stack.enter_context(open_task(policy, config, task)) for task in tasks]
        unfinished = [row for row in zip(tasks, stores, strict=True) if row[1].missing]
        # The base model's first: what is trained is loaded into the policy, and stays there.
        unfinished.sort(key=lambda row: row[0].trained is not None)
        if unfinished:
            problems = [problem for task in tasks for problem in task.problems]
            setup = EngineSetup(
                policy, config.model, config.rollout, folder, display, max_tokens, problems
            )
            with (
                open_engine(setup) as engine,
                open_conversations(policy, config.conversation, PROMPT_TOKENS) as conversations,
            ):
                # Weights are loaded once for all problem sets of a policy.
                for trained, group in groupby(unfinished, key=lambda row: row[0].trained):
                    if trained is not None:
                        load_trained(policy, trained)
                    engine.sync_weights()
                    for task, store in group:
                        generate(policy, engine, task, store, display, conversations)
        yield stores


def _most_tokens(
    policy: Policy, tasks: Sequence[EvalTask], conversation: cfg.ConversationConfig
) -> int:
    """The most tokens of a prompt and its completion in all tasks, for which one server starts."""
    most = max(require_context_length(policy, task) for task in tasks)
    if not conversation.is_on:
        return most
    # Later prompts are longer.
    longest = max(task.protocol.sampling.max_new_tokens for task in tasks) + PROMPT_TOKENS
    return int(min(max(longest, most), position_limit(policy.base.config)))


def generate(
    policy: Policy,
    engine: Engine,
    task: EvalTask,
    store: Store,
    display: Display,
    conversations: Conversations | None = None,
) -> None:
    """Generate every missing sample and store each as soon as it is complete."""
    missing, total = store.missing, len(store.rows)
    title = f"{task.folder.parent.name}, {task.folder.name}"
    with display.counting(title, total, total - len(missing)) as count:

        def add(sample: Rollout) -> None:
            store.add(sample)
            count.add(len(sample.completion.ids))

        def finish(index: int, completion: Completion) -> None:
            add(sample_of(policy, task, *missing[index], completion))

        if conversations is None:
            engine.stream(
                [task.asked[problem.id, number] for problem, number in missing],
                task.protocol.sampling,
                sample_seeds(task.protocol, missing),
                finish,
            )
        else:
            for start in range(0, len(missing), CONVERSATIONS_AT_ONCE):
                rows = missing[start : start + CONVERSATIONS_AT_ONCE]
                for sample in complete_samples(policy, engine, conversations, task, rows):
                    add(sample)
    store.write_sums()


def complete_samples(
    policy: Policy,
    engine: Engine,
    conversations: Conversations | None,
    task: EvalTask,
    rows: Sequence[tuple[Problem, int]],
) -> list[Rollout]:
    """Return a completion or a conversation of each (problem, sample)."""
    completions = complete(
        engine,
        conversations,
        [problem for problem, _ in rows],
        [task.asked[problem.id, number] for problem, number in rows],
        task.protocol.sampling,
        sample_seeds(task.protocol, rows),
        thinking=task.protocol.thinking,
    )
    samples = []
    for (problem, number), completion in zip(rows, completions, strict=True):
        samples.append(sample_of(policy, task, problem, number, completion))
    return samples


def sample_seeds(protocol: SamplingProtocol, rows: Sequence[tuple[Problem, int]]) -> list[int]:
    """Return the seed of every (problem, sample); it does not depend on policy, engine or order."""
    return [derive_seed(protocol.seed, sample, problem.id) for problem, sample in rows]


def sample_of(
    policy: Policy, task: EvalTask, problem: Problem, number: int, completion: Completion
) -> Rollout:
    """Return the rollout of a sample, as it is stored."""
    prompt = task.asked[problem.id, number]
    rollout = Rollout(number, problem, prompt, completion, "", grade=completion.conversation_grade)
    # With the tag that the prompt opened: else an answer in a thought that was cut off would count.
    return replace(rollout, text=transcript_of(policy, rollout))


def open_task(policy: Policy, config: cfg.Config, task: EvalTask) -> AbstractContextManager[Store]:
    """Open the store of a task, with the samples of earlier, interrupted calls."""
    protocol = task.protocol
    identity = checkpoint_digest(task.trained) if task.trained else None
    is_full_model = task.trained is not None and policy.tuning == "full"
    settings = {
        "model": config.model.path,  # for the record: models are the same if their weights are
        "weights": identity if is_full_model else weights_digest(policy),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter": None if is_full_model else identity,
        "end_ids": policy.end_ids,
        "date": policy.conventions.date,
        "conventions": policy.conventions.table(),
        "thinking": protocol.thinking,
        **asdict(protocol.sampling),
        "seed": protocol.seed,
        "engine": config.rollout.engine,  # completions of two engines for one seed may differ
        "samples": protocol.samples,
        "versions": versions("torch", "transformers", "strictgrade"),
        **task.settings,
    }
    if config.conversation.is_on:
        # What determines what answers the turns; not how long it takes.
        table = to_table(config)["conversation"]
        identifying = ("tools", "environment", "max_turns", "options")
        settings["conversation"] = {name: table[name] for name in identifying}
    replaces = bool(task.own_prompts)
    return open_store(task.folder, settings, task.problems, task.asked, replaces=replaces)


def other_form(prompts: cfg.PromptsConfig, graders: Sequence[str], problem: Problem) -> str:
    """Return a line where the student's prompt asks for other answers than graders read, or ""."""
    prompt = "\n".join(str(message["content"]) for message in student_chat(prompts, problem))
    # What the problem itself says is not what is asked for.
    prompt = prompt.replace(problem.problem, "")
    read = {name: FORMS[name] for name in graders if name in FORMS}
    asked = [form for form in FORMS.values() if form in prompt]
    if not read or not asked or any(form in asked for form in read.values()):
        return ""
    return (
        f"the student's prompt asks for {' and '.join(asked)}, and grading.grader "
        f"{', '.join(read)} reads {' and '.join(read.values())}: set prompts.student, or another "
        f"grading.grader"
    )


def fit_to_context(
    policy: Policy, protocol: SamplingProtocol, name: str, prompts: PromptIds, display: Display
) -> SamplingProtocol:
    """Return the protocol with answers that fit after the longest prompt of a set."""
    sampling, room = protocol.sampling, tokens_left(policy, prompts)
    if not 0 < room < sampling.max_new_tokens:
        return protocol
    display.warn(
        f"{name}: answers end after {room:,} tokens, not {sampling.max_new_tokens:,}: the longest "
        f"prompt leaves no more of the model's {position_limit(policy.base.config)} positions"
    )
    return replace(protocol, sampling=replace(sampling, max_new_tokens=int(room)))


def tokens_left(policy: Policy, prompts: Mapping[Any, list[int]]) -> float:
    """Return the tokens that fit after the longest prompt; infinite for a model without a limit."""
    return position_limit(policy.base.config) - max(map(len, prompts.values()))


def require_context_length(
    policy: Policy, task: EvalTask, setting: str = "rollout.max_new_tokens"
) -> int:
    """Return the longest prompt plus completion in tokens.

    Raises ConfigError, which names the setting of the completion, if it exceeds the context length.
    """
    longest = max(map(len, task.asked.values()))
    new = task.protocol.sampling.max_new_tokens
    room = tokens_left(policy, task.asked)
    if new > room:
        raise ConfigError(
            f"a prompt of {longest} tokens and {setting} {new} do not fit in "
            f"the model's {position_limit(policy.base.config)} positions; {setting} can be at most "
            f"{room}"
        )
    return longest + new


def checkpoint_digest(trained: Path) -> str:
    """Return a digest of the weights of an adapter or a model, and of an adapter's shape."""
    # Files in a checkpoint are verified against its checksums.
    checkpoint = trained.parent
    if (checkpoint / SUMS).exists() or (checkpoint / "state.json").exists():
        found = require_checkpoint(checkpoint, trained.name)
        names = [name for name in found if name.endswith(".safetensors")]
        weights = {name.removeprefix(f"{trained.name}/"): found[name] for name in names}
    else:
        with wrap_errors(trained / ADAPTER, PolicyError, "name a folder with an adapter"):
            weights = {ADAPTER: digest_of_file(trained / ADAPTER)}
    if not weights:
        raise PolicyError(f"{trained} holds no weights (no *.safetensors)")

    # The same tensors with another alpha are another policy.
    shape: list[object] = []
    if ADAPTER in weights:
        lora = read_lora(trained)
        shape = [lora["r"], lora["lora_alpha"], sorted(lora["target_modules"])]
    return digest(json.dumps([weights, shape], sort_keys=True))[:16]
