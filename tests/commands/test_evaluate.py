"""`paint eval`: defaults of a run, what it costs, and what a terminal shows."""

from pathlib import Path

from paint.config.run_folder import read_run
from paint.config.schema import EvaluationConfig
from paint.evaluation.defaults import evaluation_of, protocol_of
from runs import changed, parse


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
    larger = changed("demo-paint", {"data": {"path": "own.jsonl"}, "model": {"path": "owner/name"}})
    assert protocol_of(evaluation_of(larger)) == protocol_of(EvaluationConfig())
    assert evaluation_of(larger).benchmarks == EvaluationConfig().benchmarks


def test_eval_of_run_takes_its_defaults_and_flags_override_them(run: Path) -> None:
    for target in (run, run / "checkpoints/step-000003"):
        parsed = parse(["eval", str(target), "--samples", "5"])
        assert (parsed.parameters["targets"], parsed.config.samples) == ((str(target),), 5)
        assert parsed.config.rollout.max_new_tokens == 60
    assert parse(["eval", "owner/name", str(run)]).config == EvaluationConfig()
    demo = parse(["eval", "demo", str(run)]).config
    assert (demo.benchmarks, demo.rollout.max_new_tokens) == (("demo",), 96)
