"""Which settings are there, what do they mean, and what did the paper use?

One tree of frozen dataclasses. The class defaults are the paper's setting (section 'Experimental Details');
where the paper is silent the default is ours and its docstring says so. The docstring below a field is its
help text on the command line. How a recipe, a TOML file, becomes a config is paint.recipe's business.

Ranges are checked whenever a section is built, whether from a recipe, flags, a run directory or Python; types
where a table is read (flags are typed by their parser, Python by its type checker). Two paths have no
default, and `recipe.require_paths` refuses to start without them: a recipe may leave them to flags.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Literal

from paint import PaintError


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message says which."""


Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Model:
    """Which model is trained, and how its adapters are shaped."""

    path: str = ""
    """Folder or hub name of the model; "lab" is the embedded one. Required: no default."""
    dtype: Dtype = "bfloat16"
    """Number format of the frozen weights; what is trained is always float32 (ours)."""
    tuning: Literal["lora", "full"] = "lora"
    """What is trained: LoRA adapters, or every weight, with a frozen copy as the teacher (paper: LoRA)."""
    lora_rank: int = 64
    """Rank r of the LoRA adapters, at least 1 (paper: Experimental Details, r = 64)."""
    lora_alpha: int = 128
    """LoRA scale: an adapter's update is multiplied by alpha / rank (paper: Experimental Details, 128)."""
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
    student_thinking: bool = False
    """Thinking mode of the student's prompt, in rollouts and in scoring (ours; the paper is silent)."""
    teacher_thinking: bool = True
    """Thinking mode of the teacher's prompt (ours; the paper is silent)."""
    attention: str = "sdpa"
    """Attention implementation as transformers names it: sdpa, eager, flash_attention_2 (ours)."""

    def __post_init__(self) -> None:
        _require(self, "lora_rank", self.lora_rank >= 1, "at least 1", "paper: 64")
        _require(self, "lora_alpha", self.lora_alpha >= 1, "at least 1", "paper: 128")
        named = bool(self.lora_targets) and all(self.lora_targets)
        unique = len(set(self.lora_targets)) == len(self.lora_targets)
        _require(self, "lora_targets", named and unique, "a list of distinct layer names", "paper: seven")
        _require(self, "attention", bool(self.attention.strip()), "a name", "such as sdpa")


@dataclass(frozen=True, slots=True)
class Data:
    """Which problems are trained on, and how they are read."""

    path: str = ""
    """Problems: a JSONL, CSV or Parquet file, or a hub name such as owner/name or owner/name:config@split; "lab" is
    the embedded family. Required: no default."""
    problem_field: str = "problem"
    """Field that holds the problem x."""
    solution_field: str = "solution"
    """Field that holds the verified solution y*, of which the teacher sees a part."""
    answer_field: str = "answer"
    """Field that holds the final gold answer: GRPO's reward and the controls take it, PAINT only reports by it."""
    id_field: str = "id"
    """Field that names a row. Rows without "id" are named by their number; any other name must be there."""
    max_prompt_tokens: int = 8192
    """Longest prompt of student and teacher (sft: prompt and solution), in tokens; longer ones are refused, never
    cut (ours)."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What a row that fails a check does: stop with its number and reason, or be left out and counted."""
    limit: int | None = None
    """Use the first so many good rows; None is all (paper: up to 30K problems)."""

    def __post_init__(self) -> None:
        for name in ("problem_field", "solution_field", "answer_field", "id_field"):
            _require(self, name, bool(getattr(self, name)), "the name of a field", f'default: "{name[:-6]}"')
        _require(self, "max_prompt_tokens", self.max_prompt_tokens >= 1, "at least 1", "default: 8192")
        _require(self, "limit", self.limit is None or self.limit >= 1, "at least 1 or None", "None: all rows")


@dataclass(frozen=True, slots=True)
class Rollout:
    """How completions are sampled, and where."""

    engine: Literal["local", "vllm", "merged"] = "local"
    """What generates: local is the training process itself; vllm is vLLM servers that hold base + adapter
    (docs/engines.md); merged is local with the adapter rounded into the weights, for comparison only."""
    temperature: float = 1.1
    """Sampling temperature, above 0 (paper: Experimental Details, 1.1 in training, 1.0 in evaluation)."""
    top_p: float = 0.95
    """Nucleus sampling: share of probability kept, in (0, 1]; 1 is off (ours in training; paper: 0.95 in
    evaluation)."""
    top_k: int = 20
    """Number of likeliest tokens kept, at least 1; -1 is off (ours in training; paper: off in evaluation)."""
    max_new_tokens: int = 1024
    """Longest completion, in tokens (paper: Experimental Details, 1024 in training, 38,912 in evaluation)."""
    batch_size: int = 32
    """Rows generated at once: by a rank, or by a vLLM server; changes speed and memory only."""
    max_engine_gap: float = 0.05
    """Largest mean difference, in nats, between the engine's and the trainer's log-probs of a step's sampled
    tokens; beyond it the run stops before the update, above 0 (ours; 0.001 is enough in float32)."""
    urls: tuple[str, ...] = ()
    """Addresses of running vLLM servers, such as http://node1:8000; none: one is started and owned."""
    server: str = "vllm serve"
    """Command that starts the owned vLLM server, as in a shell: it may live in another environment."""
    server_args: str = ""
    """Further arguments of the owned server, as in a shell: --rollout.server-args="--gpu-memory-utilization 0.4",
    with the = before the dashes."""
    adapter_folder: str | None = None
    """Folder for the adapters on their way to the servers, which must see it under the same path; the run makes
    one of its name in it. None is the run directory."""
    patience: float = 900.0
    """Seconds to wait for a server that starts, or when none answers, before the run ends with a checkpoint."""
    timeout: float = 1800.0
    """Seconds that one completion may take before it is asked for again."""
    sleep: bool = False
    """Let the servers give their GPU to the trainer between rollouts (vLLM's sleep mode, level 1)."""

    def __post_init__(self) -> None:
        _require_sampling(self)
        _require(self, "batch_size", self.batch_size >= 1, "at least 1", "rows; default: 32")
        _require(self, "max_engine_gap", self.max_engine_gap > 0, "above 0", "nats; inf is off; default: 0.05")
        web = all(url.startswith(("http://", "https://")) for url in self.urls)
        _require(self, "urls", web, "addresses that start with http:// or https://", "such as http://node1:8000")
        unused = not self.urls or self.engine == "vllm"
        _require(self, "urls", unused, f'empty with rollout.engine "{self.engine}"', 'servers need engine "vllm"')
        unique = len(set(self.urls)) == len(self.urls)
        _require(self, "urls", unique, "a list of distinct addresses", "one for each server")
        _require(self, "server", bool(self.server.split()), "a command", 'default: "vllm serve"')
        _require(self, "patience", self.patience > 0, "above 0", "seconds; default: 900")
        _require(self, "timeout", self.timeout > 0, "above 0", "seconds; default: 1800")


@dataclass(frozen=True, slots=True)
class Context:
    """How much of the verified solution is hidden from the teacher, and where."""

    wrong: float = 0.30
    """Mask ratio rho_wrong of a completion that shares nothing with the solution, in [0, 1) (paper: 0.30)."""
    correct: float = 0.40
    """Mask ratio rho_correct of a completion with overlap 1, in [wrong, 1) (paper: 0.40)."""
    placement: Literal["suffix", "prefix", "middle", "random", "punctuation"] = "suffix"
    """Which part is hidden; punctuation is a suffix that starts after a sentence (paper: suffix masking)."""
    shown: Literal["own", "none", "other", "answer", "wrong_answer"] = "own"
    """What the teacher reads: the problem's own solution, nothing, another problem's solution, the bare answer, or
    a wrong one; all but own are controls (paper: own). Only solutions are masked."""

    def __post_init__(self) -> None:
        _require(self, "wrong", 0 <= self.wrong < 1, "in [0, 1)", "mask ratio rho_wrong; paper: 0.30")
        _require(self, "correct", 0 <= self.correct < 1, "in [0, 1)", "mask ratio rho_correct; paper: 0.40")
        rises = self.correct >= self.wrong
        _require(self, "correct", rises, f"at least context.wrong = {self.wrong}", "equal: a fixed ratio")


@dataclass(frozen=True, slots=True)
class Teacher:
    """Whose distribution the privileged view is, and what it does before it scores."""

    weights: Literal["frozen", "ema", "live"] = "frozen"
    """frozen is the model as it was before training, live the student's own weights, ema a moving average of
    them that starts at the student (paper: frozen; Training Algorithm names ema as a variant)."""
    decay: float = 0.99
    """Share of the average that stays at each step, in [0, 1); for ema only (ours)."""
    reason_first: bool = False
    """The teacher first writes a rationale about what it is shown, and scores with that in view (paper: Training
    Algorithm names it as a variant)."""
    rationale_tokens: int = 512
    """Longest rationale, in tokens; for reason_first only (ours)."""

    def __post_init__(self) -> None:
        _require(self, "decay", 0 <= self.decay < 1, "in [0, 1)", "default: 0.99")
        _require(self, "rationale_tokens", self.rationale_tokens >= 1, "at least 1", "tokens; default: 512")


@dataclass(frozen=True, slots=True)
class Objective:
    """How the student is trained towards the teacher."""

    kind: Literal["forward_kl", "reverse_kl", "jsd", "sampled_token"] = "forward_kl"
    """Divergence between target and student at a position; sampled_token is reverse KL by policy gradient on the
    sampled token, with clip-mode none, top-p 1 and top-k -1 (paper: Eq. clipped_fkl, forward KL; Training Algorithm
    names sampled tokens)."""
    clip: float = 0.06
    """Clipping threshold tau, in nats, above 0 (paper: Eq. clipped_fkl; Experimental Details, 0.06)."""
    clip_mode: Literal["pointwise", "token", "none"] = "pointwise"
    """What is clipped: each vocabulary entry's term, a position's sum, or nothing (paper: pointwise)."""
    mix: float = 0.03
    """Interpolation weight k_base, in [0, 1]; 0 leaves the teacher as it is (paper: Eq. sparse_energy_interp;
    Experimental Details, 0.03)."""
    top_fraction: float = 0.03
    """Share f_top of a completion's positions that are interpolated, in [0, 1] (paper: Eq.
    sparse_selector_objective; Experimental Details, 0.03)."""
    temperature: float | None = None
    """Temperature T of both views' distributions, above 0; None is the rollout temperature (ours)."""
    reduction: Literal["completion", "token"] = "completion"
    """What the loss is a mean over, of every method: each completion's tokens and then completions (paper: Eq.
    clipped_fkl), or all tokens of the optimizer step."""
    impl: Literal["auto", "reference", "chunked", "triton"] = "auto"
    """What computes it (paint.fused): auto takes triton on a GPU and chunked elsewhere; reference holds the
    logits of a whole micro-batch. Changes speed and memory, never the result."""

    def __post_init__(self) -> None:
        positive = 0 < self.clip < math.inf
        _require(self, "clip", positive, "in (0, inf)", 'tau; paper: 0.06; off: objective.clip_mode "none"')
        plain = self.kind != "sampled_token" or self.clip_mode == "none"
        _require(
            self, "clip_mode", plain, '"none" with objective.kind "sampled_token"', "one summand is no sum to clip"
        )
        _require(self, "mix", 0 <= self.mix <= 1, "in [0, 1]", "interpolation weight k_base; paper: 0.03")
        _require(self, "top_fraction", 0 <= self.top_fraction <= 1, "in [0, 1]", "f_top; paper: 0.03")
        sound = self.temperature is None or 0 < self.temperature < math.inf
        _require(self, "temperature", sound, "in (0, inf) or None", "None: the rollout temperature")


@dataclass(frozen=True, slots=True)
class Grpo:
    """The GRPO baseline: several completions a problem, rewarded by the verified answer. For train.method grpo only."""

    group_size: int = 8
    """Completions a problem, at least 2; train.batch-size is a multiple of it (paper: Main Results, 8)."""
    clip: float = 0.2
    """How far the ratio of new to old probability may leave 1 before the gradient stops, in (0, 1) (ours)."""
    kl: float = 0.0
    """Weight of the KL to the model before training, at least 0 (ours: none)."""
    iterations: int = 1
    """Optimizer updates on the same completions; with 1 the ratio is 1 and nothing is clipped (ours)."""

    def __post_init__(self) -> None:
        _require(self, "group_size", self.group_size >= 2, "at least 2", "completions a problem; paper: 8")
        _require(self, "clip", 0 < self.clip < 1, "in (0, 1)", "default: 0.2")
        _require(self, "kl", 0 <= self.kl < math.inf, "in [0, inf)", "default: 0, off")
        _require(self, "iterations", self.iterations >= 1, "at least 1", "updates; default: 1")


@dataclass(frozen=True, slots=True)
class Train:
    """How long and how fast."""

    method: Literal["distillation", "grpo", "sft"] = "distillation"
    """What a step does: distillation is PAINT, and OPSD where nothing is hidden or interpolated; grpo and sft are the
    baselines (paper: Compared post-training recipes)."""
    steps: int = 100
    """Optimizer steps (paper: Experimental Details, 100); grpo takes grpo.iterations in each."""
    batch_size: int = 32
    """Completions an optimizer step, over all ranks (paper: Experimental Details, 32)."""
    micro_batch_size: int = 4
    """Completions in one forward and backward pass of a rank; changes memory, never the result."""
    learning_rate: float = 5e-6
    """Learning rate of the adapters, constant after the warm-up (paper: Experimental Details, 5e-6)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero, at most steps (ours)."""
    weight_decay: float = 0.0
    """AdamW's decay of the adapters, at least 0 (ours)."""
    max_grad_norm: float = 0.1
    """Gradient norm above which the gradient is scaled down, above 0 (ours)."""
    seed: int = 0
    """Seed of the order of problems, of sampling and of the adapters, at least 0."""
    checkpoint_every: int = 20
    """Steps between checkpoints (paper: Experimental Details, evaluated every 20 steps)."""

    def __post_init__(self) -> None:
        _require(self, "steps", self.steps >= 1, "at least 1", "optimizer steps; paper: 100")
        _require(self, "batch_size", self.batch_size >= 1, "at least 1", "completions a step; paper: 32")
        _require(self, "micro_batch_size", self.micro_batch_size >= 1, "at least 1", "default: 4")
        moves = 0 < self.learning_rate < math.inf
        _require(self, "learning_rate", moves, "in (0, inf)", "paper: 5e-6")
        warm = 0 <= self.warmup_steps <= self.steps
        _require(self, "warmup_steps", warm, f"in [0, train.steps = {self.steps}]", "default: 0")
        _require(self, "weight_decay", 0 <= self.weight_decay < math.inf, "in [0, inf)", "default: 0.0")
        _require(self, "max_grad_norm", 0 < self.max_grad_norm < math.inf, "in (0, inf)", "default: 0.1")
        _require(self, "seed", self.seed >= 0, "at least 0", "default: 0")
        _require(self, "checkpoint_every", self.checkpoint_every >= 1, "at least 1", "steps; paper: 20")


@dataclass(frozen=True, slots=True)
class Validation:
    """Problems of your own on which every checkpoint is evaluated, in the paper's evaluation setting."""

    path: str = ""
    """Problems with their answers, named as for `paint eval --benchmarks`; none: checkpoints are not evaluated. Take
    problems of your own and not the test benchmarks: a checkpoint chosen by its test result has none."""
    limit: int | None = None
    """Use the first so many problems; None is all."""
    samples: int = 12
    """Answers a problem: the k of Avg@k (paper: Experimental Details, 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: Experimental Details, on)."""
    temperature: float = 1.0
    """Sampling temperature, above 0 (paper: Experimental Details, 1.0)."""
    top_p: float = 0.95
    """Nucleus sampling: share of probability kept, in (0, 1] (paper: Experimental Details, 0.95)."""
    top_k: int = -1
    """Number of likeliest tokens kept, at least 1; -1 is off (paper: Experimental Details, -1)."""
    max_new_tokens: int = 38_912
    """Longest answer, in tokens (paper: Experimental Details, 38,912)."""

    def __post_init__(self) -> None:
        _require(self, "limit", self.limit is None or self.limit >= 1, "at least 1 or None", "None: all problems")
        _require(self, "samples", self.samples >= 1, "at least 1", "answers a problem; paper: 12")
        _require_sampling(self)


@dataclass(frozen=True, slots=True)
class Log:
    """What a run leaves behind, and where."""

    folder: str = "runs"
    """Folder in which run directories are made."""
    name: str | None = None
    """Name of the run directory; None makes one from the recipe's name and the time."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics go besides the run directory's metrics.jsonl."""
    project: str = "paint"
    """Project that trackers file the run under."""
    keep_rollouts: bool = True
    """Store every completion with its overlap, mask ratio and verdict in the run directory."""

    def __post_init__(self) -> None:
        _require(self, "folder", bool(self.folder.strip()), "a folder", 'default: "runs"')
        plain = self.name is None or (self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0"))
        _require(self, "name", plain, "a folder name without slashes, or None", "the folder is log.folder")
        unique = len(set(self.trackers)) == len(self.trackers)
        _require(self, "trackers", unique, "a list of distinct trackers", "default: none")
        _require(self, "project", bool(self.project.strip()), "a name", 'default: "paint"')


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of a training run. The defaults are the paper's."""

    model: Model = field(default_factory=Model)
    """Which model is trained, and how its adapters are shaped."""
    data: Data = field(default_factory=Data)
    """Which problems are trained on, and how they are read."""
    rollout: Rollout = field(default_factory=Rollout)
    """How the student samples its completions: one for every problem (grpo: a group), on policy."""
    context: Context = field(default_factory=Context)
    """How much of the verified solution is hidden from the teacher, and where."""
    teacher: Teacher = field(default_factory=Teacher)
    """Whose distribution the privileged view is, and what it does before it scores."""
    objective: Objective = field(default_factory=Objective)
    """How the student is trained towards the teacher."""
    grpo: Grpo = field(default_factory=Grpo)
    """The GRPO baseline: several completions a problem, rewarded by the verified answer. For train.method grpo only."""
    train: Train = field(default_factory=Train)
    """How long and how fast."""
    validation: Validation = field(default_factory=Validation)
    """Problems of your own on which every checkpoint is evaluated, in the paper's evaluation setting."""
    log: Log = field(default_factory=Log)
    """What a run leaves behind, and where."""

    def __post_init__(self) -> None:
        size, batch = self.grpo.group_size, self.train.batch_size
        if self.train.method == "grpo" and batch % size:
            raise ConfigError(
                f"train.batch_size must be a multiple of grpo.group_size = {size}, got {batch} (completions a step)"
            )
        if self.train.method != "distillation":
            self._require_plain()
        sampled = self.train.method == "grpo" or self.objective.kind == "sampled_token"
        temperature = self.objective.temperature
        if sampled and temperature not in (None, self.rollout.temperature):
            raise ConfigError(
                f"objective.temperature must be None or rollout.temperature = {self.rollout.temperature:g} where "
                f"sampled tokens carry the gradient, got {temperature:g} (they are drawn at that one)"
            )
        if self.objective.kind == "sampled_token" and (self.rollout.top_p < 1 or self.rollout.top_k > 0):
            raise ConfigError(
                f'rollout.top_p must be 1 and rollout.top_k -1 with objective.kind "sampled_token", got '
                f"{self.rollout.top_p:g} and {self.rollout.top_k} (its gradient is that of the reverse KL only for "
                f"tokens drawn from the whole distribution)"
            )
        if self.teacher.reason_first and self.context.shown == "none":
            raise ConfigError(
                'context.shown must not be "none" with teacher.reason_first: there is nothing to reason about'
            )

    def _require_plain(self) -> None:
        """Refuse what the baselines would not heed: they have no teacher and no divergence."""
        given = (self.teacher.weights, self.teacher.reason_first, self.context.shown, self.objective.kind)
        names = ("teacher.weights", "teacher.reason_first", "context.shown", "objective.kind")
        for name, value, plain in zip(names, given, ("frozen", False, "own", "forward_kl"), strict=True):
            if value != plain:
                raise ConfigError(
                    f"{name} must be {show(plain)} with train.method {show(self.train.method)}, got {show(value)} "
                    f"(it belongs to distillation)"
                )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `paint eval` does. The defaults are the paper's (section 'Experimental Details')."""

    benchmarks: tuple[str, ...] = ("aime_2024", "aime_2025", "hmmt_feb_2025")
    """Problem sets: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026 or math_500 from the hub, NAME=PATH
    for a local copy of one of these, lab, or a JSONL, CSV or Parquet file of your own, FILE or
    FILE:problem_column,answer_column (paper: AIME 2024, AIME 2025, HMMT 2025)."""
    samples: int = 12
    """Answers a problem: the k of Avg@k; it may grow later (paper: 12)."""
    thinking: bool = True
    """Thinking mode of the prompt (paper: on)."""
    base: bool = True
    """Evaluate the base model, too, when adapters are named: they are compared with it, problem by problem."""
    limit: int | None = None
    """Use the first so many problems of each benchmark; None is all."""
    seed: int = 0
    """Seed of the answers, at least 0."""
    folder: str = "evals"
    """Folder in which evaluations are stored, each in a folder of its model's name."""
    dtype: Dtype | None = None
    """Number format of the weights; None is that of the run, or that in which the model is stored."""
    deadline: float = 5.0
    """Processor seconds that the comparison of two answers may take, in [0.01, 86400] (ours)."""
    rollout: Rollout = field(
        default_factory=lambda: Rollout(temperature=1.0, top_k=-1, max_new_tokens=38_912, batch_size=64, timeout=7200.0)
    )
    """How answers are sampled, and where."""

    def __post_init__(self) -> None:
        _require(self, "benchmarks", bool(self.benchmarks), "a list of problem sets", "paper: three")
        _require(self, "samples", self.samples >= 1, "at least 1", "answers a problem; paper: 12")
        _require(self, "limit", self.limit is None or self.limit >= 1, "at least 1 or None", "None: all problems")
        _require(self, "seed", self.seed >= 0, "at least 0", "default: 0")
        _require(self, "folder", bool(self.folder.strip()), "a folder", 'default: "evals"')
        _require(self, "deadline", 0.01 <= self.deadline <= 86_400, "in [0.01, 86400]", "seconds; default: 5")


def _require_sampling(section: Rollout | Validation) -> None:
    _require(section, "temperature", 0 < section.temperature < math.inf, "in (0, inf)", "sampling temperature")
    _require(section, "top_p", 0 < section.top_p <= 1, "in (0, 1]", "1 is off; default: 0.95")
    _require(section, "top_k", section.top_k >= 1 or section.top_k == -1, "at least 1, or -1", "-1 is off")
    _require(section, "max_new_tokens", section.max_new_tokens >= 1, "at least 1", "tokens")


def _require(section: object, key: str, sound: bool, allowed: str, note: str) -> None:
    if not sound:
        value = show(getattr(section, key))
        raise ConfigError(f"{type(section).__name__.lower()}.{key} must be {allowed}, got {value} ({note})")


def show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
