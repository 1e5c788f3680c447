"""Shipped recipes: their values match the paper and OPSD's scripts."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.config.other_names import OTHER_NAMES
from paint.config.recipe import (
    differences,
    find_recipe,
    find_recipes,
    from_table,
    read_recipe,
    shipped_folders,
    shipped_recipes,
    to_table,
)
from paint.config.run_folder import FACTS, read_run
from paint.config.schema import Config, ConfigError, TrainConfig
from paint.core.storage import write_json
from paint.lab.recipes import read_recipes
from paint.objective.masking import Placement
from paint.resolve.check import check_config

METHODS = ("paint", "opsd", "grpo", "sft")
MODELS = ("qwen3-1.7b", "qwen3-4b", "qwen3-8b")
SHIPPED = [(method, method) for method in METHODS]
SHIPPED += [("paint", f"paint-{model}") for model in MODELS]
"""Methods and recipes: for a model of the user's own, and PAINT's for the paper's models."""
Sourced = dict[str, tuple[Any, str]]
"""Settings by name, each with its value and the place in the source that gives it."""

LORA: Sourced = {
    "model.lora_rank": (64, "Experimental Details: r = 64"),
    "model.lora_alpha": (128, "Experimental Details: alpha = 128"),
    "model.lora_targets": (
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "Experimental Details: target modules",
    ),
    "model.train_mode": ("lora", "Experimental Details: We train LoRA adapters"),
}
BUDGET: Sourced = {
    "train.learning_rate": (5e-6, "Experimental Details: learning rate 5e-6"),
    "train.batch_size": (32, "Experimental Details: effective batch size 32"),
    "train.steps": (100, "Experimental Details: We train for 100 steps"),
    "train.checkpoint_every": (20, "Experimental Details: evaluate checkpoints every 20 steps"),
}
SCORING: Sourced = {
    "rollout.temperature": (1.1, "Experimental Details: sampling temperature 1.1"),
    "rollout.max_new_tokens": (1024, "Experimental Details: maximum completion length 1024"),
    "teacher.weights": ("frozen", "Experimental Details: fixed privileged teacher"),
    "objective.divergence": ("forward_kl", "Eq. clipped_fkl"),
    "objective.clip": (0.06, "Experimental Details: tau = 0.06"),
    "objective.reduction": ("completion", "Eq. clipped_fkl: 1 / |y|; Training Algorithm: 1 / |B|"),
    "context.source": (["solution"], "Background: context derived from the verified solution"),
}
EVALUATION: Sourced = {"validation.samples": (12, "Experimental Details: 12 samples per prompt")}
PAPER: dict[str, Sourced] = {
    "paint": {
        **(LORA | BUDGET | SCORING | EVALUATION),
        "context.mask_ratio_wrong": (0.30, "Experimental Setup: rho_wrong = 0.30"),
        "context.mask_ratio_correct": (0.40, "Experimental Setup: rho_correct = 0.40"),
        "context.placement": ("suffix", "Experimental Details: suffix masking"),
        "objective.interpolation_weight": (0.03, "Experimental Setup: k_base = 0.03"),
        "objective.top_fraction": (0.03, "Experimental Setup: f_top = 0.03"),
    },
    "opsd": {
        **(LORA | BUDGET | SCORING | EVALUATION),
        "context.mask_ratio_wrong": (0.0, "Background: z = y*"),
        "context.mask_ratio_correct": (0.0, "Background: z = y*"),
        "objective.interpolation_weight": (0.0, "Experimental Details: without interpolation"),
        "objective.top_fraction": (0.0, "Experimental Details: without interpolation"),
    },
    "grpo": {
        **EVALUATION,
        "rollout.samples_per_problem": (8, "Main Results: 8 GRPO rollouts"),
        "rollout.max_new_tokens": (16_000, "Experimental Setup: maximum generation length 16k"),
    },
    "sft": EVALUATION,
}
ADAPTERS = {name: (value, "run_*.sh: --lora_*") for name, (value, _) in LORA.items()}
TRAINER: Sourced = {  # what the scripts do not set is their trainer's default
    "train.max_grad_norm": (1.0, "TrainingArguments, and accelerate.yaml: gradient_clip 1"),
    "train.weight_decay": (0.0, "TrainingArguments"),
    "train.warmup_steps": (0, "TrainingArguments"),
}
SCRIPTS: dict[str, Sourced] = {
    "paint": {
        "model.student_thinking": (False, "opsd_train.py: student_thinking"),
        "model.teacher_thinking": (True, "opsd_train.py: teacher_thinking"),
        "rollout.top_p": (0.95, "run_opsd.sh: --top_p 0.95"),
        "rollout.top_k": (20, "run_opsd.sh: --top_k 20"),
    },
    "grpo": {
        **(ADAPTERS | TRAINER),
        "train.learning_rate": (2e-5, "run_grpo.sh: --learning_rate 2e-5"),
        "train.batch_size": (32, "run_grpo.sh: 8 processes, 1 each, 4 accumulated"),
        "rollout.samples_per_problem": (8, "run_grpo.sh: --num_generations 8"),
        "train.options.kl": (0.0, "run_grpo.sh: --beta 0.0"),
        "train.options.clip": (0.2, "GRPOConfig: epsilon"),
        "train.options.iterations": (1, "GRPOConfig: num_iterations"),
        "objective.reduction": ("completion", "run_grpo.sh: --loss_type grpo"),
        "rollout.temperature": (1.2, "run_grpo.sh: --temperature 1.2"),
        "rollout.max_new_tokens": (16_000, "run_grpo.sh: --max_completion_length 16000"),
        "rollout.top_p": (1.0, "GRPOConfig: top_p"),
        "rollout.top_k": (-1, "GRPOConfig: top_k"),
        "model.gradient_checkpointing": (True, "run_grpo.sh: --gradient_checkpointing"),
    },
    "sft": {
        **(ADAPTERS | TRAINER),
        "train.learning_rate": (2e-5, "run_sft.sh: --learning_rate 2e-5"),
        "train.batch_size": (64, "run_sft.sh: 8 processes, 2 each, 4 accumulated"),
        "train.checkpoint_every": (100, "run_sft.sh: --save_steps 100"),
        "data.max_prompt_tokens": (16_000, "run_sft.sh: --max_length 16000"),
        "objective.reduction": ("token", "SFTConfig: loss_type nll"),
        "model.gradient_checkpointing": (True, "run_sft.sh: --gradient_checkpointing"),
        "model.student_thinking": (False, "sft_train.py: the template closes an empty thought"),
    },
}
SCRIPTS["opsd"] = SCRIPTS["paint"]
EPOCHS = {"grpo": 2, "sft": 4}  # run_grpo.sh, run_sft.sh: --num_train_epochs
PROBLEMS = 30_000  # Experimental Setup: up to 30K problem-solution pairs
# Settings that change speed and memory, never the result.
MEMORY = {"model.gradient_checkpointing", "rollout.batch_size"}
MEMORY |= {"train.micro_batch_size", "train.micro_batch_tokens"}


def shipped(name: str) -> Config:
    return read_recipe(find_recipe(name))


def differing(a: Config, b: Config) -> set[str]:
    """The names of the settings in which two configs differ, memory aside."""
    return {line.partition(":")[0] for line in differences(a, b)} - MEMORY


def test_demo_grpo_long_is_grpo_with_eight_times_steps() -> None:
    """A checkpoint is where the short one ends, which has as many rollouts as PAINT."""
    short, long = (read_recipe(find_recipe(name)) for name in ("demo-grpo", "demo-grpo-long"))
    steps, every = 8 * short.train.steps, TrainConfig().checkpoint_every
    assert short.train.steps % every == 0
    longer = replace(short.train, steps=steps, checkpoint_every=every)
    assert long == replace(short, train=longer)
    paint = read_recipe(find_recipe("demo-paint")).train
    assert (short.train.steps, short.train.batch_size) == (paint.steps, paint.batch_size)


@pytest.mark.parametrize("source", [PAPER, SCRIPTS], ids=["paper", "scripts"])
@pytest.mark.parametrize(("method", "name"), SHIPPED)
def test_recipe_values_match_source(method: str, name: str, source: dict[str, Sourced]) -> None:
    table = to_table(check_config(shipped(name)).config)
    found = {f"{name}.{key}": value for name, keys in table.items() for key, value in keys.items()}
    found |= {f"train.options.{key}": value for key, value in table["train"]["options"].items()}
    wrong = [
        f"{name} is {found[name]}, and the source has {value} ({place})"
        for name, (value, place) in source[method].items()
        if found[name] != value
    ]
    assert not wrong


@pytest.mark.parametrize("method", EPOCHS)
def test_baseline_steps_match_epochs_of_scripts(method: str) -> None:
    config = shipped(method)
    problems_a_step = config.train.batch_size // config.rollout.samples_per_problem
    assert config.train.steps == math.ceil(EPOCHS[method] * PROBLEMS / problems_a_step)
    assert f"= {config.train.steps:,} steps" in find_recipe(method).read_text()


@pytest.mark.parametrize("pair", [("demo-paint", "demo-opsd"), ("paint", "opsd")])
def test_opsd_recipe_is_paint_without_masking_and_interpolation(pair: tuple[str, str]) -> None:
    paint, opsd = (read_recipe(find_recipe(name)) for name in pair)
    # Of memory, too, nothing.
    changed = {line.partition(":")[0] for line in differences(paint, opsd)}
    # On the demo, each method has the best of three learning rates.
    assert changed - ({"train.learning_rate"} if "demo-opsd" in pair else set()) == {
        "context.mask_ratio_wrong",
        "context.mask_ratio_correct",
        "objective.interpolation_weight",
        "objective.top_fraction",
    }


def test_baseline_recipes_differ_from_paint_only_in_method_settings() -> None:
    paint = shipped("paint")
    both = {"method", "steps", "learning_rate", "max_grad_norm", "checkpoint_every"}
    trained = {f"train.{name}" for name in both}
    names = ("temperature", "top_p", "top_k", "max_new_tokens", "samples_per_problem")
    sampled = {f"rollout.{name}" for name in names} | {"model.student_thinking"}
    assert differing(paint, shipped("grpo")) == trained | sampled
    learnt = {"train.batch_size", "data.max_prompt_tokens", "objective.reduction"}
    assert differing(paint, shipped("sft")) == trained | learnt


@pytest.mark.parametrize("model", MODELS)
def test_recipes_of_paint_differ_only_in_model_and_data(model: str) -> None:
    changed = differing(shipped("paint"), shipped(f"paint-{model}"))
    assert changed == {"model.path", "data.path", "objective.clip_mode"}


def test_recipes_of_the_papers_models_have_its_clip_and_others_the_bounded_one() -> None:
    """Ours (docs/fidelity.md, C34): the paper's pushes away from the teacher where views differ."""
    modes = {name: shipped(name).objective.clip_mode for name in shipped_recipes()}
    pointwise = {name for name, mode in modes.items() if mode == "pointwise"}
    assert pointwise == {f"paint-{model}" for model in MODELS}
    # By their papers or scripts; demo-bake by the figures that were measured with it.
    unbounded = {name for name, mode in modes.items() if mode == "none"}
    assert unbounded == {"concise", "demo-bake", "sdpo", "semi-opd"}
    assert {mode for name, mode in modes.items() if name not in pointwise | unbounded} == {"huber"}


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipe_settings_have_provenance_comment(name: str) -> None:
    """On its own line, or on a line of comment directly above."""
    lines = ["", *find_recipe(name).read_text().splitlines()]
    settings = [i for i, line in enumerate(lines) if re.match(r"(?!path\b)\w+ = ", line)]
    assert settings or name.startswith("paint"), "no setting was recognised"
    for i in settings:
        above = lines[i - 1] if lines[i - 1].startswith("#") else ""
        comment = above + lines[i].partition("#")[2]
        assert re.search(r"\b(paper|scripts|ours)\b", comment), (
            f"{name}: {lines[i]!r} does not say whether it is the paper's, the scripts' or ours"
        )


def test_read_recipe_on_base_changes_only_what_the_file_names() -> None:
    base = read_recipe(find_recipe("demo-paint"))
    for name, changes in (
        ("paint", []),
        (
            "paint-anchored",
            [
                'train.method: "distillation" -> "paintvariants.anchored:Anchored"',
                "train.options.base_weight: None -> 0.2",
            ],
        ),
    ):
        assert differences(base, read_recipe(find_recipe(name), base)) == changes


# Paper, section 'Ablation Studies': tables mask_ratio_ablation, mask_strategy_ablation,
# interpolation_ablation. Rows: rho_correct, rho_wrong, placement, k_base, f_top; the last is the
# one that the others are compared with.
ABLATIONS: dict[str, dict[str, tuple[float, float, Placement, float, float]]] = {
    "ablations/interpolation": {
        "0.01-1.00": (0.4, 0.3, "suffix", 0.01, 1),
        "0.03-0.01": (0.4, 0.3, "suffix", 0.03, 0.01),
        "0.03-0.03": (0.4, 0.3, "suffix", 0.03, 0.03),
        "0.03-0.05": (0.4, 0.3, "suffix", 0.03, 0.05),
        "0.03-1.00": (0.4, 0.3, "suffix", 0.03, 1),
        "0.05-1.00": (0.4, 0.3, "suffix", 0.05, 1),
        "no-interpolation": (0.4, 0.3, "suffix", 0, 0),
    },
    "ablations/mask-placement": {
        "middle": (0.4, 0.3, "middle", 0, 0),
        "prefix": (0.4, 0.3, "prefix", 0, 0),
        "random": (0.4, 0.3, "random", 0, 0),
        "suffix": (0.4, 0.3, "suffix", 0, 0),
    },
    "ablations/mask-ratio": {
        "0.25-0.25": (0.25, 0.25, "suffix", 0, 0),
        "0.40-0.30": (0.4, 0.3, "suffix", 0, 0),
        "0.50-0.25": (0.5, 0.25, "suffix", 0, 0),
        "0.50-0.30": (0.5, 0.3, "suffix", 0, 0),
        "0.50-0.50": (0.5, 0.5, "suffix", 0, 0),
        "0.75-0.75": (0.75, 0.75, "suffix", 0, 0),
        "nothing-masked": (0, 0, "suffix", 0, 0),
    },
}


@pytest.mark.parametrize("base", ["demo-paint", "opsd", "sdpo"])
def test_ablation_folders_are_the_papers_tables_whatever_the_base(base: str) -> None:
    assert shipped_folders() == list(ABLATIONS)
    start = shipped(base)
    for folder, rows in ABLATIONS.items():
        found = {path.stem: read_recipe(path, start) for path in find_recipes(folder)}
        assert list(found) == list(rows)
        for name, (correct, wrong, placement, mix, share) in rows.items():
            settings = {
                "context": {
                    "source": "solution",
                    "placement": placement,
                    "mask_ratio_correct": correct,
                    "mask_ratio_wrong": wrong,
                },
                "objective": {"interpolation_weight": mix, "top_fraction": share},
            }
            assert found[name] == from_table(settings, base=start)


def test_find_recipes_folder_is_its_toml_files_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, empty = tmp_path / "mine", tmp_path / "empty"
    (own / "more.toml").mkdir(parents=True)
    empty.mkdir()
    for name in ("a-b.toml", "a.toml", "B.toml", "._a.toml", "README.md"):
        (own / name).touch()
    names = [Path("mine") / name for name in ("B.toml", "a.toml", "a-b.toml")]
    assert find_recipes("mine") == find_recipes("mine/") == find_recipes("./mine") == names
    assert find_recipes(str(own)) == [tmp_path / name for name in names]
    assert find_recipes("mine/a.toml") == [Path("mine/a.toml")]
    assert find_recipes("demo-paint") == [find_recipe("demo-paint")]
    one = "ablations/mask-placement/suffix"
    assert find_recipes(one) == [find_recipe(one)] == find_recipes("ablations/mask-placement/")[-1:]
    # A shipped name stays one, whatever is in the working directory.
    (tmp_path / "ablations/mask-ratio").mkdir(parents=True)
    (tmp_path / "demo-paint").mkdir()
    assert len(find_recipes("ablations/mask-ratio")) == 7
    assert find_recipes("demo-paint")[0].is_file()
    with pytest.raises(ConfigError, match=r"^\./ablations/mask-ratio is a folder without recipes"):
        find_recipes("./ablations/mask-ratio")


def test_read_recipes_share_paths_rollouts_and_controls() -> None:
    names = ["demo-sft", "demo-grpo", "demo-opsd", "demo-paint"]

    def change(config: Config) -> Config:
        return from_table({"data": {"path": "rows.jsonl"}}, base=config)

    rows = read_recipes(names, stored="runs/first", controls=["wrong_answer"], change=change)
    read = {name: run.config for name, run in rows}
    assert list(read) == [*names[:-1], "demo-paint-wrong-answer", "demo-paint"]
    assert {config.data.path for config in read.values()} == {"rows.jsonl"}
    stored = {name for name, config in read.items() if config.rollout.stored == "runs/first"}
    assert stored == {"demo-opsd", "demo-paint-wrong-answer", "demo-paint"}
    control = differences(read["demo-paint"], read["demo-paint-wrong-answer"])
    assert control == ["context.source: ['solution'] -> ['wrong_answer']"]


def test_other_names_stand_for_settings_and_are_none() -> None:
    settings = {f"{section}.{key}" for section, keys in to_table(Config()).items() for key in keys}
    assert set(OTHER_NAMES.values()) <= settings
    assert not set(OTHER_NAMES) & {name.partition(".")[2] for name in settings}


def test_read_run_of_a_removed_setting_says_what_to_do(tmp_path: Path) -> None:
    facts: dict[str, Any] = {name: {} for name in FACTS}
    record = facts | {"config": {"grading": {"prices": [1, 2]}}}
    write_json(tmp_path / "run.json", record)
    with pytest.raises(ConfigError, match=r"key grading\.prices.* another version .* folder"):
        read_run(tmp_path)
