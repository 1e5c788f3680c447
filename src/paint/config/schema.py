"""Settings of training and evaluation, as frozen dataclasses.

The defaults are the paper's setting (section 'Experimental Details'). Where the paper is silent,
the default is that of OPSD's public scripts (siyan-zhao/OPSD at 590ec26) or ours, and its docstring
says which. The docstring below a field is its help text on the command line. The section
[objective] is paint.objective.options, which the loss takes, too. paint.config.recipe reads configs
from TOML recipes.

Ranges are checked whenever a section is built: from a recipe, flags, a run folder or Python. Types
are checked when a table is read. model.path and data.path have no default, so that recipes may
leave them to flags; `recipe.require_paths` requires them before a run starts.
"""

import math
import re
import shlex
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from paint.algorithms.base import Algorithm, find_algorithm
from paint.core.errors import ConfigError as ConfigError
from paint.core.errors import format_value, require, validate_common, validate_path
from paint.inference.registry import engine_type
from paint.objective.divergences import find_divergence
from paint.objective.options import ObjectiveConfig as ObjectiveConfig

Dtype = Literal["float32", "bfloat16", "float16"]
ContextSource = Literal["own", "none", "other", "answer", "wrong_answer"]

MAX_COUNT = 10_000_000
"""Largest number of steps, rows, tokens or samples; more is a typo that would fill the memory."""

MAX_OFF_POLICY_STEPS = 64
"""Largest rollout.off_policy_steps; each step needs another adapter on the servers."""

MAX_SECONDS = 31_536_000
"""Longest timeout: a year."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Model, its number format and its adapters."""

    path: str = ""
    """Folder or hub name of the model; "demo" is the embedded one. Required: no default."""
    dtype: Dtype = "bfloat16"
    """Number format of the frozen weights (OPSD's scripts); what is trained is always float32
    (ours)."""
    train_mode: Literal["lora", "full"] = "lora"
    """What is trained: LoRA adapters, or every weight, with a frozen copy as the teacher (paper:
    LoRA)."""
    lora_rank: int = 64
    """Rank r of the LoRA adapters, at least 1 (paper: Experimental Details, r = 64)."""
    lora_alpha: int = 128
    """LoRA scale: an adapter's update is multiplied by alpha / rank (paper: Experimental Details,
    128)."""
    lora_targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter (paper: Experimental Details, these seven)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time, the same result."""
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
    attention: str = "sdpa"
    """Attention implementation as transformers names it: sdpa, eager, flash_attention_2 (ours)."""
    packed: bool = False
    """Concatenate the rows of a micro-batch instead of padding them; position ids separate them.
    For flash_attention_2. Other implementations give the same result but need a mask of all tokens
    squared (ours)."""

    def __post_init__(self) -> None:
        validate_common(self)
        validate_path(self, "path", "a folder or a hub name")
        _at_least(1, self, lora_rank="paper: 64", lora_alpha="paper: 128")
        targets = self.lora_targets
        are_distinct_names = bool(targets) and all(targets) and len(set(targets)) == len(targets)
        allowed = "a list of distinct layer names"
        require(self, "lora_targets", are_distinct_names, allowed, "paper: seven")
        require(self, "attention", bool(self.attention.strip()), "a name", "such as sdpa")


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Training problems and how they are read."""

    path: str = ""
    """Problems: a JSONL, CSV or Parquet file, or a hub name such as owner/name or
    owner/name:config@split; "demo" is the embedded family. Required: no default."""
    problem_field: str = "problem"
    """Field that holds the problem x."""
    solution_field: str = "solution"
    """Field that holds the verified solution y*, part of which the teacher sees."""
    answer_field: str = "answer"
    """Field that holds the final gold answer. GRPO's reward and the controls use it; PAINT uses it
    only to report accuracy."""
    id_field: str = "id"
    """Field that names a row. Rows without "id" are named by their number; a field of another name
    is required."""
    max_prompt_tokens: int = 8192
    """Longest prompt of student and teacher (sft: prompt and solution), in tokens; longer ones are
    refused, never cut (ours)."""
    on_bad_row: Literal["error", "skip"] = "error"
    """On a row that fails a check: stop with its number and the reason, or skip and count it."""
    limit: int | None = None
    """Number of valid rows to use, from the first; None is all (paper: up to 30K problems)."""

    def __post_init__(self) -> None:
        validate_common(self)
        validate_path(self, "path", "problems: a file or a hub name")
        for name in ("problem_field", "solution_field", "answer_field", "id_field"):
            default = f'default: "{name.removesuffix("_field")}"'
            require(self, name, bool(getattr(self, name)), "the name of a field", default)
        _at_least(1, self, max_prompt_tokens="default: 8192")
        _require_limit(self, "None: all rows")


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How completions are sampled, and where."""

    engine: str = "local"
    """Inference engine: local is the training process itself; vllm is vLLM servers with base +
    adapter (docs/how-to/vllm.md); merged is local with the adapter merged into the rounded weights,
    for comparison only; module:Class is your own engine."""
    temperature: float = 1.1
    """Sampling temperature, in [0.001, 1000] (paper: Experimental Details, 1.1 in training, 1.0 in
    evaluation)."""
    top_p: float = 0.95
    """Nucleus sampling: share of probability kept, in (0, 1]; 1 is off (OPSD's scripts, 0.95;
    paper: 0.95 in evaluation)."""
    top_k: int = 20
    """Number of most likely tokens kept, at least 1; -1 is off (OPSD's scripts, 20; paper: off in
    evaluation)."""
    max_new_tokens: int = 1024
    """Longest completion, in tokens (paper: Experimental Details, 1024 in training, 38,912 in
    evaluation)."""
    batch_size: int = 32
    """Rows generated at once: by a rank, or by a vLLM server; changes speed and memory only."""
    max_logprob_mismatch: float = 0.05
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
    adapter_folder: str | None = None
    """Folder through which adapters are sent to the servers, which must see it under the same path;
    the run creates a subfolder of its name. None is the run folder."""
    server_timeout: float = 900.0
    """Seconds to wait for a starting server, or while no server responds, before the run stops with
    a checkpoint."""
    timeout: float = 1800.0
    """Seconds that one completion may take before it is requested again."""
    off_policy_steps: int = 0
    """Steps between requesting completions and training on them, in [0, 64]: while step t trains,
    servers generate step t + off_policy_steps with the adapter from before update t; 0 is on policy
    (paper: Algorithm 1, on policy; ours). With local, it only simulates off-policy training
    (docs/how-to/vllm.md)."""
    colocate: bool = False
    """Let the servers free their GPU's memory for the trainer between rollouts (vLLM's sleep mode,
    level 1)."""

    def __post_init__(self) -> None:
        validate_common(self)
        engine = engine_type(self.engine)
        _require_sampling(self)
        _at_least(1, self, batch_size="rows; default: 32")
        note = "nats; inf is off; default: 0.05"
        require(self, "max_logprob_mismatch", self.max_logprob_mismatch > 0, "above 0", note)

        _require_no_secrets(self)
        are_addresses = all(_is_address(url) for url in self.urls)
        allowed = "addresses that start with http:// or https:// and a host"
        require(self, "urls", are_addresses, allowed, "such as http://node1:8000")
        are_used = not self.urls or engine.is_remote
        allowed = f'empty with rollout.engine "{self.engine}"'
        require(self, "urls", are_used, allowed, 'servers need engine "vllm"')
        are_distinct = len(set(self.urls)) == len(self.urls)
        require(self, "urls", are_distinct, "a list of distinct addresses", "one for each server")

        are_owned = not self.server_gpus or self.owns_servers
        allowed = 'empty unless rollout.engine is "vllm" and rollout.urls is empty'
        require(self, "server_gpus", are_owned, allowed, "GPUs of the servers that are started")
        are_named = all(re.fullmatch(r"[\w-]+(,[\w-]+)*", gpus) for gpus in self.server_gpus)
        allowed = "GPUs for each server, such as 4 or 4,5"
        require(self, "server_gpus", are_named, allowed, "cpu: none")

        require(self, "server", bool(self.server.split()), "a command", 'default: "vllm serve"')
        in_range = 0 < self.server_timeout <= MAX_SECONDS
        require(self, "server_timeout", in_range, f"in (0, {MAX_SECONDS}]", "seconds; default: 900")
        in_range = 0 < self.timeout <= MAX_SECONDS
        require(self, "timeout", in_range, f"in (0, {MAX_SECONDS}]", "seconds; default: 1800")
        validate_path(self, "adapter_folder", "None: the run directory")

        in_range = 0 <= self.off_policy_steps <= MAX_OFF_POLICY_STEPS
        require(
            self,
            "off_policy_steps",
            in_range,
            f"in [0, {MAX_OFF_POLICY_STEPS}]",
            "steps; default: 0, on policy",
        )
        are_apart = not self.off_policy_steps or (engine.takes_adapters and not self.colocate)
        allowed = "0 with rollout.colocate and with rollout.engine merged"
        require(self, "off_policy_steps", are_apart, allowed, "servers generate during training")

    @property
    def owns_servers(self) -> bool:
        """Whether the run starts its own servers: a remote engine without rollout.urls."""
        return engine_type(self.engine).is_remote and not self.urls


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How much of the verified solution is hidden from the teacher, and where."""

    mask_ratio_wrong: float = 0.30
    """Mask ratio rho_wrong of a completion that shares nothing with the solution, in [0, 1) (paper:
    0.30)."""
    mask_ratio_correct: float = 0.40
    """Mask ratio rho_correct of a completion with overlap 1, in [mask_ratio_wrong, 1) (paper:
    0.40)."""
    placement: Literal["suffix", "prefix", "middle", "random", "punctuation"] = "suffix"
    """Which part is hidden; punctuation is a suffix that starts after a sentence (paper: suffix
    masking)."""
    source: ContextSource = "own"
    """What the teacher reads: the problem's own solution, nothing, another problem's solution, the
    bare answer, or a wrong one; all but own are controls (paper: own). Only solutions are
    masked."""
    wording: Literal["as_shown", "complete", "part"] = "as_shown"
    """How the teacher's prompt announces the reference: as_shown is complete where nothing is
    hidden and partial otherwise, complete is always complete, part always partial (paper:
    part)."""

    def __post_init__(self) -> None:
        validate_common(self)
        note = "mask ratio rho_wrong; paper: 0.30"
        require(self, "mask_ratio_wrong", 0 <= self.mask_ratio_wrong < 1, "in [0, 1)", note)
        note = "mask ratio rho_correct; paper: 0.40"
        require(self, "mask_ratio_correct", 0 <= self.mask_ratio_correct < 1, "in [0, 1)", note)
        allowed = f"at least context.mask_ratio_wrong = {self.mask_ratio_wrong}"
        require(
            self,
            "mask_ratio_correct",
            self.mask_ratio_correct >= self.mask_ratio_wrong,
            allowed,
            "equal: a fixed ratio",
        )


@dataclass(frozen=True, slots=True)
class TeacherConfig:
    """The teacher: its weights, and whether it reasons before it scores."""

    weights: Literal["frozen", "ema", "live"] = "frozen"
    """frozen is the model as it was before training, live the student's own weights, ema a moving
    average of them that starts at the student (paper: frozen; Training Algorithm names ema as a
    variant)."""
    decay: float = 0.99
    """EMA decay: the average's share that is kept at each step, in [0, 1); for ema only (ours)."""
    reason_first: bool = False
    """The teacher first writes a rationale about the reference, and scores with it in its prompt
    (paper: Training Algorithm names it as a variant)."""
    rationale_tokens: int = 512
    """Longest rationale, in tokens; for reason_first only (ours)."""

    def __post_init__(self) -> None:
        validate_common(self)
        require(self, "decay", 0 <= self.decay < 1, "in [0, 1)", "default: 0.99")
        _at_least(1, self, rationale_tokens="tokens; default: 512")


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """The GRPO baseline: several completions per problem, rewarded by the verified answer. For
    train.method grpo only."""

    group_size: int = 8
    """Completions per problem, at least 2; train.batch-size is a multiple of it (paper: Main
    Results, 8)."""
    clip: float = 0.2
    """Clip range of the ratio of new to old probability around 1, in (0, 1)
    (OPSD's scripts, 0.2)."""
    kl: float = 0.0
    """Weight of the KL to the model before training, at least 0 (OPSD's scripts: none)."""
    iterations: int = 1
    """Optimizer updates on the same completions; with 1 the ratio is 1 and nothing is clipped
    (OPSD's scripts, 1)."""

    def __post_init__(self) -> None:
        validate_common(self)
        _at_least(2, self, group_size="completions a problem; paper: 8")
        require(self, "clip", 0 < self.clip < 1, "in (0, 1)", "default: 0.2")
        require(self, "kl", 0 <= self.kl < math.inf, "in [0, inf)", "default: 0, off")
        _at_least(1, self, iterations="updates; default: 1")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Method, steps, batch sizes and optimizer."""

    method: str = "distillation"
    """Algorithm of a step: distillation is PAINT, and OPSD where nothing is masked or interpolated;
    grpo and sft are the baselines (paper: Compared post-training recipes); module:Class is one of
    your own (paint.algorithms.base)."""
    steps: int = 100
    """Optimizer steps (paper: Experimental Details, 100); grpo takes grpo.iterations in each. For a
    number of epochs, set ceil(epochs x problems / problems per step)."""
    batch_size: int = 32
    """Completions per optimizer step, over all ranks (paper: Experimental Details, 32)."""
    micro_batch_size: int = 4
    """Most completions in one forward and backward pass of a rank; changes memory and speed, never
    the result."""
    micro_batch_tokens: int = 4096
    """Most tokens in such a pass: its rows times the length of the longest (prompt, the teacher's
    if that is longer, and completion). A longer row is a pass by itself (ours: less padding than
    with more tokens, less memory for long rows)."""
    learning_rate: float = 5e-6
    """Learning rate of the adapters (paper: Experimental Details, 5e-6), constant after the warm-up
    (ours)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero, at most steps (OPSD's
    scripts: none)."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the last step, linearly or as a
    cosine (OPSD's scripts: constant; the paper is silent)."""
    weight_decay: float = 0.0
    """AdamW's decay of the adapters, at least 0 (OPSD's scripts: none)."""
    max_grad_norm: float = 0.1
    """Largest gradient norm; larger gradients are scaled down to it, above 0 (OPSD's scripts, 0.1;
    for grpo and sft 1.0)."""
    seed: int = 0
    """Seed of the order of problems, of sampling and of the adapters, at least 0."""
    checkpoint_every: int = 20
    """Steps between checkpoints (paper: Experimental Details, evaluated every 20 steps)."""

    def __post_init__(self) -> None:
        validate_common(self)
        _at_least(1, self, steps="optimizer steps; paper: 100")
        _at_least(1, self, batch_size="completions a step; paper: 32")
        _at_least(1, self, micro_batch_size="default: 4", micro_batch_tokens="default: 4096")
        _at_least(1, self, checkpoint_every="steps; paper: 20")
        _at_least(0, self, seed="default: 0")

        in_range = 0 < self.learning_rate < math.inf
        require(self, "learning_rate", in_range, "in (0, inf)", "paper: 5e-6")
        in_range = 0 <= self.warmup_steps <= self.steps
        allowed = f"in [0, train.steps = {self.steps}]"
        require(self, "warmup_steps", in_range, allowed, "default: 0")
        in_range = 0 <= self.weight_decay < math.inf
        require(self, "weight_decay", in_range, "in [0, inf)", "default: 0.0")
        in_range = 0 < self.max_grad_norm < math.inf
        require(self, "max_grad_norm", in_range, "in (0, inf)", "default: 0.1")


@dataclass(frozen=True, slots=True)
class GradingConfig:
    """How completions are graded: for GRPO's reward, and for the accuracy that runs report."""

    grader: str = "math"
    """Grader: math compares the boxed answer with the gold one, exact compares texts, none leaves
    completions ungraded, and module:name is your own function (paint.grading.base; ours)."""
    deadline: float = 5.0
    """CPU seconds that a comparison of two answers, or a call of your function, may take, in
    [0.01, 86400] (ours)."""

    def __post_init__(self) -> None:
        validate_common(self)
        _require_grader(self)


@dataclass(frozen=True, slots=True)
class ValidationConfig:
    """Your own problems on which every checkpoint is evaluated, in the paper's evaluation
    setting."""

    path: str = ""
    """Problems with their answers, named as for `paint eval --benchmarks`; empty: checkpoints are
    not evaluated. Use your own problems, not the test benchmarks: the test score of a checkpoint
    that was chosen by it is biased."""
    limit: int | None = None
    """Number of problems to use, from the first; None is all."""
    samples: int = 12
    """Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: Experimental Details, on)."""
    temperature: float = 1.0
    """Sampling temperature, in [0.001, 1000] (paper: Experimental Details, 1.0)."""
    top_p: float = 0.95
    """Nucleus sampling: share of probability kept, in (0, 1] (paper: Experimental Details,
    0.95)."""
    top_k: int = -1
    """Number of most likely tokens kept, at least 1; -1 is off (paper: Experimental Details,
    -1)."""
    max_new_tokens: int = 38_912
    """Longest answer, in tokens (paper: Experimental Details, 38,912)."""

    def __post_init__(self) -> None:
        validate_common(self)
        validate_path(self, "path", "problems and their answers")
        _require_limit(self, "None: all problems")
        _at_least(1, self, samples="samples a problem; paper: 12")
        _require_sampling(self)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Name, folder, trackers and stored rollouts of a run."""

    folder: str = "runs"
    """Folder in which run folders are created."""
    name: str | None = None
    """Name of the run folder; None makes one from the recipe's name and the time."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers that receive the metrics in addition to metrics.jsonl in the run folder."""
    project: str = "paint"
    """Project that trackers file the run under."""
    keep_rollouts: bool = True
    """Store every completion with its overlap, mask ratio and verdict in the run folder."""
    token_rows: int | Literal["all"] = 4
    """Rows per step, the first ones, whose values are stored token by token, for
    `paint show` and pandas (docs/how-to/inspect-rollouts.md); "all", or 0 for none (ours)."""

    def __post_init__(self) -> None:
        validate_common(self)
        is_count = self.token_rows == "all" or (
            isinstance(self.token_rows, int) and 0 <= self.token_rows <= MAX_COUNT
        )
        require(
            self, "token_rows", is_count, f'in [0, {MAX_COUNT}] or "all"', "rows a step; default: 4"
        )
        require(self, "folder", bool(self.folder.strip()), "a folder", 'default: "runs"')
        is_folder_name = self.name is None or (
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0")
        )
        allowed = "a folder name without slashes, or None"
        require(self, "name", is_folder_name, allowed, "the folder is log.folder")
        validate_path(self, "name", "it becomes a folder")
        validate_path(self, "folder", 'default: "runs"')
        are_distinct = len(set(self.trackers)) == len(self.trackers)
        require(self, "trackers", are_distinct, "a list of distinct trackers", "default: none")
        require(self, "project", bool(self.project.strip()), "a name", 'default: "paint"')


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of a training run. The defaults are the paper's."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Model, its number format and its adapters."""
    data: DataConfig = field(default_factory=DataConfig)
    """Training problems and how they are read."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How the student samples its completions: one for every problem (grpo: a group), on policy."""
    context: ContextConfig = field(default_factory=ContextConfig)
    """How much of the verified solution is hidden from the teacher, and where."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """The teacher: its weights, and whether it reasons before it scores."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How the student is trained towards the teacher."""
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    """The GRPO baseline: several completions per problem, rewarded by the verified answer. For
    train.method grpo only."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Method, steps, batch sizes and optimizer."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    """How completions are graded: for GRPO's reward, and for the accuracy that runs report."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """Your own problems on which every checkpoint is evaluated, in the paper's evaluation
    setting."""
    log: LogConfig = field(default_factory=LogConfig)
    """Name, folder, trackers and stored rollouts of a run."""

    def __post_init__(self) -> None:
        algorithm, method = self.algorithm, format_value(self.train.method)
        size, batch = algorithm.group_size(self), self.train.batch_size
        if batch % size:
            raise ConfigError(
                f"train.batch_size must be a multiple of grpo.group_size = {size}, got {batch} "
                "(completions a step)"
            )
        if not algorithm.needs_context:
            self._refuse_distillation_settings()

        for is_used, what in (
            (algorithm.needs_grades, f"train.method {method}"),
            (bool(self.validation.path), "validation.path"),
        ):
            if is_used and self.grading.grader == "none":
                raise ConfigError(
                    f'grading.grader must not be "none" with {what}, which needs grades'
                )

        rollout, objective = self.rollout, self.objective
        divergence = find_divergence(objective.divergence)
        tokens_carry_gradient = algorithm.uses_policy_gradient or divergence.is_sampled
        if tokens_carry_gradient and objective.temperature not in (None, rollout.temperature):
            raise ConfigError(
                f"objective.temperature must be None or rollout.temperature = "
                f"{rollout.temperature:g} where sampled tokens carry the gradient, got "
                f"{objective.temperature:g} (they are drawn at that one)"
            )
        if divergence.is_sampled and (rollout.top_p < 1 or rollout.top_k > 0):
            raise ConfigError(
                "rollout.top_p must be 1 and rollout.top_k -1 with objective.divergence "
                f"{format_value(divergence.name)}, got {rollout.top_p:g} and {rollout.top_k} (its "
                "gradient is that of the reverse KL only for tokens drawn from the whole "
                "distribution)"
            )

        if rollout.off_policy_steps and (not algorithm.needs_rollouts or tokens_carry_gradient):
            what = f"train.method {method}"
            if divergence.is_sampled:
                what = f'objective.divergence "{divergence.name}"'
            raise ConfigError(
                f"rollout.off_policy_steps must be 0 with {what}, got {rollout.off_policy_steps} "
                "(a gradient by sampled "
                f"tokens is that of the policy which drew them, and references are not drawn)"
            )

        if self.teacher.reason_first and self.context.source == "none":
            raise ConfigError(
                'context.source must not be "none" with teacher.reason_first: '
                "there is nothing to reason about"
            )

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that ``train.method`` names."""
        return find_algorithm(self.train.method)

    @property
    def generates(self) -> bool:
        """Whether a run samples completions: to learn from them, or to validate."""
        return self.algorithm.needs_rollouts or bool(self.validation.path)

    def _refuse_distillation_settings(self) -> None:
        """Refuse what the baselines would ignore: they have no teacher and no divergence."""
        settings = (
            ("teacher.weights", self.teacher.weights, "frozen"),
            ("teacher.reason_first", self.teacher.reason_first, False),
            ("context.source", self.context.source, "own"),
            ("context.wording", self.context.wording, "as_shown"),
            ("objective.divergence", self.objective.divergence, "forward_kl"),
        )
        for name, value, default in settings:
            if value != default:
                raise ConfigError(
                    f"{name} must be {format_value(default)} with train.method "
                    f"{format_value(self.train.method)}, "
                    f"got {format_value(value)} (it belongs to distillation)"
                )


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Settings of `paint eval`. The defaults are the paper's (section 'Experimental Details')."""

    benchmarks: tuple[str, ...] = ("aime_2024", "aime_2025", "hmmt_feb_2025")
    """Problem sets: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026 or math_500 from
    the hub, NAME=PATH for a local copy of one of these, demo, or your own JSONL, CSV or Parquet
    file, FILE or FILE:problem_column,answer_column (paper: AIME 2024, AIME 2025, HMMT 2025)."""
    samples: int = 12
    """Samples per problem: the k of Avg@k; it may be raised later (paper: 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: on)."""
    base: bool = True
    """Also evaluate the base model if adapters are named, and compare them with it problem by
    problem."""
    limit: int | None = None
    """Number of problems to use of each benchmark, from the first; None is all."""
    seed: int = 0
    """Seed of sampling, at least 0."""
    folder: str = "evals"
    """Folder in which evaluations are stored, each in a folder of its model's name."""
    dtype: Dtype | None = None
    """Number format of the weights; None is that of the run, or else that of the model's files."""
    grader: str = "math"
    """Grader, as grading.grader of a recipe: math, exact, or module:name (ours)."""
    deadline: float = 5.0
    """CPU seconds that a comparison of two answers, or a call of your function, may take, in
    [0.01, 86400] (ours)."""
    overrides: str = ""
    """JSONL file of manual verdicts, which replace the grader's: problem, sample, verdict (right or
    wrong) and reason, and policy and benchmark if there are several."""
    rollout: RolloutConfig = field(
        default_factory=lambda: RolloutConfig(
            temperature=1.0, top_k=-1, max_new_tokens=38_912, batch_size=64, timeout=7200.0
        )
    )
    """How answers are sampled, and where."""

    def __post_init__(self) -> None:
        validate_common(self)
        has_sets = bool(self.benchmarks)
        require(self, "benchmarks", has_sets, "a list of problem sets", "paper: three")
        _at_least(1, self, samples="samples a problem; paper: 12")
        _require_limit(self, "None: all problems")
        _at_least(0, self, seed="default: 0")
        require(self, "folder", bool(self.folder.strip()), "a folder", 'default: "evals"')
        validate_path(self, "folder", 'default: "evals"')
        validate_path(self, "overrides", "a JSONL file")
        require(
            self.rollout,
            "off_policy_steps",
            not self.rollout.off_policy_steps,
            "0",
            "an evaluation has no training steps",
        )
        _require_grader(self)
        require(self, "grader", self.grader != "none", "a grader", "an evaluation needs grades")


def _require_sampling(section: RolloutConfig | ValidationConfig) -> None:
    in_range = 0.001 <= section.temperature <= 1000
    require(section, "temperature", in_range, "in [0.001, 1000]", "sampling temperature")
    require(section, "top_p", 0 < section.top_p <= 1, "in (0, 1]", "1 is off; default: 0.95")
    in_range = section.top_k >= 1 or section.top_k == -1
    require(section, "top_k", in_range, "at least 1, or -1", "-1 is off")
    _at_least(1, section, max_new_tokens="tokens")


def _require_limit(section: DataConfig | ValidationConfig | EvaluationConfig, note: str) -> None:
    in_range = section.limit is None or section.limit >= 1
    require(section, "limit", in_range, "at least 1 or None", note)


def _require_grader(section: GradingConfig | EvaluationConfig) -> None:
    require(section, "grader", bool(section.grader.strip()), "a grader", 'default: "math"')
    in_range = 0.01 <= section.deadline <= 86_400
    require(section, "deadline", in_range, "in [0.01, 86400]", "seconds; default: 5")


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
    """Refuse secrets, which would be visible in run.json, logs and the process list.

    Raises:
        ConfigError: naming the setting, without its value.
    """
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


def _at_least(smallest: int, section: object, **notes: str) -> None:
    """Require settings to be in [smallest, MAX_COUNT]; ``notes`` maps names to message notes."""
    for key, note in notes.items():
        in_range = getattr(section, key) >= smallest
        require(section, key, in_range, f"at least {smallest}", note)
        in_range = key == "seed" or getattr(section, key) <= MAX_COUNT
        require(section, key, in_range, f"at most {MAX_COUNT}", note)
