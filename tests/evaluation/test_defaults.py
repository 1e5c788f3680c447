"""A run is evaluated as it was trained, and by the paper's protocol on published benchmarks."""

from pathlib import Path

import pytest

from paint.config.run_folder import read_run
from paint.config.schema import Config, ConfigError, EvaluationConfig, GradingConfig
from paint.data.benchmarks import Benchmark
from paint.evaluation.defaults import (
    defaults_of,
    evaluation_of,
    grading_of,
    protocol_as_trained,
    protocol_differences,
    protocol_of,
    training_tokens,
    validation_protocol,
)
from runs import changed, parse, train, write_problems

# Section 'Experimental Details'.
PAPER = {"thinking": True, "temperature": 1.0, "top_p": 0.95, "top_k": -1, "max_new_tokens": 38_912}
TRAINED = PAPER | {"thinking": False, "temperature": 1.1, "top_k": 20, "max_new_tokens": 1024}
OWN = Config().changed("data", path="own.jsonl").changed("model", path="owner/name")


def test_validation_samples_as_in_training_but_for_published_sets() -> None:
    mine = OWN.changed("validation", path="mine.jsonl")
    assert validation_protocol(mine) == protocol_as_trained(mine) == TRAINED
    assert training_tokens(mine) == 8192 + 1024
    for name in ("aime_2024", "math_500=copy.jsonl"):
        published = OWN.changed("validation", path=name)
        assert validation_protocol(published) == PAPER
        assert training_tokens(published) == 8192 + 38_912
    short = mine.changed("validation", max_new_tokens=64)
    assert validation_protocol(short) == TRAINED | {"max_new_tokens": 64}


def test_evaluation_of_run_on_own_rows_is_as_trained_and_of_published_sets_the_papers() -> None:
    for own in ("mine.jsonl", "gsm8k"):
        assert protocol_of(evaluation_of(OWN, [own])) == TRAINED
    assert protocol_of(evaluation_of(OWN, ["mine.jsonl", "aime_2025"])) == PAPER
    changes = protocol_differences(OWN, PAPER)
    assert changes == (
        "thinking: False -> True, temperature: 1.1 -> 1.0, top_k: 20 -> -1, "
        "max_new_tokens: 1024 -> 38912"
    )
    assert protocol_differences(OWN, TRAINED) == ""


@pytest.mark.parametrize("benchmark", ["demo", "demo-new-rules"])
def test_evaluation_on_the_demo_is_the_papers_for_its_model_and_as_trained_for_others(
    benchmark: str,
) -> None:
    demo = PAPER | {"thinking": False, "max_new_tokens": 96}
    trained = Config().changed("model", path="demo")
    assert protocol_of(evaluation_of(trained, [benchmark])) == demo
    assert evaluation_of(OWN.changed("data", path="demo")).benchmarks == ("demo",)
    assert protocol_of(defaults_of("demo", [benchmark])) == demo
    other = Config().changed("model", path="owner/name")
    assert protocol_of(evaluation_of(other, [benchmark])) == TRAINED
    assert protocol_of(defaults_of("owner/name", [benchmark])) == PAPER


def test_evaluation_of_own_task_is_never_on_mathematics() -> None:
    support = OWN.changed("prompts", student="{{ problem }}")
    judged = OWN.changed("grading", grader=("mine:grade",))
    for config in (support, judged, judged.changed("model", path="demo")):
        assert evaluation_of(config).benchmarks == ("own.jsonl",)
        assert protocol_of(evaluation_of(config)) == TRAINED
        validated = config.changed("validation", path="held-out.jsonl")
        assert evaluation_of(validated).benchmarks == ("held-out.jsonl",)


def test_evaluation_of_run_is_its_validation_or_the_demos_problems(run: Path) -> None:
    validated = evaluation_of(read_run(run))
    assert validated.benchmarks == (read_run(run).validation.path,)
    assert (validated.samples, validated.limit, validated.thinking) == (3, 4, False)
    assert (validated.rollout.temperature, validated.rollout.max_new_tokens) == (1.1, 60)
    demo = evaluation_of(changed("demo-paint", {"grading": {"grader": "exact"}}))
    assert (demo.benchmarks, demo.thinking, demo.grading.grader) == (("demo",), False, ("exact",))
    assert (demo.rollout.temperature, demo.rollout.max_new_tokens) == (1.0, 96)
    own = changed("demo-paint", {"data": {"path": "own.jsonl"}})
    assert evaluation_of(own).benchmarks == ("demo",)
    assert evaluation_of(OWN).benchmarks == EvaluationConfig().benchmarks


def test_eval_of_run_takes_its_defaults_and_flags_override_them(run: Path) -> None:
    for target in (run, run / "checkpoints/step-000003"):
        parsed = parse(["eval", str(target), "--samples", "5"])
        assert (parsed.parameters["targets"], parsed.config.samples) == ((str(target),), 5)
        assert parsed.config.rollout.max_new_tokens == 60
    assert parse(["eval", "owner/name", str(run)]).config == EvaluationConfig()
    demo = parse(["eval", "demo", str(run)]).config
    assert (demo.benchmarks, demo.rollout.max_new_tokens) == (("demo",), 96)


def test_flags_of_eval_have_the_defaults_of_the_benchmarks_that_are_named(run: Path) -> None:
    lengths = {}
    for words in (["mine.jsonl"], ["mine.jsonl", "aime_2024"], ["aime_2024"]):
        for flags in (["--benchmarks", *words], [f"--benchmarks={words[-1]}"]):
            line = parse(["eval", str(run), *flags, "--samples", "2"])
            lengths[words[-1]] = line.config.rollout.max_new_tokens
    assert lengths == {"mine.jsonl": 60, "aime_2024": 38_912}
    model = defaults_of("demo", ["mine.jsonl"])
    assert (model.benchmarks, protocol_of(model)) == (("mine.jsonl",), PAPER)


def test_validation_without_room_names_its_setting_and_what_fits(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "mine.jsonl", [{"problem": "1 + 1?", "answer": "2"}])
    validation = {"path": path, "max_new_tokens": 2000}
    with pytest.raises(ConfigError, match=r"validation\.max_new_tokens 2000 do not fit .* at most"):
        train(changed("demo-paint", {"validation": validation}), tmp_path / "run")
    long = changed("demo-paint", {"rollout": {"max_new_tokens": 1024}})
    with pytest.raises(ConfigError, match=r"leaves no room for a prompt .* try 512"):
        train(long, tmp_path / "run")


@pytest.mark.parametrize(
    ("benchmark", "grader", "expected"),
    [
        ("code", "math", "code"),
        ("code", "exact", "code"),
        ("code", "code", "code"),
        ("code", "mine:grade", "mine:grade"),
        ("math", "code", "math"),
        ("math", "exact", "exact"),
        ("math", "mine:grade", "mine:grade"),
        ("", "code", "code"),
    ],
)
def test_grading_of_published_set_is_its_own_where_the_run_cannot_grade_it(
    benchmark: str, grader: str, expected: str
) -> None:
    grading = GradingConfig(grader=(grader,))
    found = grading_of(Benchmark("set", [], grader=benchmark), grading)
    assert found.grader == (expected,)
