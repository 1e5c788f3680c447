"""Settings of training and evaluation, as frozen dataclasses.

The defaults are the paper's setting (section 'Experimental Details'). Where the paper is silent,
the default is that of OPSD's public scripts (siyan-zhao/OPSD at 590ec26) or ours, and its docstring
says which. The docstring below a field is its help text. Ranges are checked whenever a section is
built (paint.core.settings), types when a table is read (paint.config.recipe).
"""

import re
import shlex
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal
from urllib.parse import urlsplit

from paint.algorithms.base import Algorithm, find_algorithm
from paint.core.errors import ConfigError as ConfigError
from paint.core.errors import format_value
from paint.core.settings import MAX_COUNT as MAX_COUNT
from paint.core.settings import (
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    Check,
    Section,
    is_record,
    require,
    setting,
    within,
)
from paint.inference.registry import EngineType, engine_type, resolved_engine
from paint.objective.divergences import Divergence, find_divergence
from paint.objective.options import ObjectiveConfig as ObjectiveConfig

Dtype = Literal["float32", "bfloat16", "float16"]
CONTEXT_SOURCES = (
    *("solution", "text", "file", "neighbour", "rollout"),
    *("none", "other", "answer", "wrong_answer"),
)
"""Values of context.source; any other is a field of the row, or module:function."""


def _are_distinct(values: tuple[str, ...]) -> bool:
    return len(set(values)) == len(values)


def _is_filled(text: str) -> bool:
    return bool(text.strip())


TEMPERATURE = within("[0.001, 1000]"), "sampling temperature"
TOP_P = within("(0, 1]"), "1 is off; default: 0.95"
TOP_K = [Check("at least 1, or -1", lambda top_k: top_k >= 1 or top_k == -1)], "-1 is off"
CPU_ROWS, CPU_TOKENS = 4, 4096
TOKENS = [Check("at least 1 or auto", lambda n: n == "auto" or 1 <= n <= MAX_COUNT)]
LIMIT = [Check("at least 1 or None", lambda limit: limit is None or limit >= 1)]
SECONDS = within("(0, 31536000]")  # at most a year
NAME = [Check("a name", _is_filled)]
FOLDER = [Check("a folder", _is_filled), *PATH]
FIELD = [Check("the name of a field", bool)]
GRADER = [Check("a grader", _is_filled)], 'default: "math"'
DEADLINE = within("[0.01, 86400]"), "seconds; default: 5"


def _is_date(text: str) -> bool:
    """True for a day of the calendar, written as 2026-11-26."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


DATE = [Check("auto or a date such as 2026-11-26", lambda text: text == "auto" or _is_date(text))]

ALL_LINEAR = "all-linear"
"""Target of adapters that stands for every linear layer but the head."""


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """Model, its number format and its adapters."""

    path: str = setting("", PATH, "a folder or a hub name")
    """Folder or hub name of the model; "demo" is the embedded one. Required: no default."""
    dtype: Dtype = "bfloat16"
    """Number format of the frozen weights (OPSD's scripts); what is trained is always float32
    (ours)."""
    train_mode: Literal["lora", "full"] = "lora"
    """What is trained: LoRA adapters, or every weight, with a frozen copy as the teacher (paper:
    LoRA)."""
    lora_rank: int = setting(64, POSITIVE, "paper: 64")
    """Rank r of the LoRA adapters, at least 1 (paper: Experimental Details, r = 64)."""
    lora_alpha: int = setting(128, POSITIVE, "paper: 128")
    """LoRA scale: an adapter's update is multiplied by alpha / rank (paper: Experimental Details,
    128)."""
    lora_targets: tuple[str, ...] = setting(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        [
            Check(
                "a list of distinct layer names",
                lambda names: bool(names) and all(names) and _are_distinct(names),
            )
        ],
        "paper: seven",
    )
    """Names of the linear layers that get an adapter, or all-linear for all but the head (paper:
    Experimental Details, these seven)."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: less memory, more time, the same result. auto: on
    a GPU on which one longest row does not fit without it (ours)."""
    shard: bool = False
    """Shard the frozen layers over the ranks of a machine; each layer is gathered when it computes.
    For models larger than one GPU; the same result (ours; docs/how-to/large-models.md)."""
    quantization: Literal["none", "nf4"] = "none"
    """Format of the frozen layers in memory: nf4 rounds them to 4 bits at loading, which
    changes the base model (ours; docs/how-to/large-models.md)."""
    student_thinking: bool = False
    """Thinking mode of the student's prompt, in rollouts and in scoring (OPSD's scripts: off; the
    paper is silent)."""
    teacher_thinking: bool = True
    """Thinking mode of the teacher's prompt. If it differs from the student's, completions follow
    different text in the two prompts (OPSD's scripts: on; the paper is silent; docs/fidelity.md,
    D9)."""
    liger: bool = True
    """On CUDA, compute rotary positions, RMS norms and SwiGLU by the kernels of liger-kernel, where
    it is installed and the model's layers are those of Llama; other values only by rounding
    (ours)."""
    date: str = setting("auto", DATE, "auto: the day on which the run begins")
    """Date for a chat template that reads the clock, as YYYY-MM-DD; auto is the day on which the
    run begins, which run.json records for resuming and evaluation (ours)."""
    attention: str = setting("sdpa", NAME, "such as sdpa")
    """Attention implementation as transformers names it: sdpa, eager, flash_attention_2 (ours)."""
    packed: bool = False
    """Concatenate the rows of a micro-batch instead of padding them; position ids separate them.
    For flash_attention_2. Other implementations give the same result but need a mask of all tokens
    squared (ours)."""


@dataclass(frozen=True, slots=True)
class DataConfig(Section):
    """Training problems and how they are read."""

    path: str = setting("", PATH, "problems: a file or a hub name")
    """Problems: a JSONL, CSV or Parquet file, or a hub name such as owner/name or
    owner/name:config@split; "demo" is the embedded family. Required: no default."""
    problem_field: str = setting("problem", FIELD, 'default: "problem"')
    """Field that holds the problem x: text, or chat messages. A row without it is taken from its
    field "messages"; the last assistant turn of a chat is the solution."""
    solution_field: str = setting("solution", FIELD, 'default: "solution"')
    """Field that holds the verified solution y*, part of which the teacher sees. Rows may lack it
    where no setting needs it."""
    answer_field: str = setting("answer", FIELD, 'default: "answer"')
    """Field that holds the final gold answer. GRPO's reward and the controls use it; PAINT uses it
    only to report accuracy, and rows may lack it."""
    id_field: str = setting("id", FIELD, 'default: "id"')
    """Field that names a row. Rows without "id" are named by their number; a field of another name
    is required."""
    turns: Literal["last", "all"] = "last"
    """Assistant turns of a chat that are learned from: the last one, or every reply to a user, each
    as a problem of its own after the turns before it (ours)."""
    max_prompt_tokens: int = setting(8192, POSITIVE, "default: 8192")
    """Longest prompt of student and teacher (sft: prompt and solution), in tokens; longer ones are
    refused, never cut (ours)."""
    on_bad_row: Literal["error", "skip"] = "error"
    """On a row that fails a check: stop with its number and the reason, or skip and count it."""
    limit: int | None = setting(None, LIMIT, "None: all rows")
    """Number of valid rows to use, from the first; None is all (paper: up to 30K problems)."""


@dataclass(frozen=True, slots=True)
class RolloutConfig(Section):
    """How completions are sampled, and where."""

    engine: str = "auto"
    """Inference engine: auto is local where completions have at most 4,096 tokens, and vllm where
    they are longer, torch sees a GPU and vLLM is installed; local is the training process itself;
    vllm is vLLM servers with base + adapter (docs/how-to/vllm.md); stored takes the completions of
    rollout.stored; module:Class is your own engine."""
    stored: str = setting("", PATH, "a run, an evaluation or a JSONL file")
    """With rollout.engine stored: a run, an evaluation of one policy on one benchmark, or a JSONL
    file, whose completions are trained on in place of new ones (ours; docs/how-to/rollouts.md)."""
    temperature: float = setting(1.1, *TEMPERATURE)
    """Sampling temperature, in [0.001, 1000] (paper: Experimental Details, 1.1 in training, 1.0 in
    evaluation)."""
    top_p: float = setting(0.95, *TOP_P)
    """Nucleus sampling: share of probability kept, in (0, 1]; 1 is off (OPSD's scripts, 0.95;
    paper: 0.95 in evaluation)."""
    top_k: int = setting(20, *TOP_K)
    """Number of most likely tokens kept, at least 1; -1 is off (OPSD's scripts, 20; paper: off in
    evaluation)."""
    max_new_tokens: int = setting(1024, POSITIVE, "tokens")
    """Longest completion, in tokens (paper: Experimental Details, 1024 in training, 38,912 in
    evaluation)."""
    samples_per_problem: int = setting(1, POSITIVE, "completions a problem; default: 1")
    """Completions of each problem in a step; train.batch_size is a multiple of it (paper:
    Algorithm 1, 1; grpo: Main Results, 8)."""
    keep: Literal["all", "correct", "shortest_correct", "wrong"] = "all"
    """Which of them are trained on, by the grader: all, those with reward 1, of each problem the
    shortest with reward 1, or the others. A problem without any is skipped, and the loss is the
    mean over those that are kept (paper: all; docs/how-to/rollouts.md)."""
    batch_size: int = setting(32, POSITIVE, "rows; default: 32")
    """Most rows generated at once: by a rank, or by a vLLM server. An evaluation takes fewer where
    its GPU has no memory for more, and rows that run out of memory are halved; changes speed and
    memory only."""
    max_logprob_mismatch: float = setting(0.05, within("(0, inf]"), "nats; inf is off")
    """Largest mean difference, in nats, between the engine's and the trainer's log-probs of a
    step's sampled tokens, above 0; if the mean exceeds it, the run stops before the update (ours;
    0.001 is enough in float32)."""
    urls: tuple[str, ...] = ()
    """Addresses of running vLLM servers, such as http://node1:8000; empty: the run starts its own.
    Their key is the environment variable VLLM_API_KEY."""
    server: str = "vllm serve"
    """Command that starts the run's own vLLM server, as in a shell; it may be in another
    environment."""
    server_gpus: tuple[str, ...] = ()
    """GPUs of the run's own servers, one server per entry, in the format of CUDA_VISIBLE_DEVICES:
    4, or 4,5 for a server on two GPUs (--tensor-parallel-size); cpu is none. Empty: one server,
    with the trainer's GPUs (ours; `--gpus` sets it)."""
    server_args: str = ""
    """Further arguments of the run's own server, as in a shell:
    --rollout.server-args="--gpu-memory-utilization 0.4", with the = before the dashes. Keys and
    passwords belong in environment variables."""
    adapter_folder: str | None = setting(None, PATH, "None: chosen by the run")
    """Folder through which adapters are sent to the servers, which must see it under the same path;
    the run creates a subfolder of its name. None is shared memory (/dev/shm) with room for servers
    that the run starts, and else the run folder."""
    server_timeout: float = setting(900.0, SECONDS, "seconds; default: 900")
    """Seconds to wait for a starting server, or while no server responds, before the run stops with
    a checkpoint."""
    timeout: float = setting(1800.0, SECONDS, "seconds; default: 1800")
    """Seconds that one completion may take before it is requested again."""
    off_policy_steps: int = setting(0, within("[0, 64]"), "steps; default: 0, on policy")
    """Steps between sampling completions and training on them, in [0, 64]; 0 is on policy (paper:
    Algorithm 1, on policy; ours). While step t trains, servers generate step t + off_policy_steps
    with the adapter from before update t. With local, the rows of off_policy_steps + 1 steps are
    generated at once, with the adapter from before the first of them
    (docs/concepts/off-policy.md)."""
    colocate: bool = False
    """Let the servers free their GPU's memory for the trainer between rollouts (vLLM's sleep mode,
    level 1)."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if is_record():  # the engine may be a class that cannot be imported here
            return
        engine = self.engine_type
        _require_no_secrets(self)
        are_addresses = all(_is_address(url) for url in self.urls)
        allowed = "addresses that start with http:// or https:// and a host"
        require(self, "urls", are_addresses, allowed, "such as http://node1:8000")
        are_used = not self.urls or engine.is_remote
        allowed = f'empty with rollout.engine "{self.engine}"'
        require(self, "urls", are_used, allowed, 'servers need engine "vllm"')
        are_distinct = _are_distinct(self.urls)
        require(self, "urls", are_distinct, "a list of distinct addresses", "one for each server")

        are_owned = not self.server_gpus or self.owns_servers
        allowed = 'empty unless rollout.engine is "vllm" and rollout.urls is empty'
        require(self, "server_gpus", are_owned, allowed, "GPUs of the servers that are started")
        are_named = all(re.fullmatch(r"[\w-]+(,[\w-]+)*", gpus) for gpus in self.server_gpus)
        allowed = "GPUs for each server, such as 4 or 4,5"
        require(self, "server_gpus", are_named, allowed, "cpu: none")

        source = "a run, an evaluation or a JSONL file"
        allowed = f'{source if engine.is_stored else "empty"} with rollout.engine "{self.engine}"'
        are_given = bool(self.stored) == engine.is_stored
        require(self, "stored", are_given, allowed, "trained on in place of new completions")

        require(self, "server", bool(self.server.split()), "a command", 'default: "vllm serve"')
        are_apart = not self.off_policy_steps or not self.colocate
        allowed = "0 with rollout.colocate"
        require(self, "off_policy_steps", are_apart, allowed, "servers generate during training")

    @property
    def engine_type(self) -> EngineType:
        """The properties of the engine; auto with named servers generates on them."""
        return engine_type(resolved_engine(self.engine, bool(self.urls or self.server_gpus)))

    @property
    def owns_servers(self) -> bool:
        """Whether the run starts its own servers: a remote engine without rollout.urls."""
        return self.engine_type.is_remote and not self.urls


@dataclass(frozen=True, slots=True)
class ContextConfig(Section):
    """What the teacher reads beside the problem, how much of it is hidden, and where
    (docs/how-to/own-context.md)."""

    mask_ratio_wrong: float = setting(0.30, within("[0, 1)"), "rho_wrong; paper: 0.30")
    """Mask ratio rho_wrong of a completion that shares nothing with the solution, in [0, 1) (paper:
    0.30)."""
    mask_ratio_correct: float = setting(0.40, within("[0, 1)"), "rho_correct; paper: 0.40")
    """Mask ratio rho_correct of a completion with overlap 1, in [mask_ratio_wrong, 1) (paper:
    0.40)."""
    placement: Literal["suffix", "prefix", "middle", "random", "punctuation"] = "suffix"
    """Which part is hidden; punctuation is a suffix that starts after a sentence (paper: suffix
    masking)."""
    source: tuple[str, ...] = setting(
        ("solution",),
        [
            Check(
                "distinct sources, none alone",
                lambda names: (
                    bool(names)
                    and all(names)
                    and _are_distinct(names)
                    and ("none" not in names or len(names) == 1)
                ),
            )
        ],
        'default: "solution"',
    )
    """What the teacher reads, one or several: solution (paper), the name of a field, text, file,
    neighbour (the solution of the most similar problem), rollout (another verified completion of
    the problem in the step, without one the solution), module:function, and the controls none,
    other (another problem's solution), answer and wrong_answer. text, file and answers are never
    masked."""
    text: str = ""
    """The context of source text, the same for all rows: rules, a system prompt, a description."""
    file: str = setting("", PATH, "a text file")
    """Text file with the context of source file, the same for all rows."""
    alignment: Literal["anchors", "words", "fixed"] = "anchors"
    """What the overlap compares: anchors (mathematics; paper), or words, sequences of three (prose,
    code; ours); fixed masks mask_ratio_wrong, whatever the overlap (ours). By anchors, a context
    without any is shown in full (ours)."""
    wording: Literal["as_shown", "complete", "part"] = "as_shown"
    """How the teacher's prompt announces the reference: as_shown is complete where nothing is
    hidden and partial otherwise, complete is always complete, part always partial (paper:
    part)."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        allowed = f"at least context.mask_ratio_wrong = {self.mask_ratio_wrong}"
        is_ordered = self.mask_ratio_correct >= self.mask_ratio_wrong
        require(self, "mask_ratio_correct", is_ordered, allowed, "equal: a fixed ratio")
        for key in ("text", "file"):
            is_used = bool(getattr(self, key).strip()) == (key in self.source)
            allowed = f"set exactly where context.source names {key}"
            require(self, key, is_used, allowed, f"context.source: {', '.join(self.source)}")


@dataclass(frozen=True, slots=True)
class PromptsConfig(Section):
    """Wording of the prompts (docs/how-to/own-context.md). Each is a Jinja2 template of the last
    user turn, in which the fields of the row stand by name, or the name of a field that holds a
    text or chat messages. Empty: the paper's wording."""

    student: str = ""
    """Prompt of the student, in training, validation and evaluation (paper: Prompt views); of chat
    messages the default is the chat as it is."""
    teacher: str = ""
    """Prompt of the teacher, with the masked reference as `context` and the student's turn as
    `student` (paper: Prompt views). Where the student's is not the paper's, the default is the
    reference and then the student's turn (ours)."""
    teacher_complete: str = ""
    """The same where the reference is announced as complete; the default is prompts.teacher, if
    that is set."""
    teacher_system: str = ""
    """System turn of the teacher, in place of the row's own; the default of prompts.teacher is then
    the student's turn alone (ours)."""
    rationale: str = ""
    """Request for a rationale, for teacher.reason_first; sees what prompts.teacher sees (ours)."""


PAPER_PROMPTS = PromptsConfig()


@dataclass(frozen=True, slots=True)
class TeacherConfig(Section):
    """The teacher: its weights, and whether it reasons before it scores."""

    weights: Literal["frozen", "ema", "live"] = "frozen"
    """frozen is the model as it was before training, live the student's own weights, ema a moving
    average of them that starts at the student (paper: frozen; Training Algorithm names ema as a
    variant)."""
    decay: float = setting(0.99, within("[0, 1)"), "default: 0.99")
    """EMA decay: the average's share that is kept at each step, in [0, 1); for ema only (ours)."""
    every: int = setting(1, POSITIVE, "steps; default: 1")
    """Steps between updates of the average, at least 1; for ema only. With decay 0, the teacher is
    the student as it was at the last of them: refreshed every so many steps (ours)."""
    base_weight: float = setting(0.0, within("[0, 1]"), "default: 0")
    """Weight k of the base model, without context, in the teacher, in [0, 1]: at every token
    p is proportional to p_T^(1-k) p_base^k, which holds the student near its beginning. Costs one
    more forward pass (ours)."""
    reason_first: bool = False
    """The teacher first writes a rationale about the reference, and scores with it in its prompt
    (paper: Training Algorithm names it as a variant)."""
    rationale_tokens: int = setting(512, POSITIVE, "tokens; default: 512")
    """Longest rationale, in tokens; for reason_first only (ours)."""


@dataclass(frozen=True, slots=True)
class GrpoConfig(Section):
    """The GRPO baseline: several completions per problem (rollout.samples_per_problem), rewarded by
    the verified answer. For train.method grpo and mixed only."""

    weight: float = setting(1.0, NOT_NEGATIVE, "default: 1")
    """Weight of GRPO's loss beside the distillation's, at least 0; for train.method mixed only
    (ours)."""

    clip: float = setting(0.2, within("(0, 1)"), "default: 0.2")
    """Clip range of the ratio of new to old probability around 1, in (0, 1)
    (OPSD's scripts, 0.2)."""
    kl: float = setting(0.0, within("[0, inf)"), "default: 0, off")
    """Weight of the KL to the model before training, at least 0 (OPSD's scripts: none)."""
    iterations: int = setting(1, POSITIVE, "updates; default: 1")
    """Optimizer updates on the same completions; with 1 the ratio is 1 and nothing is clipped
    (OPSD's scripts, 1)."""


@dataclass(frozen=True, slots=True)
class TrainConfig(Section):
    """Method, steps, batch sizes and optimizer."""

    method: str = "distillation"
    """Algorithm of a step: distillation is PAINT, and OPSD where nothing is masked or interpolated;
    mixed is distillation beside GRPO's reward in one loss (ours);
    grpo and sft are the baselines (paper: Compared post-training recipes); module:Class is one of
    your own (paint.algorithms.base)."""
    steps: int = setting(100, POSITIVE, "optimizer steps; paper: 100")
    """Optimizer steps (paper: Experimental Details, 100); grpo takes grpo.iterations in each. For a
    number of epochs, set ceil(epochs x problems / problems per step)."""
    batch_size: int = setting(32, POSITIVE, "completions a step; paper: 32")
    """Completions per optimizer step, over all ranks (paper: Experimental Details, 32)."""
    micro_batch_size: int | Literal["auto"] = setting("auto", TOKENS, "default: auto")
    """Most completions in one forward and backward pass of a rank; changes memory and speed, and of
    the result only the order in which rows are summed. auto: on a GPU no limit but that of the
    tokens, and 4 on a CPU (ours)."""
    micro_batch_tokens: int | Literal["auto"] = setting("auto", TOKENS, "default: auto")
    """Most tokens in such a pass: its rows times the length of the longest (prompt, the teacher's
    if that is longer, and completion). A longer row is a pass by itself. Of the result it changes
    only the order in which rows are summed. auto: the most that fit on a GPU by the memory plan,
    and 4,096 on a CPU, where more are padding (ours)."""
    learning_rate: float = setting(5e-6, within("(0, inf)"), "paper: 5e-6")
    """Learning rate of the adapters (paper: Experimental Details, 5e-6), constant after the warm-up
    (ours)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero, at most steps (OPSD's
    scripts: none)."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the last step, linearly or as a
    cosine (OPSD's scripts: constant; the paper is silent)."""
    optimizer: str = "adamw"
    """adamw; adamw8bit, by bitsandbytes, with moments in 8 bits: 2 bytes a trained weight in place
    of 8, for train_mode full; or module:Class, one of your own (paint.training.optim) (OPSD's
    scripts: AdamW)."""
    weight_decay: float = setting(0.0, within("[0, inf)"), "default: 0.0")
    """The optimizer's decay of the adapters, at least 0 (OPSD's scripts: none)."""
    max_grad_norm: float = setting(0.1, within("(0, inf)"), "default: 0.1")
    """Largest gradient norm; larger gradients are scaled down to it, above 0 (OPSD's scripts, 0.1;
    for grpo and sft 1.0)."""
    seed: int = setting(0, NOT_NEGATIVE, "default: 0")
    """Seed of the order of problems, of sampling and of the adapters, at least 0."""
    checkpoint_every: int = setting(20, POSITIVE, "steps; paper: 20")
    """Steps between checkpoints (paper: Experimental Details, evaluated every 20 steps)."""

    @property
    def row_limit(self) -> int:
        """``micro_batch_size`` as a number; that of a CPU until a plan has chosen it."""
        return self.micro_batch_size if isinstance(self.micro_batch_size, int) else CPU_ROWS

    @property
    def token_limit(self) -> int:
        """``micro_batch_tokens`` as a number; those of a CPU until a plan has chosen them."""
        return self.micro_batch_tokens if isinstance(self.micro_batch_tokens, int) else CPU_TOKENS

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        in_range = 0 <= self.warmup_steps <= self.steps
        allowed = f"in [0, train.steps = {self.steps}]"
        require(self, "warmup_steps", in_range, allowed, "default: 0")


@dataclass(frozen=True, slots=True)
class GradingConfig(Section):
    """How completions are graded: for GRPO's reward, and for the accuracy that runs report."""

    grader: str = setting("math", *GRADER)
    """Grader: math compares the boxed answer with the gold one, exact compares texts, choice
    compares a letter, none leaves completions ungraded, and module:name is your own function
    (docs/how-to/own-grader.md; ours)."""
    deadline: float = setting(5.0, *DEADLINE)
    """CPU seconds that a comparison of two answers, or a call of your function, may take, in
    [0.01, 86400] (ours)."""
    concurrency: int = setting(32, POSITIVE, "calls; default: 32")
    """Calls of an async function at once, such as requests to an endpoint that judges, by each rank
    (ours)."""
    timeout: float = setting(60.0, SECONDS, "seconds; default: 60")
    """Seconds that a call of an async function may take before it is repeated (ours)."""
    attempts: int = setting(3, POSITIVE, "default: 3")
    """How often a call of an async function is made at most, where it raises or takes too long;
    pauses of 1 s, 2 s, 4 s, ... lie between (ours)."""
    stop_on_failure: bool = True
    """Stop where the grader fails on every completion of a step or of an evaluation; otherwise
    their reward is 0 (ours)."""

    @property
    def needs_answer(self) -> bool:
        """Whether the grader compares with a gold answer."""
        return self.grader in ("math", "exact", "choice")


Sign = Literal[
    "truncated",
    "no_answer",
    "repetition",
    "longer",
    "shorter",
    "entropy_low",
    "entropy_high",
    "kl",
    "overlap",
    "clipped",
    "drift",
]


@dataclass(frozen=True, slots=True)
class HealthConfig(Section):
    """Signs of a collapse in the metrics (docs/how-to/watch-a-run.md)."""

    window: int = setting(3, POSITIVE, "steps; default: 3")
    """Last steps whose mean is compared with the first step; more where batches are small
    (ours)."""
    stop_on: tuple[Sign, ...] = setting(
        (), [Check("distinct signs", _are_distinct)], "default: none"
    )
    """Signs that end the run with a checkpoint when they appear; the others are only printed
    (ours)."""
    drift_path: str = setting("", PATH, "problems: a file or a hub name")
    """Problems on which the student's KL from its base is measured after each step, named as
    data.path; empty: it is not measured. Take prompts that the training does not concern (ours;
    docs/how-to/watch-a-run.md)."""
    drift_prompts: int = setting(8, POSITIVE, "problems; default: 8")
    """Number of these problems, from the first. Each costs a step one forward pass (ours)."""


@dataclass(frozen=True, slots=True)
class ValidationConfig(Section):
    """Your own problems on which every checkpoint is evaluated, in the paper's evaluation
    setting."""

    path: str = setting("", PATH, "problems and their answers")
    """Problems with their answers, named as for `paint eval --benchmarks`; empty: checkpoints are
    not evaluated. Use your own problems, not the test benchmarks: the test score of a checkpoint
    that was chosen by it is biased."""
    limit: int | None = setting(None, LIMIT, "None: all problems")
    """Number of problems to use, from the first; None is all."""
    samples: int = setting(12, POSITIVE, "samples a problem; paper: 12")
    """Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: Experimental Details, on)."""
    temperature: float = setting(1.0, *TEMPERATURE)
    """Sampling temperature, in [0.001, 1000] (paper: Experimental Details, 1.0)."""
    top_p: float = setting(0.95, *TOP_P)
    """Nucleus sampling: share of probability kept, in (0, 1] (paper: Experimental Details,
    0.95)."""
    top_k: int = setting(-1, *TOP_K)
    """Number of most likely tokens kept, at least 1; -1 is off (paper: Experimental Details,
    -1)."""
    max_new_tokens: int = setting(38_912, POSITIVE, "tokens")
    """Longest answer, in tokens (paper: Experimental Details, 38,912)."""


@dataclass(frozen=True, slots=True)
class LogConfig(Section):
    """Name, folder, trackers and stored rollouts of a run."""

    folder: str = setting("runs", FOLDER, 'default: "runs"')
    """Folder in which run folders are created."""
    name: str | None = setting(None, PATH, "it becomes a folder")
    """Name of the run folder; None makes one from the recipe's name and the time."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = setting(
        (), [Check("a list of distinct trackers", _are_distinct)], "default: none"
    )
    """Trackers that receive the metrics in addition to metrics.jsonl in the run folder."""
    project: str = setting("paint", NAME, 'default: "paint"')
    """Project that trackers file the run under."""
    keep_rollouts: bool = True
    """Store every completion with its overlap, mask ratio and verdict in the run folder."""
    token_rows: int | Literal["all"] = setting(
        4,
        [Check(f'in [0, {MAX_COUNT}] or "all"', lambda n: n == "all" or 0 <= n <= MAX_COUNT)],
        "rows a step; default: 4",
    )
    """Rows per step, the first ones, whose values are stored token by token, for
    `paint show` and pandas (docs/how-to/inspect-rollouts.md); "all", or 0 for none (ours)."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        is_folder_name = self.name is None or (
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0")
        )
        allowed = "a folder name without slashes, or None"
        require(self, "name", is_folder_name, allowed, "the folder is log.folder")


_OF_DISTILLATION = {
    "teacher": "weights base_weight reason_first",
    "context": "source wording",
    "objective": "divergence wrong_divergence position_weights correct_weight wrong_weight",
}
"""Settings that the baselines would ignore: they have no teacher and no divergence."""


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of a training run. The defaults are the paper's."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How the student samples its completions: one for every problem (grpo: several), on policy."""
    context: ContextConfig = field(default_factory=ContextConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    grading: GradingConfig = field(default_factory=GradingConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if is_record():  # the algorithm and others may not be importable here
            return
        algorithm, method = self.algorithm, f"train.method {format_value(self.train.method)}"
        rollout, objective, divergence = self.rollout, self.objective, self.divergence
        for name, keys in _OF_DISTILLATION.items():
            section = getattr(self, name)
            for key in keys.split():
                default = getattr(type(section)(), key)
                is_met = algorithm.needs_context or getattr(section, key) == default
                shown = " ".join(default) if isinstance(default, tuple) else default
                allowed = f"{format_value(shown)} with {method}"
                require(section, key, is_met, allowed, "it belongs to distillation")
        updates = algorithm.updates_per_batch(self)
        are_taken = not algorithm.uses_policy_gradient or self.grpo.iterations == updates
        note = "updates on the same completions"
        require(self.grpo, "iterations", are_taken, f"{updates} with {method}", note)

        for what in (self.needs_grades, "validation.path" if self.validation.path else ""):
            if what and self.grading.grader == "none":
                raise ConfigError(
                    f'grading.grader must not be "none" with {what}, which needs grades'
                )

        is_drawn_at = objective.temperature in (None, rollout.temperature)
        is_met = is_drawn_at or not self._tokens_carry_gradient
        allowed = f"None or rollout.temperature = {rollout.temperature:g}"
        note = "sampled tokens, which carry the gradient, are drawn at that one"
        require(objective, "temperature", is_met, allowed, note)
        for key, number in (("top_p", 1), ("top_k", -1)):
            is_met = not divergence.is_sampled or getattr(rollout, key) == number
            allowed = f"{number} with objective.divergence {format_value(divergence.name)}"
            note = "for its gradient, tokens must be drawn from the whole distribution"
            require(rollout, key, is_met, allowed, note)

        is_stored, learns_off_policy = rollout.engine_type.is_stored, self.learns_off_policy
        learner = f'objective.divergence "{divergence.name}"' if divergence.is_sampled else method
        note = (
            "a gradient by sampled tokens is that of the policy which drew them, and references "
            "are not drawn"
        )
        if is_stored and not learns_off_policy:
            raise ConfigError(f'rollout.engine must not be "stored" with {learner} ({note})')
        is_met = learns_off_policy or not rollout.off_policy_steps
        require(rollout, "off_policy_steps", is_met, f"0 with {learner}", note)
        note = "it samples nothing; `paint eval RUN` evaluates checkpoints"
        for section, key, off in (
            (self.validation, "path", "empty"),
            (rollout, "off_policy_steps", "0"),
        ):
            is_met = not (is_stored and getattr(section, key))
            require(section, key, is_met, f'{off} with rollout.engine "{rollout.engine}"', note)

        weights = self.teacher.weights
        is_base_kept = self.model.train_mode == "lora" or (
            weights == "frozen" and algorithm.needs_teacher(self)
        )
        note = "the base model is not kept; set teacher.weights frozen, or train_mode lora"
        for section, key, off in (
            (self.teacher, "base_weight", "0"),
            (self.health, "drift_path", "empty"),
        ):
            allowed = f"{off} with model.train_mode full and teacher.weights {weights}"
            require(section, key, is_base_kept or not getattr(section, key), allowed, note)
        is_met = not self.teacher.reason_first or self.context.source != ("none",)
        allowed = 'other than "none" with teacher.reason_first'
        note = "there is nothing to reason about"
        require(self.context, "source", is_met, allowed, note)

        is_met = bool(self.health.drift_path) or "drift" not in self.health.stop_on
        require(self.health, "stop_on", is_met, "without drift", "it needs health.drift_path")
        is_met = not algorithm.needs_rollouts or objective.skip_tokens < rollout.max_new_tokens
        allowed = f"below rollout.max_new_tokens = {rollout.max_new_tokens}"
        require(objective, "skip_tokens", is_met, allowed, "others have no token in the loss")

        samples, least = rollout.samples_per_problem, algorithm.min_samples
        allowed = f"a multiple of rollout.samples_per_problem = {samples}"
        is_met = self.train.batch_size % samples == 0
        require(self.train, "batch_size", is_met, allowed, "completions a step")
        allowed, note = f"at least {least} with {method}", "grpo in the paper: 8"
        require(rollout, "samples_per_problem", samples >= least, allowed, note)
        is_met = samples == 1 or algorithm.needs_rollouts
        note = "it samples nothing"
        require(rollout, "samples_per_problem", is_met, f"1 with {method}", note)
        keeps_all = rollout.keep == "all"
        is_met = keeps_all or (algorithm.needs_rollouts and not algorithm.uses_policy_gradient)
        note = "it needs complete groups, or samples nothing"
        require(rollout, "keep", is_met, f'"all" with {method}', note)

    def changed(self, section: str, **settings: Any) -> "Config":
        """The config with other settings in a section."""
        return replace(self, **{section: replace(getattr(self, section), **settings)})

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that ``train.method`` names."""
        return find_algorithm(self.train.method)

    @property
    def divergence(self) -> Divergence:
        """The divergence that ``objective.divergence`` names."""
        return find_divergence(self.objective.divergence)

    @property
    def divergences(self) -> set[str]:
        """The names of the divergences of correct and of wrong completions."""
        return {self.objective.of_verdict(is_correct).divergence for is_correct in (True, False)}

    @property
    def _tokens_carry_gradient(self) -> bool:
        return self.algorithm.uses_policy_gradient or self.divergence.is_sampled

    @property
    def learns_off_policy(self) -> bool:
        """Whether it can learn from completions of another policy than the one that is trained."""
        return self.algorithm.needs_rollouts and not self._tokens_carry_gradient

    @property
    def is_off_policy(self) -> bool:
        """Whether completions are those of another policy than the one that is trained."""
        return bool(self.rollout.off_policy_steps) or self.rollout.engine_type.is_stored

    @property
    def generates(self) -> bool:
        """Whether a run samples completions: to learn from them, or to validate."""
        return self.algorithm.needs_rollouts or bool(self.validation.path)

    @property
    def needs_grades(self) -> str:
        """The settings by which the training needs grades; empty if it needs none."""
        if self.algorithm.needs_grades:
            return f"train.method {format_value(self.train.method)}"
        if self.rollout.keep != "all":
            return f"rollout.keep {format_value(self.rollout.keep)}"
        if self.objective.wrong_divergence:
            return f"objective.wrong_divergence {format_value(self.objective.wrong_divergence)}"
        return "objective.correct_weight and wrong_weight" if self.objective.uses_verdicts else ""

    @property
    def needed_fields(self) -> dict[str, str]:
        """The fields that every problem must have beside its text, each with what needs it."""
        algorithm, method = self.algorithm, f"train.method {format_value(self.train.method)}"
        needed: dict[str, str] = {}
        if not algorithm.needs_rollouts:
            needed["solution"] = method
        if self.needs_grades and self.grading.needs_answer:
            grader = format_value(self.grading.grader)
            needed["answer"] = f"{self.needs_grades} with grading.grader {grader}"
        for source in self.context.source if algorithm.needs_context else ():
            shown = f"context.source {format_value(source)}"
            if source in ("solution", "other"):
                needed["solution"] = shown
            elif source in ("answer", "wrong_answer") or (
                source == "rollout" and self.grading.needs_answer
            ):
                needed["answer"] = shown
            elif source not in CONTEXT_SOURCES and ":" not in source:
                needed[source] = shown
        return needed


@dataclass(frozen=True, slots=True)
class EvaluationConfig(Section):
    """Settings of `paint eval`. The defaults are the paper's (section 'Experimental Details')."""

    benchmarks: tuple[str, ...] = setting(
        ("aime_2024", "aime_2025", "hmmt_feb_2025"),
        [Check("a list of problem sets", bool)],
        "paper: three",
    )
    """Problem sets: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026 or math_500 from
    the hub, NAME=PATH for a local copy of one of these, demo, or your own JSONL, CSV or Parquet
    file, FILE or FILE:problem_column,answer_column (paper: AIME 2024, AIME 2025, HMMT 2025)."""
    samples: int = setting(12, POSITIVE, "samples a problem; paper: 12")
    """Samples per problem: the k of Avg@k; it may be raised later (paper: 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: on)."""
    base: bool = True
    """Also evaluate the base model if adapters are named, and compare them with it problem by
    problem."""
    limit: int | None = setting(None, LIMIT, "None: all problems")
    """Number of problems to use of each benchmark, from the first; None is all."""
    seed: int = setting(0, NOT_NEGATIVE, "default: 0")
    """Seed of sampling, at least 0."""
    folder: str = setting("evals", FOLDER, 'default: "evals"')
    """Folder in which evaluations are stored, each in a folder of its model's name."""
    dtype: Dtype | None = None
    """Number format of the weights; None is that of the run, or else that of the model's files."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    """How answers are graded."""
    rollout: RolloutConfig = field(
        default_factory=lambda: RolloutConfig(
            temperature=1.0, top_k=-1, max_new_tokens=38_912, batch_size=64, timeout=7200.0
        )
    )
    """How answers are sampled, and where."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        rollout = self.rollout
        for key, value, note in (
            ("off_policy_steps", 0, "an evaluation has no training steps"),
            ("samples_per_problem", 1, "`--samples` is the number"),
            ("keep", "all", "an evaluation counts every sample"),
        ):
            require(rollout, key, getattr(rollout, key) == value, format_value(value), note)
        is_graded = self.grading.grader != "none"
        require(self.grading, "grader", is_graded, "a grader", "an evaluation needs grades")


def _is_address(url: str) -> bool:
    """Whether a URL has an http scheme, a host and, optionally, port and path."""
    try:
        parts = urlsplit(url)
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_plain = url.isascii() and not re.search(r"[\s\x00-\x1f]", url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_port and is_plain


_SECRET = re.compile(
    r"(?<!\S)--(api[-_]k\S*|([\w.-]+[-_.])?(key|token|password|passwd|secret)(?=[=\s]|$))"
    r"|(?<!\S)\w*(key|token|password|passwd|secret)="
    r"|://[^\s/]*@",
    re.IGNORECASE,
)
"""Secrets in a command line: --api-key, --hf-token=..., VLLM_API_KEY=..., //user:...@"""


def _require_no_secrets(rollout: RolloutConfig) -> None:
    """Refuse secrets, which would be visible in run.json, logs and the process list."""
    if any(set("@?#") & set(url) for url in rollout.urls):
        raise ConfigError(
            "rollout.urls must be addresses such as http://node1:8000, without a user name, a "
            "password or a query (run.json, samples and messages would show them); set the "
            "environment variable VLLM_API_KEY to the servers' key"
        )
    for name, text in (("server", rollout.server), ("server_args", rollout.server_args)):
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise ConfigError(
                f"rollout.{name} is not a command line: {error}; close its quotes"
            ) from None
        if _SECRET.search(" ".join(parts)):
            raise ConfigError(
                f"rollout.{name} holds a key, a token or a password, which would be "
                f"visible in run.json, logs and the process list; the run's own server gets its "
                f"own key, and any other secret belongs in the environment of `paint` (HF_TOKEN)"
            )
