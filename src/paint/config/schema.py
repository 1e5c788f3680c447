"""Settings of training and evaluation, as frozen dataclasses.

The defaults are the paper's (section 'Experimental Details') but for objective.clip_mode, or those
of OPSD's public scripts (siyan-zhao/OPSD at 590ec26), or ours. The docstring below a field is its
help text, and says which. Ranges are checked whenever a section is built (paint.core.settings),
types when a table is read (paint.config.recipe), rules between settings in paint.resolve.check.
"""

import re
import shlex
from dataclasses import dataclass, field, replace
from datetime import date
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

from paint.config.collapse import COLLAPSE_WARNINGS
from paint.config.context_sources import SOURCES, context_source, sources_help
from paint.core.errors import ConfigError as ConfigError  # others import it from here
from paint.core.extensions import OptionTable, options_of
from paint.core.schedules import linear
from paint.core.settings import (
    MAX_COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Check,
    Section,
    is_folder_name,
    require,
    require_default,
    setting,
    within,
)

Dtype = Literal["float32", "bfloat16", "float16"]
ClipMode = Literal["huber", "pointwise", "token", "none"]
Reduction = Literal["completion", "token"]
Impl = Literal["auto", "reference", "chunked", "triton"]


def as_paths(path: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one source of problems or several as a tuple; () where there is none."""
    if isinstance(path, tuple):
        return path
    return (path,) if path.strip() else ()


def source_name(path: str) -> str:
    """Return a file's name without ending, or what follows the owner of a data set of the hub."""
    return _ENDING.sub("", Path(path).name)


def _are_paths(path: str | tuple[str, ...]) -> bool:
    return not isinstance(path, tuple) or (bool(path) and all(map(_is_filled, path)))


def _have_distinct_names(path: str | tuple[str, ...]) -> bool:
    names = tuple(map(source_name, as_paths(path)))
    return len(set(names)) == len(names)


def _is_filled(text: str) -> bool:
    return bool(text.strip())


def _distinct(what: str, *, least: int = 0) -> Check:
    def accepts(texts: tuple[str, ...]) -> bool:
        return len(set(texts)) == len(texts) >= least and all(map(_is_filled, texts))

    return Check(f"distinct {what}", accepts)


def _each(what: str, pattern: str) -> Check:
    compiled = re.compile(pattern, re.ASCII)
    return Check(what, lambda texts: all(map(compiled.fullmatch, texts)))


def _is_command_line(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


_ENDING = re.compile(r"\.(jsonl|json|csv|tsv|parquet)$", re.IGNORECASE)

COMMAND_LINE = [Check("a command line whose quotes are closed", _is_command_line)]
TEMPERATURE = within("[0.001, 1000]")
TOP_K = [Check("at least 1, or -1", lambda top_k: top_k >= 1 or top_k == -1)]
# What "auto" becomes on a CPU, and for a model that has no plan.
CPU_ROWS, CPU_TOKENS = 4, 4096
SECONDS = within("(0, 31536000]")  # at most a year
NAME = [Check("a name", _is_filled)]
SOURCES_OF_PROBLEMS = [
    Check("a path, or several", _are_paths),
    Check(
        "sources of distinct names, which are files' without folder and ending; rename one, or "
        "link to it by another name",
        _have_distinct_names,
    ),
]
FOLDER = [Check("a folder", _is_filled)]
# IPv6 in brackets, or a name; no user and no query, which run.json and logs would show.
_HOST = r"(\[[\da-fA-F:.]+\]|[^\s/:\[\]@?#]+)"
ADDRESSES = [
    _distinct("addresses"),
    _each(
        "addresses with http:// or https://, and without user and query; the servers' key is the "
        "environment variable VLLM_API_KEY",
        rf"https?://{_HOST}(:[1-9]\d*)?(/[^\s@?#]*)?",
    ),
]
NONE_ALONE = Check(
    "several without none, or none alone", lambda names: "none" not in names or len(names) == 1
)
GPUS = [_each("GPUs for each server, such as 4 or 4,5", r"[\w-]+(,[\w-]+)*")]
NOT_NEGATIVE_NUMBER = within("[0, inf)")


def _is_date(text: str) -> bool:
    try:
        # fromisoformat takes 20261126 and 2026-W48-4, too.
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


DATE = [Check("auto or a date such as 2026-11-26", lambda text: text == "auto" or _is_date(text))]

ALL_LINEAR = "all-linear"
"""Target of adapters that stands for every linear layer but the head."""


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """Model, its number format and its adapters."""

    path: str = ""
    """Folder or hub name of the model; "demo" is the embedded one. Required."""
    dtype: Dtype | Literal["auto"] = "auto"
    """Number format of the frozen weights; what is trained is float32 (ours). auto is bfloat16
    (OPSD's scripts); float32 on CPUs slow at bfloat16, and with train_mode full (ours)."""
    train_mode: Literal["lora", "full"] = "lora"
    """LoRA adapters, or every weight, with a frozen copy as the teacher (paper: LoRA)."""
    lora_rank: int = setting(64, POSITIVE)
    """Rank r of the LoRA adapters, at least 1 (paper: Experimental Details, r = 64)."""
    lora_alpha: int = setting(128, POSITIVE)
    """LoRA scale: updates are multiplied by alpha / rank (paper: Experimental Details, 128)."""
    lora_targets: tuple[str, ...] = setting(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        [_distinct("layer names", least=1)],
    )
    """Linear layers that get an adapter, or all-linear (paper: Experimental Details, these seven).
    Experts get none (docs/how-to/adapters.md)."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass. auto: where one row needs it on a GPU (ours)."""
    shard: bool = False
    """Shard the frozen layers over a machine's ranks; the result is the same (ours)."""
    quantization: Literal["none", "nf4"] = "none"
    """nf4 rounds the frozen layers to 4 bits at loading, which changes the base model (ours)."""
    student_thinking: bool = False
    """Thinking mode of the student's prompt (OPSD's scripts: off; the paper is silent)."""
    teacher_thinking: bool = True
    """Thinking mode of the teacher's prompt (OPSD's scripts: on; docs/fidelity.md, D9)."""
    liger: bool = True
    """On CUDA, use the kernels of liger-kernel for rotary positions, RMS norms and SwiGLU, where it
    is installed and the layers are Llama's; values differ by rounding only (ours)."""
    date: str = setting("auto", DATE)
    """Date for a chat template that reads the clock, YYYY-MM-DD; auto: that of the start (ours)."""
    attention: str = setting("sdpa", NAME)
    """Attention implementation as transformers names it: sdpa, eager, flash_attention_2 (ours)."""


class DataSource(NamedTuple):
    path: str  # as in data.path
    name: str  # "" of the only one
    weight: float


@dataclass(frozen=True, slots=True)
class DataConfig(Section):
    """Training problems and how they are read."""

    path: str | tuple[str, ...] = setting("", SOURCES_OF_PROBLEMS)
    """Problems: a JSONL, JSON, CSV or Parquet file, a hub name such as owner/name:config@split, or
    "demo", the embedded family. Several are a mixture (docs/how-to/mixtures.md). Required."""
    weights: tuple[float, ...] = setting(
        (), [Check("numbers above 0", lambda weights: all(0 < w < inf for w in weights))]
    )
    """Problems that a run draws of each source, relative to the others; empty: 1 each (ours)."""
    problem_field: str = setting("problem", NAME)
    """Field that holds the problem x: text, or chat messages (docs/how-to/own-data.md)."""
    solution_field: str = setting("solution", NAME)
    """Field that holds the verified solution y*. Rows may lack it where no setting needs it."""
    answer_field: str = setting("answer", NAME)
    """Field of the gold answer; rows may lack it. One in an object: reward_model.ground_truth."""
    id_field: str = setting("id", NAME)
    """Field that names a row. Rows without "id" are named by their number."""
    turns: Literal["last", "all"] = "last"
    """Assistant turns of a chat that are the solution: last, or all, as a conversation (ours)."""
    max_prompt_tokens: int = setting(8192, POSITIVE)
    """Longest prompt (sft: and solution), in tokens; longer ones are refused, never cut (ours)."""
    on_bad_row: Literal["error", "skip"] = "error"
    """On a row that fails a check: stop with its number and the reason, or skip and count it."""
    limit: int | None = setting(None, POSITIVE)
    """Number of valid rows of each source, from the first; None is all (paper: up to 30K)."""

    @property
    def paths(self) -> tuple[str, ...]:
        return as_paths(self.path)

    @property
    def place(self) -> str:
        return ", ".join(self.paths)

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The sources of problems. ``data.weights`` must fit them (paint.resolve.check)."""
        paths = self.paths
        weights = self.weights or (1.0,) * len(paths)
        names = map(source_name, paths) if len(paths) > 1 else [""]
        return tuple(map(DataSource, paths, names, weights))

    def of(self, path: str) -> "DataConfig":
        return replace(self, path=path, weights=())


@dataclass(frozen=True, slots=True)
class RolloutConfig(Section):
    """How completions are sampled, and where."""

    engine: str = "auto"
    """local is the training process, vllm vLLM servers, stored the completions of rollout.stored;
    module:Class is your own. auto is vllm above 4,096 tokens, with a GPU and vLLM; else local."""
    stored: str = ""
    """With engine stored: a run, an evaluation or a JSONL file (ours; docs/how-to/rollouts.md)."""
    temperature: float = setting(1.1, TEMPERATURE)
    """Sampling temperature, in [0.001, 1000] (paper: 1.1 in training, 1.0 in evaluation)."""
    top_p: float = setting(0.95, within("(0, 1]"), "1 is off")
    """Share of probability that is kept, in (0, 1]; 1 is off (OPSD's scripts, 0.95)."""
    top_k: int = setting(20, TOP_K, "-1 is off")
    """Number of most likely tokens kept, at least 1; -1 is off (OPSD's scripts, 20)."""
    max_new_tokens: int = setting(1024, POSITIVE)
    """Longest completion, in tokens (paper: 1024 in training, 38,912 in evaluation)."""
    samples_per_problem: int = setting(1, POSITIVE)
    """Completions of each problem in a step (paper: Algorithm 1, 1; grpo: Main Results, 8)."""
    batch_size: int = setting(32, POSITIVE)
    """Most rows generated at once by a rank or a vLLM server; changes speed and memory only."""
    max_logprob_mismatch: float = setting(0.05, within("(0, inf]"), "nats; inf is off")
    """Largest mean difference of the engine's and the trainer's log-probs of a step's tokens, in
    nats, above 0; beyond it the run stops before the update (ours; in float32, 0.001 is enough)."""
    urls: tuple[str, ...] = setting((), ADDRESSES, "such as http://node1:8000")
    """Addresses of running vLLM servers; empty: the run starts its own (docs/how-to/vllm.md)."""
    server: str = setting("vllm serve", [*NAME, *COMMAND_LINE])
    """Command that starts the run's own vLLM server; it may be in another environment."""
    server_gpus: tuple[str, ...] = setting((), GPUS, "cpu: none")
    """GPUs of the run's own servers, one server per entry, as CUDA_VISIBLE_DEVICES has them: 4, or
    4,5 for two GPUs; cpu is none. Empty: one server with the trainer's (`--gpus` sets it; ours)."""
    server_args: str = setting("", COMMAND_LINE)
    """Further arguments of the run's own server, with = before the dashes:
    --rollout.server-args="--gpu-memory-utilization 0.4"."""
    server_timeout: float = setting(900.0, SECONDS)
    """Seconds to wait for a server. If no other is left, the run stops with a checkpoint."""
    timeout: float = setting(1800.0, SECONDS)
    """Seconds that one completion may take before it is requested again."""
    off_policy_steps: int = setting(0, within("[0, 64]"))
    """Steps from sampling to training, in [0, 64] (paper: Algorithm 1, 0: on policy)."""
    colocate: bool = False
    """Let servers free their GPU's memory between rollouts (vLLM's sleep mode, level 1)."""
    options: OptionTable = options_of("engine")
    """Options that an engine of your own declares, by name (docs/how-to/extend.md)."""


@dataclass(frozen=True, slots=True)
class ContextConfig(Section):
    """The teacher's privileged context: source, mask ratio and placement
    (docs/how-to/own-context.md)."""

    mask_ratio_wrong: float = setting(0.30, within("[0, 1)"))
    """Mask ratio rho_wrong of a completion without overlap, in [0, 1) (paper: 0.30)."""
    mask_ratio_correct: float = setting(0.40, within("[0, 1)"))
    """Mask ratio rho_correct of full overlap, in [mask_ratio_wrong, 1) (paper: 0.40)."""
    placement: Literal["suffix", "prefix", "middle", "random", "punctuation"] = "suffix"
    """Which part is hidden (paper: suffix); punctuation: a suffix from the end of a sentence on."""
    source: tuple[str, ...] = setting(
        ("solution",), [_distinct("sources", least=1), NONE_ALONE], help_text=sources_help()
    )
    """What the teacher reads, one or several sources (paint.config.context_sources)."""
    text: str = ""
    """The context of source text, the same for all rows: rules, a system prompt, a description."""
    file: str = ""
    """Text file with the context of source file, the same for all rows."""
    alignment: Literal["anchors", "words", "fixed"] = "anchors"
    """What the overlap compares: anchors (mathematics; paper), or words, sequences of three (prose,
    code; ours); fixed masks mask_ratio_wrong of any (ours). Without anchors all is shown (ours)."""
    wording: Literal["as_shown", "complete", "part"] = "as_shown"
    """How the reference is announced (paper: part); as_shown: complete if nothing is hidden."""
    options: OptionTable = options_of("source")
    """Options that your own function declares, by name (docs/how-to/extend.md)."""

    def __post_init__(self) -> None:
        # Not super(), which fails here: for slots, dataclass makes a second class of this name.
        Section.__post_init__(self)
        allowed = f"at least context.mask_ratio_wrong = {self.mask_ratio_wrong}"
        is_ordered = self.mask_ratio_correct >= self.mask_ratio_wrong
        require(self, "mask_ratio_correct", is_ordered, allowed, "equal: a fixed ratio")
        measuring = [s for s in self.source if context_source(s).bounded_by == "setting"]
        for key in (name for name, source in SOURCES.items() if source.origin == "setting"):
            is_set, is_shown = bool(getattr(self, key).strip()), key in self.source
            # other_text is as long as a text that no source need show.
            is_measured = is_set and bool(measuring)
            allowed = f"set exactly where context.source names {key}"
            note = f"context.source: {', '.join(self.source)}"
            require(self, key, is_set == is_shown or is_measured, allowed, note)
        has_text = bool(self.text.strip() or self.file)
        allowed = f"other than {', '.join(measuring)} without context.text or context.file"
        require(self, "source", has_text or not measuring, allowed, "it is as long as they are")


@dataclass(frozen=True, slots=True)
class PromptsConfig(Section):
    """Wording of the prompts (docs/how-to/own-context.md). Each is a Jinja2 template of the last
    user turn, in which the fields of the row stand by name. Empty: the paper's wording."""

    student: str = ""
    """Prompt of the student (paper: Prompt views); of chat messages by default the chat itself."""
    teacher: str = ""
    """Prompt of the teacher, with the masked reference as `context` and the student's turn as
    `student` (paper: Prompt views). Default for your own student's: reference and turn (ours)."""
    teacher_system: str = ""
    """System turn of the teacher, in place of the row's own; the default of prompts.teacher is then
    the student's turn alone (ours)."""


PAPER_PROMPTS = PromptsConfig()


@dataclass(frozen=True, slots=True)
class TeacherConfig(Section):
    """The teacher's weights."""

    weights: Literal["frozen", "ema", "live"] = "frozen"
    """frozen is the model before training, live the student's own weights, ema a moving average of
    them that starts at the student (paper: frozen; Training Algorithm names ema)."""
    decay: float = setting(0.99, within("[0, 1)"))
    """EMA decay: the share of the average that a step keeps, in [0, 1); for ema only (ours)."""
    every: int = setting(1, POSITIVE)
    """Steps between updates of the average, at least 1; for ema only (ours)."""


@dataclass(frozen=True, slots=True)
class LossSettings(Section):
    """The options of the loss that a config and the loss have alike (paint.objective)."""

    clip: float = 0.06
    """Clipping threshold tau, in nats, above 0 (paper: Eq. clipped_fkl, 0.06)."""
    clip_mode: ClipMode = "huber"
    """How clip bounds a token: huber limits its gradient (ours), pointwise cuts each entry's term
    (paper), token drops tokens above clip, none bounds nothing (docs/concepts/clip.md)."""
    interpolation_weight: float = setting(0.03, within("[0, 1]"))
    """Interpolation weight k_base, in [0, 1]; 0 is off (paper: Eq. sparse_energy_interp, 0.03)."""
    top_fraction: float = setting(0.03, within("[0, 1]"))
    """Share f_top of interpolated positions, in [0, 1] (paper: Eq. sparse_selector_objective)."""
    reduction: Reduction = "completion"
    """What the loss is a mean over, of every method: each completion's tokens and then completions
    (paper: Eq. clipped_fkl), or all tokens of the optimizer step."""
    skip_tokens: int = setting(0, NOT_NEGATIVE)
    """First tokens of a completion that every loss leaves out, at least 0 (ours; paper: none)."""
    impl: Impl = "auto"
    """What computes the loss: auto is triton on a GPU with a C compiler, and else chunked;
    reference holds a micro-batch's logits. Changes speed and memory, never the result."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        is_positive = self.clip > 0 or self.clip_mode == "none"
        require(self, "clip", is_positive, "above 0", 'off: objective.clip_mode "none"')


@dataclass(frozen=True, slots=True)
class ObjectiveConfig(LossSettings):
    """How the student is trained towards the teacher."""

    divergence: str = "forward_kl"
    """forward_kl (paper: Eq. clipped_fkl), reverse_kl, jsd, module:name, or sampled_token: reverse
    KL by policy gradient, with clip-mode none or huber, top-p 1 and top-k -1."""
    temperature: float | None = setting(None, TEMPERATURE)
    """Temperature T of both distributions, in [0.001, 1000]; None: of the rollouts (ours)."""
    sft_weight: float = setting(0.0, NOT_NEGATIVE_NUMBER, "0 is off")
    """Weight of sft's loss on the solutions, at least 0 (docs/how-to/variants.md)."""
    sft_weight_end: float | None = setting(None, NOT_NEGATIVE_NUMBER)
    """Weight after sft_weight_steps steps, reached linearly; None: always sft_weight (ours)."""
    sft_weight_steps: int = setting(50, POSITIVE)
    """Steps from sft_weight to sft_weight_end, at least 1 (ours)."""
    options: OptionTable = options_of("divergence")
    """Options that a divergence of your own declares, by name (docs/how-to/extend.md)."""

    @property
    def has_sft(self) -> bool:
        return bool(self.sft_weight or self.sft_weight_end)

    def sft_weight_of(self, step_index: int) -> float:
        return linear(step_index, self.sft_weight, self.sft_weight_end, self.sft_weight_steps)


@dataclass(frozen=True, slots=True)
class TrainConfig(Section):
    """Method, steps, batch sizes and optimizer."""

    method: str = "distillation"
    """Algorithm of a step: distillation (PAINT, OPSD), grpo or sft (paper: Compared post-training
    recipes), or module:Class, a variant or your own (docs/how-to/variants.md)."""
    steps: int = setting(100, POSITIVE)
    """Optimizer steps (paper: Experimental Details, 100). train.epochs takes their place."""
    epochs: float | None = setting(None, within("(0, 10000000]"))
    """In place of train.steps: how often each problem of the only source is drawn (ours)."""
    batch_size: int = setting(32, POSITIVE)
    """Completions per optimizer step, over all ranks (paper: Experimental Details, 32)."""
    micro_batch_size: int | Literal["auto"] = setting("auto", POSITIVE)
    """Most completions in a forward and backward pass of a rank; changes speed, memory and the
    order of sums. auto: no limit but that of the tokens on a GPU, 4 on a CPU (ours)."""
    micro_batch_tokens: int | Literal["auto"] = setting("auto", POSITIVE)
    """Most tokens in such a pass: its rows times the longest prompt and completion. A longer row is
    a pass by itself. auto: what fits on a GPU by the memory plan, 4,096 on a CPU (ours)."""
    learning_rate: float = setting(5e-6, within("(0, inf)"))
    """Learning rate after the warm-up (paper: Experimental Details, 5e-6; constant: ours)."""
    warmup_steps: int = setting(0, NOT_NEGATIVE)
    """Steps of a linear warm-up from zero, at most train.steps (OPSD's scripts: none)."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 (OPSD's scripts: constant)."""
    optimizer: str = "adamw"
    """adamw; adamw8bit of bitsandbytes, with 2 bytes a trained weight in place of 8; or
    module:Class, one of your own (paint.resolve.optimizer) (OPSD's scripts: AdamW)."""
    weight_decay: float = setting(0.0, NOT_NEGATIVE_NUMBER)
    """The optimizer's decay of the adapters, at least 0 (OPSD's scripts: none)."""
    max_grad_norm: float = setting(0.1, within("(0, inf)"))
    """Largest gradient norm, above 0; larger ones are scaled to it (OPSD's scripts: 0.1)."""
    seed: int = setting(0, NOT_NEGATIVE)
    """Seed of the order of problems, of sampling and of the adapters, at least 0."""
    checkpoint_every: int = setting(20, POSITIVE)
    """Steps between checkpoints (paper: Experimental Details, evaluated every 20 steps)."""
    options: OptionTable = options_of("method", grpo="paint.resolve.algorithm:Grpo")
    """Options that the algorithm declares, by name: of grpo, a variant, or your own."""
    optimizer_options: OptionTable = options_of("optimizer")
    """Options that an optimizer of your own declares, by name (docs/how-to/extend.md)."""

    @property
    def row_limit(self) -> int:
        """``micro_batch_size`` as a number; that of a CPU until a plan has chosen it."""
        return CPU_ROWS if self.micro_batch_size == "auto" else self.micro_batch_size

    @property
    def token_limit(self) -> int:
        """``micro_batch_tokens`` as a number; those of a CPU until a plan has chosen them."""
        return CPU_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        # The steps of epochs are known when the problems are counted.
        is_met = self.epochs is not None or self.warmup_steps <= self.steps
        require(self, "warmup_steps", is_met, f"at most train.steps = {self.steps}", "default: 0")


@dataclass(frozen=True, slots=True)
class GradingConfig(Section):
    """How completions are graded: for GRPO's reward, and for the accuracy that runs report."""

    grader: tuple[str, ...] = setting(("math",), [_distinct("graders", least=1), NONE_ALONE])
    """math compares boxed answers, exact texts, choice letters; code runs unit tests; none is no
    grader, module:name your own (docs/how-to/own-grader.md; ours). Several are summed by weight."""
    weights: tuple[float, ...] = ()
    """Weights of several graders in the sum; empty: 1 each (TRL's reward_weights)."""
    deadline: float = setting(5.0, within("[0.01, 86400]"))
    """CPU seconds for a comparison of two answers or a call, in [0.01, 86400] (ours)."""
    concurrency: int = setting(32, POSITIVE)
    """Calls of an async function at once, such as requests to a judge, by each rank (ours)."""
    timeout: float = setting(60.0, SECONDS)
    """Seconds that a call of an async function may take, and for which one that fails is repeated,
    five times at most in all (ours)."""
    stop_on_failure: bool = True
    """Stop where all grades of a step or evaluation fail; else pass over such steps (ours)."""
    options: OptionTable = options_of("grader", code="paint.grading.unit_tests:CodeGrader")
    """Options that the grader declares, by name (docs/how-to/extend.md)."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        is_met = len(self.weights) in (0, len(self.grader)) and all(map(isfinite, self.weights))
        note = f"of {', '.join(self.grader)}"
        require(self, "weights", is_met, "empty, or one number for each grader", note)

    @property
    def is_off(self) -> bool:
        return self.grader == ("none",)


@dataclass(frozen=True, slots=True)
class ConversationConfig(Section):
    """What answers the student's turns: tools, and an environment of your own. Without either, the
    student writes one completion (docs/how-to/turns-and-tools.md; ours)."""

    tools: tuple[str, ...] = setting((), [_distinct("functions, each as module:function")])
    """Functions that the model may call and is told of by their docstrings, as module:function."""
    environment: str = ""
    """Class that answers turns without calls, as module:Class: one with a step, or one of TRL's
    environment_factory. Empty: a turn without calls is the last one."""
    max_turns: int = setting(8, POSITIVE)
    """Most turns of the student; a conversation that would have more counts as truncated."""
    timeout: float = setting(60.0, SECONDS)
    """Seconds that a call of a tool or of the environment may take. A tool's call is then answered
    by the error; a conversation whose environment does not answer has no reward."""
    concurrency: int = setting(32, POSITIVE)
    """Calls at once, by each rank."""
    options: OptionTable = options_of("environment")
    """Options that the environment declares, by name (docs/how-to/extend.md)."""

    @property
    def is_on(self) -> bool:
        return bool(self.tools or self.environment)


ONE_TURN = ConversationConfig()
"""Nothing answers: a completion is all."""


@dataclass(frozen=True, slots=True)
class HealthConfig(Section):
    """Collapse warnings from the metrics (docs/how-to/watch-a-run.md)."""

    stop_on: tuple[str, ...] = setting(
        ("kl",),
        [
            _distinct("warnings"),
            NONE_ALONE,
            Check(
                f"none, or of {', '.join(COLLAPSE_WARNINGS)}",
                lambda names: set(names) <= {"none", *COLLAPSE_WARNINGS},
            ),
        ],
        help_text="Warnings that end the run with a checkpoint, or none; others are printed: "
        f"{', '.join(COLLAPSE_WARNINGS)}. The steps of a comparison end on none (ours).",
    )
    drift_path: str = ""
    """Problems, named as data.path, on eight of which the student's KL from its base is measured
    after each step; empty: it is not (ours; docs/how-to/watch-a-run.md)."""


@dataclass(frozen=True, slots=True)
class ValidationConfig(Section):
    """Your own problems on which every checkpoint is evaluated: with the run's thinking mode and
    sampling, and on competition mathematics of the hub with those of the paper."""

    path: str | tuple[str, ...] = setting("", [Check("a path, or several", _are_paths)])
    """Problems, named as for `paint eval --benchmarks`; empty: checkpoints are not evaluated. Take
    no test benchmark: the score of a checkpoint that was chosen by it is biased."""
    limit: int | None = setting(None, POSITIVE)
    """Number of problems to use of each, from the first; None is all."""
    samples: int = setting(12, POSITIVE)
    """Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."""
    max_new_tokens: int | None = setting(None, POSITIVE)
    """Longest answer, in tokens; None: rollout.max_new_tokens, and on competition mathematics of
    the hub 38,912 (paper: Experimental Details, 38,912)."""

    @property
    def paths(self) -> tuple[str, ...]:
        return as_paths(self.path)


@dataclass(frozen=True, slots=True)
class LogConfig(Section):
    """Name, folder, trackers and stored rollouts of a run."""

    folder: str = setting("runs", FOLDER)
    """Folder in which run folders are created."""
    name: str | None = setting(
        None,
        [Check("one printable line without slashes that begins with no dash", is_folder_name)],
        "the folder is log.folder",
    )
    """Name of the run folder; None makes one from the recipe's name and the time."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = setting(
        (), [_distinct("trackers")]
    )
    """Trackers that get the metrics, too; WANDB_PROJECT or TRACKIO_PROJECT names the project."""
    token_rows: int | Literal["all"] = setting(4, within(f"[0, {MAX_COUNT}]"), '"all": every row')
    """First rows of a step whose values are stored token by token; "all", or 0 for none (ours)."""


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of a training run. The defaults are the paper's but for the clip."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How the student samples its completions: one for every problem (grpo: several), on policy."""
    conversation: ConversationConfig = field(default_factory=ConversationConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    grading: GradingConfig = field(default_factory=GradingConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def changed(self, section: str, **settings: Any) -> "Config":
        return replace(self, **{section: replace(getattr(self, section), **settings)})

    @property
    def loss_temperature(self) -> float:
        """Temperature T of the loss: ``objective.temperature``, or else that of the rollouts."""
        own = self.objective.temperature
        return self.rollout.temperature if own is None else own


@dataclass(frozen=True, slots=True)
class EvaluationConfig(Section):
    """Settings of `paint eval`. The defaults are the paper's (section 'Experimental Details'), and
    for a run its own (docs/how-to/evaluate.md)."""

    benchmarks: tuple[str, ...] = setting(
        ("aime_2024", "aime_2025", "hmmt_feb_2025"), [Check("a list of problem sets", bool)]
    )
    """Problem sets: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026, math_500,
    gsm8k, mbpp or humaneval, NAME=PATH for a local copy of one, demo, demo-new-rules, or your own
    file, FILE or FILE:problem_column,answer_column (paper: AIME 2024, AIME 2025, HMMT 2025)."""
    samples: int = setting(12, POSITIVE)
    """Samples per problem: the k of Avg@k; it may be raised later (paper: 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: on)."""
    base: bool = True
    """Also evaluate the base model of adapters, and compare them with it problem by problem."""
    limit: int | None = setting(None, POSITIVE)
    """Number of problems to use of each benchmark, from the first; None is all."""
    seed: int = setting(0, NOT_NEGATIVE)
    """Seed of sampling, at least 0."""
    output_dir: str = setting("evals", FOLDER)
    """Folder of evaluations, each in a folder of its run's or model's name."""
    dtype: Dtype | None = None
    """Number format of the weights; None is that of the run, or else that of the model's files."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    """How answers are graded."""
    conversation: ConversationConfig = field(default_factory=ConversationConfig)
    """What answers the policy's turns."""
    rollout: RolloutConfig = field(
        default_factory=lambda: RolloutConfig(
            temperature=1.0, top_k=-1, max_new_tokens=38_912, batch_size=64, timeout=7200.0
        )
    )
    """How answers are sampled, and where."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for key, note in (
            ("off_policy_steps", "an evaluation has no training steps"),
            ("samples_per_problem", "`--samples` is the number"),
        ):
            require_default(self.rollout, key, "in an evaluation", note)
        is_graded = not self.grading.is_off
        require(self.grading, "grader", is_graded, "a grader", "an evaluation needs grades")
