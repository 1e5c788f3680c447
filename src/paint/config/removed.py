"""Settings and flags that were removed or renamed, and what replaces each.

Versions 0.x may rename or remove a setting. Its old name is then in this table, and is refused with
its successor, in a recipe, on the command line and from Python. A run that was made with it can
still be read, evaluated and shown, but not resumed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from paint.core.errors import ConfigError

_WEIGHTS = (
    'train.method "paint.variants.on_correct:OnCorrect" with train.options.{} (recipe '
    "paint-on-correct)"
)

_AS_TRAINED = "{}, or afterwards `paint eval RUN {}`"

REMOVED_SETTINGS = {
    "model.packed": "train.micro_batch_tokens, which groups rows of similar length",
    "objective.correct_weight": _WEIGHTS.format("correct_weight"),
    "objective.wrong_weight": _WEIGHTS.format("wrong_weight"),
    "objective.wrong_divergence": (
        'train.method "paint.variants.by_verdict:ByVerdict" with train.options.wrong_divergence '
        "(recipe paint-by-verdict)"
    ),
    "objective.position_weights": (
        'train.method "paint.variants.entropy_gap:EntropyGap" (recipe paint-entropy-gap) or '
        '"paint.variants.answer:AnswerAlone" (recipe paint-answer)'
    ),
    "teacher.base_weight": (
        'train.method "paint.variants.anchored:Anchored" with train.options.base_weight (recipe '
        "paint-anchored)"
    ),
    "teacher.reason_first": (
        'train.method "paint.variants.reason_first:ReasonFirst" (recipe paint-reason-first)'
    ),
    "teacher.rationale_tokens": (
        'train.method "paint.variants.reason_first:ReasonFirst" with '
        "train.options.rationale_tokens (recipe paint-reason-first)"
    ),
    "prompts.rationale": (
        'train.method "paint.variants.reason_first:ReasonFirst" with train.options.request (recipe '
        "paint-reason-first)"
    ),
    "rollout.keep": (
        'train.method "paint.variants.oasis:Oasis" with train.options.keep (recipe oasis)'
    ),
    "grpo.clip": "train.options.clip with train.method grpo",
    "grpo.kl": "train.options.kl with train.method grpo",
    "grpo.iterations": "train.options.iterations with train.method grpo",
    "grpo.weight": (
        'train.method "paint.variants.rewarded:Rewarded" with train.options.reward_weight (recipe '
        "paint-rewarded)"
    ),
    "rollout.adapter_folder": (
        "log.folder on a disk that all servers see: they read adapters from the run folder"
    ),
    "grading.attempts": "a loop in your function, which is otherwise called three times at most",
    "health.window": "nothing: the mean is of the last three steps",
    "health.drift_prompts": "health.drift_path with a file whose first eight problems are used",
    "validation.thinking": _AS_TRAINED.format("model.student_thinking", "--thinking"),
    "validation.temperature": _AS_TRAINED.format("rollout.temperature", "--rollout.temperature"),
    "validation.top_p": _AS_TRAINED.format("rollout.top_p", "--rollout.top-p"),
    "validation.top_k": _AS_TRAINED.format("rollout.top_k", "--rollout.top-k"),
    "log.project": "the environment variable WANDB_PROJECT or TRACKIO_PROJECT",
    "log.keep_rollouts": "nothing: rollouts are always stored",
    "data.turns": "a row for each reply: a chat is a problem for its last one",
}
"""By "section.key"."""

REMOVED_VALUES = {
    ("train.method", "mixed"): '"paint.variants.rewarded:Rewarded" (recipe paint-rewarded)',
    ("rollout.engine", "merged"): '"local", which keeps base and adapter apart',
}
"""By setting and value."""

REMOVED_FLAGS = {
    "ablate": {"folder": "--output-dir"},
    "advise": {
        "folder": "--output-dir",
        "context": "--contexts",
        "both_modes": "a second call with --model.teacher-thinking and another --output-dir",
    },
    "bake": {
        "folder": "--output-dir",
        "model": "--model.path",
        "unrelated": "--health.drift-path",
        "benchmark": "`paint eval` of the bake's run, with --benchmarks",
    },
    "compare": {"folder": "--output-dir", "model": "--model.path", "data": "--data.path"},
    "data openthoughts": dict.fromkeys(
        ("masked", "ngram", "share"), "the fixed rule (docs/how-to/own-data.md#contamination)"
    ),
    "demo": {
        "folder": "--output-dir",
        **dict.fromkeys(("seed", "gpus", "split", "dry_run"), "`paint compare demo-paint`"),
    },
    "eval": {
        "folder": "--output-dir",
        "grader": "--grading.grader",
        "deadline": "--grading.deadline",
    },
    "export": {"to": "the folder after the checkpoint: paint export CHECKPOINT FOLDER"},
    "grade": {
        "out": "--output-dir",
        "grader": "--grading.grader",
        "deadline": "--grading.deadline",
    },
    "plan": {"nodes": "--gpus"},
    "show": {"step": "--steps"},
}
"""By command and flag without its dashes."""


def require_not_removed(section: str, table: Mapping[str, object]) -> None:
    """Raise ConfigError, with the successor, for a removed setting or value of a section."""
    for key, value in table.items():
        name = f"{section}.{key}"
        if name in REMOVED_SETTINGS:
            raise ConfigError(_refusal(name, REMOVED_SETTINGS[name]))
        if isinstance(value, str) and (name, value) in REMOVED_VALUES:
            raise ConfigError(_refusal(f"{name} {value}", REMOVED_VALUES[name, value]))


def without_removed(config: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings of a record by section, without those that were removed since."""
    kept: dict[str, dict[str, Any]] = {}
    for section, table in config.items():
        left = {}
        for key, value in table.items():
            if f"{section}.{key}" not in REMOVED_SETTINGS:
                left[key] = value
        if left:
            kept[section] = left
    return kept


def require_no_removed_flag(command: str, words: Sequence[str]) -> None:
    """Raise ConfigError, with the successor, for a removed flag or value on a command line."""
    flags = REMOVED_FLAGS.get(command, {})
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        flag, is_joined, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name in flags:
            raise ConfigError(_refusal(flag, flags[name]))
        section, _, key = name.partition(".")
        # A switch that is turned off, as in --section.no-key.
        key = key.removeprefix("no_")
        if not is_joined:
            value = "".join(words[index + 1 : index + 2])  # "" for a flag that ends the line
        require_not_removed(section, {key: value})


def _refusal(name: str, successor: str) -> str:
    return f"{name} was removed; use {successor}"
