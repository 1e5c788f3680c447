"""Settings: the defaults are the paper's, every value is checked, and errors show the way."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from paint.config import (
    Config,
    ConfigError,
    Context,
    Data,
    Grpo,
    Log,
    Model,
    Objective,
    Rollout,
    Teacher,
    Train,
)
from paint.recipe import (
    differences,
    find_recipe,
    from_table,
    read_recipe,
    require_paths,
    require_trainable,
    shipped_recipes,
    to_table,
)


def recipe(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    """What read_recipe says about a recipe, without the folder it stands in."""
    with pytest.raises(ConfigError) as caught:
        read_recipe(recipe(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


def test_importing_config_and_recipe_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import paint.config, paint.recipe\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'paint'}\n"
        "print(sorted(new - sys.stdlib_module_names), 'tomllib' in new)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] True"


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_reads_and_names_its_model_and_data(name: str) -> None:
    require_paths(read_recipe(find_recipe(name)))


def test_a_recipe_is_found_by_its_name_or_by_its_path() -> None:
    name = shipped_recipes()[0]
    assert find_recipe(name).name == f"{name}.toml"
    assert find_recipe("mine.toml") == Path("mine.toml")
    with pytest.raises(ConfigError, match=rf"unknown recipe {name}s; did you mean {name}\?"):
        find_recipe(f"{name}s")


def test_a_recipe_overrides_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    text = """
        [model]
        lora_targets = ["q_proj", "v_proj"]
        [objective]
        mix = 1            # a whole number where a real one is expected
        temperature = 2
        [log]
        trackers = ["wandb"]
    """
    expected = Config(
        model=Model(lora_targets=("q_proj", "v_proj")),
        objective=Objective(mix=1.0, temperature=2.0),
        log=Log(trackers=("wandb",)),
    )
    config = read_recipe(recipe(tmp_path, text))
    assert config == expected
    assert type(config.objective.mix) is float
    assert type(config.objective.temperature) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[objective]\nmixx = 0.1",
            "x.toml: unknown key objective.mixx; did you mean objective.mix?",
        ),
        ("[context]\nmix = 0.1", "x.toml: unknown key context.mix; did you mean objective.mix?"),
        (
            "[log]\nbatch_size = 3",
            "x.toml: unknown key log.batch_size; did you mean rollout.batch_size or "
            "train.batch_size?",
        ),
        ("steps = 3", "x.toml: unknown key steps; did you mean train.steps?"),
        ("[objectiv]\nmix = 0.1", "x.toml: unknown section objectiv; did you mean objective?"),
        (
            "[context]\nzzz = 1",
            "x.toml: unknown key context.zzz; there are wrong, correct, placement, shown, opening",
        ),
        (
            "[zzz]",
            "x.toml: unknown section zzz; "
            "there are model, data, rollout, context, teacher, objective, grpo, train, grading, "
            "validation, log",
        ),
        ("train = 3", "x.toml: train must be a section, got 3; write [train]"),
        ("[train]\nsteps = 'ten'", 'x.toml: train.steps must be an integer, got "ten"'),
        ("[train]\nsteps = true", "x.toml: train.steps must be an integer, got True"),
        ("[train]\nsteps = 10.0", "x.toml: train.steps must be an integer, got 10.0"),
        ("[objective]\nmix = false", "x.toml: objective.mix must be a number, got False"),
        (
            "[objective]\ntemperature = 'x'",
            'x.toml: objective.temperature must be a number or None, got "x"',
        ),
        (
            "[model]\nstudent_thinking = 1",
            "x.toml: model.student_thinking must be true or false, got 1",
        ),
        ("[data]\npath = 3", "x.toml: data.path must be text, got 3"),
        (
            "[model]\nlora_targets = 'q'",
            'x.toml: model.lora_targets must be a list of text, got "q"',
        ),
        (
            "[objective]\nkind = 'kl'",
            "x.toml: objective.kind must be one of forward_kl, reverse_kl, jsd, sampled_token, or "
            'module:name, got "kl"',
        ),
        (
            "[train]\nmethod = 'opsd'",
            'x.toml: train.method must be one of distillation, grpo, sft, got "opsd"',
        ),
        (
            "[model]\ntuning = 'qlora'",
            'x.toml: model.tuning must be one of lora, full, got "qlora"',
        ),
        (
            "[teacher]\nweights = 'live '",
            'x.toml: teacher.weights must be one of frozen, ema, live, got "live "',
        ),
        ("[teacher]\ndecay = '0.9'", 'x.toml: teacher.decay must be a number, got "0.9"'),
        (
            "[context]\nshown = 'masked'",
            "x.toml: context.shown must be one of own, none, other, answer, wrong_answer, got "
            '"masked"',
        ),
        (
            "[context]\nreason_first = true",
            "x.toml: unknown key context.reason_first; did you mean teacher.reason_first?",
        ),
        (
            "[grpo]\ngroup_sise = 4",
            "x.toml: unknown key grpo.group_sise; did you mean grpo.group_size?",
        ),
        (
            "[grpo]\ngroup_size = 1",
            "x.toml: grpo.group_size must be at least 2, got 1 (completions a problem; paper: 8)",
        ),
        (
            "[log]\ntrackers = ['mlflow']",
            "x.toml: log.trackers must be a list of values, each one of tensorboard, wandb, "
            "trackio, got ['mlflow']",
        ),
        (
            "[objective]\nmix = 1.3",
            "x.toml: objective.mix must be in [0, 1], got 1.3 (interpolation weight k_base; paper: "
            "0.03)",
        ),
    ],
)
def test_a_recipe_that_is_wrong_says_where_and_what_was_meant(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(tmp_path, text) == message


def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        read_recipe(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read_recipe(tmp_path)
    with pytest.raises(ConfigError, match="File name too long"):
        read_recipe(tmp_path / ("x" * 300))
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml.*UTF-8.*byte 5"):
        read_recipe(tmp_path / "latin.toml")
    assert "x.toml is not valid TOML" in refusal(tmp_path, "[train]\nsteps = 10\nsteps ==\n")
    assert "at line 3, column 8" in refusal(tmp_path, "[train]\nsteps = 10\nseed = =\n")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert read_recipe(recipe(tmp_path, "\ufeff[train]\nsteps = 7")).train.steps == 7


BAD: list[tuple[Any, str, list[Any]]] = [
    (Model, "lora_rank", [0, -1]),
    (Model, "lora_alpha", [0]),
    (Model, "lora_targets", [(), ("",), ("q_proj", "q_proj")]),
    (Model, "attention", ["", " "]),
    (Data, "problem_field", [""]),
    (Data, "id_field", [""]),
    (Data, "max_prompt_tokens", [0]),
    (Data, "limit", [0, -3]),
    (Rollout, "temperature", [0.0, -1.0, float("inf"), float("nan")]),
    (Rollout, "top_p", [0.0, 1.01, float("nan")]),
    (Rollout, "top_k", [0, -2]),
    (Rollout, "max_new_tokens", [0]),
    (Rollout, "batch_size", [0]),
    (
        Rollout,
        "urls",
        [("node1:8000",), ("http://node1:8000",)],
    ),  # no scheme; servers with the local engine
    (Rollout, "max_engine_gap", [0.0, -1.0, float("nan")]),
    (Rollout, "server", ["", " "]),
    (Rollout, "patience", [0.0]),
    (Rollout, "timeout", [-1.0]),
    (Context, "wrong", [-0.1, 1.0, float("nan")]),
    (Context, "correct", [-0.1, 1.0, 0.2, float("nan")]),
    (Teacher, "decay", [-0.1, 1.0, float("nan")]),
    (Teacher, "rationale_tokens", [0, -1]),
    (Grpo, "group_size", [1, 0, -8]),
    (Grpo, "clip", [0.0, 1.0, float("nan")]),
    (Grpo, "kl", [-0.01, float("inf"), float("nan")]),
    (Grpo, "iterations", [0]),
    (Objective, "clip", [0.0, -0.06, float("nan")]),
    (Objective, "mix", [-0.01, 1.01, float("nan")]),
    (Objective, "top_fraction", [-0.01, 1.01, float("nan")]),
    (Objective, "temperature", [0.0, float("inf")]),
    (Train, "steps", [0]),
    (Train, "batch_size", [0]),
    (Train, "micro_batch_size", [0]),
    (Train, "learning_rate", [0.0, float("nan")]),
    (Train, "warmup_steps", [-1, 101]),
    (Train, "weight_decay", [-0.1, float("nan")]),
    (Train, "max_grad_norm", [0.0, float("inf")]),
    (Train, "seed", [-1]),
    (Train, "checkpoint_every", [0]),
    (Log, "folder", [""]),
    (Log, "name", ["", ".", "..", "a/b", "a\\b"]),
    (Log, "trackers", [("wandb", "wandb")]),
    (Log, "project", [""]),
]


@pytest.mark.parametrize(
    ("section", "key", "value"), [(s, k, v) for s, k, values in BAD for v in values]
)
def test_a_value_out_of_range_is_refused_by_name(section: Any, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{section.__name__.lower()}\.{key} must be .*, got "):
        section(**{key: value})


@pytest.mark.parametrize(
    "section",
    [
        Context(wrong=0.0, correct=0.0),
        Teacher(decay=0.0, rationale_tokens=1),
        Grpo(group_size=2, kl=0.0, iterations=1),
        Objective(kind="sampled_token", clip_mode="none"),
        Objective(mix=0.0, top_fraction=0.0),
        Objective(mix=1.0, top_fraction=1.0),
        Objective(clip=float("inf")),
        Objective(clip=0.0, clip_mode="none"),
        Rollout(top_p=1.0, top_k=-1),
        Rollout(
            max_engine_gap=float("inf"), engine="vllm", urls=("http://node1:8000", "https://node2")
        ),
        Train(warmup_steps=100, batch_size=7, micro_batch_size=4),
        Train(batch_size=2, micro_batch_size=4),
        Data(limit=1),
    ],
)
def test_the_ends_of_each_range_and_uneven_micro_batches_are_allowed(section: Any) -> None:
    assert dataclasses.replace(section) == section


CLASHES = [
    (
        "[train]\nmethod = 'grpo'\nbatch_size = 12",
        "train.batch_size must be a multiple of grpo.group_size = 8, got 12 (completions a step)",
    ),
    (
        "[objective]\nkind = 'sampled_token'",
        'objective.clip_mode must be "none" with objective.kind "sampled_token", got "pointwise" '
        "(a clip would take the gradient from the tokens that the teacher disfavours most)",
    ),
    (
        "[train]\nmethod = 'grpo'\n[grpo]\nkl = 0.04\n[teacher]\nweights = 'ema'",
        'teacher.weights must be "frozen" with train.method "grpo", got "ema" (it belongs to '
        "distillation)",
    ),
    (
        "[train]\nmethod = 'sft'\n[context]\nshown = 'other'",
        'context.shown must be "own" with train.method "sft", got "other" (it belongs to '
        "distillation)",
    ),
    (
        "[train]\nmethod = 'grpo'\n[objective]\ntemperature = 1.0",
        "objective.temperature must be None or rollout.temperature = 1.1 where sampled tokens "
        "carry the gradient, "
        "got 1 (they are drawn at that one)",
    ),
    (
        "[objective]\nkind = 'sampled_token'\nclip_mode = 'none'",
        'rollout.top_p must be 1 and rollout.top_k -1 with objective.kind "sampled_token", got '
        "0.95 and 20 "
        "(its gradient is that of the reverse KL only for tokens drawn from the whole "
        "distribution)",
    ),
    (
        "[teacher]\nreason_first = true\n[context]\nshown = 'none'",
        'context.shown must not be "none" with teacher.reason_first: there is nothing to reason '
        "about",
    ),
]


@pytest.mark.parametrize(("text", "message"), CLASHES)
def test_settings_that_exclude_each_other_are_refused_with_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(tmp_path, text) == f"x.toml: {message}"


@pytest.mark.parametrize(
    "text",
    [
        "[train]\nmethod = 'grpo'\nbatch_size = 12\n[grpo]\ngroup_size = 4",
        "[train]\nbatch_size = 12",  # groups are of no account to the other methods
        "[train]\nmethod = 'sft'\nbatch_size = 12",
        "[model]\ntuning = 'full'\ndtype = 'float32'",
        "[rollout]\nengine = 'vllm'",
        "[objective]\nkind = 'sampled_token'\nclip_mode = 'none'\n[rollout]\n"
        "top_p = 1.0\ntop_k = -1",
        "[teacher]\nreason_first = true",
        "[context]\nshown = 'none'",
    ],
)
def test_each_of_them_goes_with_what_it_needs(tmp_path: Path, text: str) -> None:
    assert read_recipe(recipe(tmp_path, text)) != Config()


def test_the_two_paths_without_a_default_are_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"^model\.path\b.*--model\.path"):
        require_paths(Config())
    with pytest.raises(ConfigError, match=r"^data\.path\b.*\[data\]"):
        require_paths(Config(model=Model(path="lab")))
    require_paths(Config(model=Model(path="lab"), data=Data(path="lab")))


PATHS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.fixed_dictionaries({"path": PATHS, "lora_rank": st.integers(1, 512)}),
        "data": st.fixed_dictionaries({"limit": st.none() | st.integers(1, 10**6)}),
        "objective": st.fixed_dictionaries(
            {
                "mix": st.floats(0, 1),
                "temperature": st.none() | st.floats(1e-3, 10) | st.integers(1, 9),
            }
        ),
        "teacher": st.fixed_dictionaries(
            {
                "weights": st.sampled_from(["frozen", "ema", "live"]),
                "decay": st.floats(0, 0.999),
                "reason_first": st.booleans(),
            }
        ),
        "grpo": st.fixed_dictionaries(
            {"group_size": st.integers(2, 64), "kl": st.floats(0, 10) | st.integers(0, 9)}
        ),
        "train": st.fixed_dictionaries({"seed": st.integers(0, 10**6)}),
        "log": st.fixed_dictionaries(
            {"trackers": st.permutations(["tensorboard", "wandb", "trackio"])}
        ),
    },
)


@given(TABLES)
def test_a_config_survives_json_and_keeps_every_given_value(
    given_table: dict[str, dict[str, Any]],
) -> None:
    config = from_table(given_table)
    table = to_table(config)
    stored = json.loads(json.dumps(table))
    assert stored == table
    assert from_table(stored) == config
    assert differences(config, from_table(stored)) == []
    assert all(
        table[name][key] == value
        for name, keys in given_table.items()
        for key, value in keys.items()
    )
    changed = {line.partition(":")[0] for line in differences(Config(), config)}
    defaults = to_table(Config())
    assert changed == {
        f"{name}.{key}"
        for name, keys in given_table.items()
        for key, value in keys.items()
        if value != defaults[name][key]
    }


def test_a_stored_config_that_is_damaged_names_its_source() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^runs/a/run\.json: train\.batch_size\b.*grpo\.group_size",
    ):
        from_table(
            {"train": {"method": "grpo"}, "grpo": {"group_size": 5}}, source="runs/a/run.json"
        )
    with pytest.raises(ConfigError, match=r"^runs/a/run\.json: .*train\.stepz"):
        from_table({"train": {"stepz": 1}}, source="runs/a/run.json")


def test_differences_are_listed_by_name_in_the_order_of_the_tree() -> None:
    a = Config()
    b = Config(
        model=Model(path="lab"),
        objective=Objective(temperature=1.0),
        train=Train(seed=1),
        log=Log(trackers=("wandb",)),
    )
    assert differences(a, b) == [
        'model.path: "" -> "lab"',
        "objective.temperature: None -> 1.0",
        "train.seed: 0 -> 1",
        "log.trackers: [] -> ['wandb']",
    ]


def parse(*flags: str, default: Config | None = None) -> Config:
    return tyro.cli(Config, default=default or Config(), args=flags)


def test_flags_override_a_recipe_in_both_spellings(tmp_path: Path) -> None:
    base = read_recipe(
        recipe(tmp_path, "[objective]\nmix = 0.5\ntemperature = 2.0\n[train]\nsteps = 7")
    )
    numbers = "--train.batch-size 8 --train.micro_batch_size 2 --objective.temperature None"
    others = "--model.lora-targets a b --model.student-thinking --log.trackers wandb"
    config = parse(*numbers.split(), *others.split(), default=base)
    assert config == Config(
        model=Model(lora_targets=("a", "b"), student_thinking=True),
        objective=Objective(mix=0.5, temperature=None),
        train=Train(steps=7, batch_size=8, micro_batch_size=2),
        log=Log(trackers=("wandb",)),
    )


def said(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[object, str]:
    """Exit status and everything printed, as one line without the frame."""
    with pytest.raises(SystemExit) as caught:
        parse(*flags)
    printed = capsys.readouterr()
    words = (printed.out + printed.err).translate(dict.fromkeys(map(ord, "│╭╮╰╯─"), " "))
    return caught.value.code, " ".join(words.split())


def test_a_flag_out_of_range_or_unknown_ends_with_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, words = said(capsys, "--objective.mix", "1.3")
    assert status == 2
    assert (
        "objective.mix must be in [0, 1], got 1.3 (interpolation weight k_base; paper: 0.03)"
        in words
    )
    status, words = said(capsys, "--objective.mixx", "0.1")
    assert status == 2
    assert "Perhaps you meant: --objective.mix FLOAT" in words


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    status, words = said(capsys, "--help")
    assert status == 0
    package = Path(__file__).parents[1] / "src/paint"
    source = (package / "config.py").read_text() + (package / "options.py").read_text()
    settings = [(section, key) for section, keys in to_table(Config()).items() for key in keys]
    assert len(settings) > 40
    for section, key in settings:
        body = source[source.index(f"class {section.title()}:") :]
        start = body.index('"""', body.index(f"    {key}: ")) + 3
        explanation = " ".join(body[start : body.index('"""', start)].split())
        assert explanation, f"{section}.{key} has no docstring"
        assert f"--{section}.{key.replace('_', '-')}" in words
        assert explanation in words


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"dtype": "bfloat16"},
            r'^model\.dtype must be "float32" with model\.tuning "full", got "bfloat16" \(',
        ),
        (
            {"dtype": "float32"},
            r'^rollout\.engine must be "local" with model\.tuning "full", got "vllm"',
        ),
    ],
)
def test_full_fine_tuning_is_refused_where_it_would_lose_its_steps_or_its_engine(
    sections: dict[str, Any], message: str
) -> None:
    model = {"path": "lab", "tuning": "full", **sections}
    config = from_table({"model": model, "data": {"path": "lab"}, "rollout": {"engine": "vllm"}})
    with pytest.raises(ConfigError, match=message):
        require_trainable(config)
    require_trainable(from_table({"model": model | {"dtype": "float32"}, "data": {"path": "lab"}}))
