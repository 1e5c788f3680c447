"""The stages of an evaluation, stopped and repeated: the same figures come out."""

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paint
from paint.cli import main
from paint.config.run_folder import latest_checkpoint, read_run
from paint.config.schema import (
    Config,
    ConfigError,
    EvaluationConfig,
    GradingConfig,
    ModelConfig,
    RolloutConfig,
)
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.data.problems import Problem
from paint.evaluation.evaluate import name_of_run, resolve_targets
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    collect_samples,
    deployment_prompts,
    fit_to_context,
    generate,
    open_task,
    require_context_length,
)
from paint.evaluation.grade import (
    cast_votes,
    grade,
    grade_of,
    grader_identity,
    is_repetitive,
    stored_in,
    summarise,
)
from paint.evaluation.metrics import GradedSamples, compute_metrics
from paint.evaluation.store import Store, StoreError, reopen_store
from paint.grading import functions
from paint.grading.contract import Grade
from paint.grading.graders import open_grader
from paint.grading.mathematics import MathGrader
from paint.inference.engine import Completion, OnCompletion, Sampling
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy, load_policy
from paint.models.weights import save_trained
from reports import compared_in, evaluated, policies_of, report_in
from runs import rows_of
from tiny_models import save_tiny, tiny_config

PROTOCOL = SamplingProtocol(3, thinking=False, sampling=Sampling(1.0, 1.0, -1, 80))
QUIET = Display(enabled=False)
FLAGS = ["--benchmarks", "demo", "--no-thinking", "--rollout.max-new-tokens", "96"]
FEW = [*FLAGS, "--limit", "4", "--samples", "2"]


@pytest.fixture(scope="module")
def grader() -> Any:
    with MathGrader(workers=2) as grader:
        yield grader


def train_demo(run: Path, *flags: str) -> None:
    """Two steps of the demo's recipe, with a checkpoint after each."""
    options = ["--train.steps", "2", "--train.batch-size", "4", "--train.checkpoint-every", "1"]
    place = ["--log.folder", str(run.parent), "--log.name", run.name]
    assert main(["train", "demo-paint", *options, *place, *flags]) == 0


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained adapters."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    train_demo(run, "--train.learning-rate", "0.01")
    return run


def task_of(
    policy: Policy, folder: Path, problems: list[Problem], protocol: SamplingProtocol = PROTOCOL
) -> EvalTask:
    """The base model's samples of these problems."""
    prompts = deployment_prompts(policy, problems, thinking=protocol.thinking)
    return EvalTask(folder, problems, prompts, protocol)


def opened(policy: Policy, task: EvalTask) -> AbstractContextManager[Store]:
    config = Config(ModelConfig(path="demo"), rollout=RolloutConfig(engine="local"))
    return open_task(policy, config, task)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The samples of a store without regard to the order in which they came."""
    rows = rows_of(folder / "completions.jsonl")
    return sorted(rows, key=lambda row: (row["problem_id"], row["sample"]))


def texts_of(folder: Path, names: list[str]) -> list[list[str]]:
    """The texts of each policy below a folder."""
    return [[row["text"] for row in lines_of(folder / name / "demo")] for name in names]


def asked_of(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    return [json.loads((folder / name / "demo/settings.json").read_text()) for name in names]


def test_generate_stores_k_samples_a_problem_in_order(
    policy: Policy, problems: list[Problem], tmp_path: Path, grader: MathGrader
) -> None:
    engine = LocalEngine(policy, batch_size=10)
    five = task_of(policy, tmp_path / "five", problems[:5])
    with opened(policy, five) as store:
        generate(policy, engine, five, store, QUIET)
        graded = grade(store, grader, GradingConfig(), QUIET)
        texts = {a.key: a.text for a in store.samples()}
    assert graded.correct.shape == (5, 3)
    assert graded.correct.any()
    for problem, row in zip(problems[:5], graded.correct, strict=True):
        mine = [texts[problem.id, k] for k in range(3)]
        assert row.tolist() == [rf"\boxed{{{problem.answer}}}" in text for text in mine]
        assert all(text.startswith(("$", "A ")) and text.endswith("}$.") for text in mine)
    # They are k samples, not one k times over.
    assert any(len({texts[p.id, k] for k in range(3)}) > 1 for p in problems[:5])
    # A sample depends on its problem and its number alone.
    one = task_of(policy, tmp_path / "one", problems[3:4])
    with opened(policy, one) as store:
        generate(policy, engine, one, store, QUIET)
        found = {a.key: a.text for a in store.samples()}
        assert found == {key: text for key, text in texts.items() if key[0] == problems[3].id}
    # The verdicts are kept with their reasons.
    kept = rows_of(tmp_path / "five" / "grades.jsonl")
    assert [row["correct"] for row in kept] == graded.correct.flatten().tolist()
    assert {row["reason"] for row in kept} <= {"right", "wrong"}


def test_grade_counts_kinds_of_samples(policy: Policy, tmp_path: Path, grader: MathGrader) -> None:
    problems = [
        Problem("What is 3+4?", "", "7", "sum"),
        Problem("What is 1/2?", "", "\\frac{1}{2}", "half"),
    ]
    texts = {
        ("sum", 0): "<think>so</think> \\boxed{7}",
        ("sum", 1): "<think>it is \\boxed{7}, but",
        ("sum", 2): "<think>it is \\boxed{7}, and on and on " + "and on " * 200 + "...",
        ("half", 0): "\\boxed{0.5}",
        ("half", 1): "\\boxed{2}...",
        ("half", 2): "a half",
    }
    with reopen_store(evaluated(policy, tmp_path, problems, texts)) as store:
        graded = grade(store, grader, GradingConfig(), QUIET)
    assert graded.correct.tolist() == [[True, False, False], [True, False, False]]
    for found, expected in (
        (graded.metrics["lenient_accuracy"], [[True, True, True], [True, False, False]]),
        (graded.unboxed, [[False, True, True], [False, False, True]]),
        (graded.truncated, [[False, False, True], [False, True, False]]),
        (graded.repetitive, [[False, False, True], [False, False, False]]),
        (graded.votes, [[0, -1, -1], [0, 2, -1]]),
    ):
        assert np.asarray(found).tolist() == expected
    assert graded.tokens.flatten().tolist() == [len(text) for text in texts.values()]
    reasons = [row["reason"] for row in rows_of(tmp_path / "grades.jsonl")]
    assert reasons == ["right", "unclosed thought", "truncated", "right", "wrong", "no box"]


def test_grade_row_without_answer_has_no_reward_and_the_others_have_theirs(
    policy: Policy, tmp_path: Path, grader: MathGrader
) -> None:
    """A training row may lack the answer that the grader compares with."""
    problems = [Problem("Any?", "", "", "open"), Problem("What is 3+4?", "", "7", "sum")]
    texts = {("open", 0): "\\boxed{1}", ("open", 1): "\\boxed{1}"}
    texts |= {("sum", 0): "\\boxed{7}", ("sum", 1): "\\boxed{8}"}
    with reopen_store(evaluated(policy, tmp_path, problems, texts)) as store:
        graded = grade(store, grader, GradingConfig(), QUIET)
        grades = [grade_of(row) for _, row in store.graded()]
    np.testing.assert_array_equal(graded.scores, [[np.nan, np.nan], [1, 0]])
    assert graded.has_verdicts
    found = [(g.reward, g.correct, g.answer, g.comment) for g in grades]
    assert found == [
        (None, False, None, ""),
        (None, False, None, ""),
        (1.0, True, "7", ""),
        (0.0, False, "8", "wrong"),
    ]


def test_grade_of_stored_row_is_the_grade_of_several_graders() -> None:
    parts = {"first": Grade(None), "second": Grade(1.0), "third": Grade(0.25)}
    given = Grade(1.25, "why", feedback="more", parts=parts, answer="7", metrics={"length": 3.0})
    row = {"correct": given.correct, "reward": 1.25, "failed": False, "answer": "7"}
    assert grade_of(row | given.columns) == given
    failed = grade_of({"correct": None, "reward": None, "failed": True, "reason": "HTTP 429"})
    assert (failed.failed, failed.reward, failed.comment) == (True, None, "")


def test_generate_interrupted_resumes_to_same_samples(
    policy: Policy, problems: list[Problem], tmp_path: Path, grader: MathGrader
) -> None:
    whole, cut = (task_of(policy, tmp_path / name, problems[:4]) for name in ("whole", "cut"))
    with opened(policy, whole) as store:
        generate(policy, LocalEngine(policy, batch_size=4), whole, store, QUIET)

    class Interrupted(LocalEngine):
        def stream(
            self, prompts: Any, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
        ) -> None:
            def finish(index: int, completion: Completion) -> None:
                finished(index, completion)
                if (tmp_path / "cut/completions.jsonl").read_bytes().count(b"\n") >= 5:
                    raise KeyboardInterrupt

            super().stream(prompts, sampling, seeds, finish)

    with pytest.raises(KeyboardInterrupt), opened(policy, cut) as store:
        generate(policy, Interrupted(policy, batch_size=5), cut, store, QUIET)
    path = tmp_path / "cut" / "completions.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    with opened(policy, cut) as store:
        assert len(store.written) == 4
        with pytest.raises(StoreError, match="8 of 12"):
            grade(store, grader, GradingConfig(), QUIET)
        generate(policy, LocalEngine(policy, batch_size=7), cut, store, QUIET)
        before = grade(store, grader, GradingConfig(), QUIET)
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    with reopen_store(tmp_path / "cut") as stored:
        again = grade(stored, grader, GradingConfig(), QUIET)
    assert np.array_equal(before.metrics["lenient_accuracy"], again.metrics["lenient_accuracy"])
    for name in ("correct", "votes", "tokens", "truncated", "unboxed", "repetitive"):
        assert np.array_equal(getattr(before, name), getattr(again, name)), name


def test_collect_samples_base_after_trained_policy_has_no_adapter(
    problems: list[Problem], adapted: Path, tmp_path: Path
) -> None:
    config = replace(read_run(adapted), rollout=RolloutConfig(engine="local"))
    base = load_policy(config.model, seed=0)
    task = task_of(base, tmp_path / "alone", problems[:3])
    with collect_samples(base, config, [task], tmp_path / "engine", QUIET):
        pass
    adapter = latest_checkpoint(adapted)
    assert adapter is not None
    trained = replace(task, folder=tmp_path / "trained", trained=adapter / "adapter")
    both = [trained, replace(task, folder=tmp_path / "after")]
    fresh = load_policy(config.model, seed=0)
    with collect_samples(fresh, config, both, tmp_path / "engine", QUIET):
        pass
    alone, after, changed = (lines_of(tmp_path / name) for name in ("alone", "after", "trained"))
    assert alone == after != changed


def test_store_other_weights_under_same_path_are_refused(
    policy: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    task = task_of(policy, tmp_path, problems[:2])
    first = task.problems[0]
    with opened(policy, task) as store:
        completion = Completion((1,) * 5, (), truncated=False)
        # A folder without samples takes other settings.
        store.add(Rollout(0, first, task.prompts[first.id], completion, "text"))
    with torch.no_grad():
        next(iter(policy.model.get_base_model().parameters())).mul_(1.01)
    with pytest.raises(StoreError, match="weights: "), opened(policy, task):
        pass


def test_eval_run_compares_checkpoints_with_base(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FEW, "--output-dir", str(tmp_path)]
    assert main(["eval", str(adapted), *flags]) == 0
    said = capsys.readouterr().out
    report = report_in(tmp_path / "mine")
    names = ["base", "mine-step-000001", "mine-step-000002"]
    assert policies_of(report) == names
    assert compared_in(report) == names[1:]
    assert "Avg@2 less that of base" in said
    # One checkpoint of it is the same policy, and its samples are there.
    assert main(["eval", str(adapted / "checkpoints/step-000002"), *flags]) == 0
    assert "tok/s" not in capsys.readouterr().out
    asked = asked_of(tmp_path / "mine", names)
    assert asked[0]["adapter"] is None
    assert len({setting["adapter"] for setting in asked}) == 3
    # The adapters wrote the samples.
    texts = texts_of(tmp_path / "mine", names)
    assert texts[0] != texts[1] != texts[2] != texts[0]
    # The adapter alone, whose file names its layers in another order, is as good.
    alone = str(adapted / "checkpoints/step-000001/adapter")
    assert main(["eval", str(adapted), alone, *flags, "--no-base"]) == 0
    # Another setting does not mix with it.
    capsys.readouterr()
    assert main(["eval", str(adapted), *flags, "--rollout.temperature", "0.6"]) == 2
    assert "temperature: 1.0 -> 0.6" in capsys.readouterr().err


def always_right(completion: str, row: dict[str, Any]) -> float:
    return 1.0


class Again:
    """Asks for one more turn."""

    def step(self, messages: Sequence[Any], completion: str) -> str | None:
        return "Again." if len(messages) < 3 else None


def recorded_with(run: Path, copy: Path, section: str, **values: Any) -> Path:
    """A copy of a run, as if it had been trained with these settings."""
    shutil.copytree(run, copy)
    recorded = json.loads((copy / "run.json").read_text())
    recorded["config"][section] |= values
    (copy / "run.json").write_text(json.dumps(recorded))
    return copy


def test_eval_targets_of_different_conversations_are_refused_unless_one_is_named(
    adapted: Path, tmp_path: Path
) -> None:
    evals, other = tmp_path / "evals", tmp_path / "runs/other"
    answered = recorded_with(adapted, other, "conversation", environment=spec_of(Again))
    pairs: list[list[str | Path]] = [[adapted, answered], [answered, adapted], ["demo", answered]]
    for targets in pairs:
        with pytest.raises(ConfigError, match=r"name it with --conversation\.environment"):
            paint.evaluate(targets, benchmarks="demo", output_dir=evals)
    assert not evals.exists()
    few = ["--samples", "1", "--limit", "1", "--rollout.max-new-tokens", "8", "--no-base"]
    flags = [*few, "--benchmarks", "demo", "--output-dir", str(evals)]
    named = ["--conversation.environment", spec_of(Again)]
    assert main(["eval", "demo", str(answered), *flags, *named]) == 0
    stores = list(evals.rglob("completions.jsonl"))
    assert {len(lines_of(store.parent)[0]["conversation"]["turns"]) for store in stores} <= {1, 2}


def test_eval_run_of_another_grader_is_refused(adapted: Path, tmp_path: Path) -> None:
    grader = [spec_of(always_right)]
    other = recorded_with(adapted, tmp_path / "runs/graded", "grading", grader=grader)
    with pytest.raises(ConfigError, match=r"graded has grading\.grader .*always_right"):
        paint.evaluate([adapted, other], benchmarks="demo", output_dir=tmp_path)


@pytest.mark.slow
def test_eval_full_tuning_checkpoints_share_base_with_adapters(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, evals = tmp_path / "runs/whole", tmp_path / "evals"
    train_demo(run, "--train.learning-rate", "0.003", "--model.train-mode", "full")
    # Named, because a run is sampled as it was trained, and its model's folder is not.
    sampling = ["--rollout.top-p", "1", "--rollout.top-k", "20", "--rollout.temperature", "1.1"]
    flags = [*FEW, *sampling, "--output-dir", str(evals)]
    assert main(["eval", str(run), *flags]) == 0
    names = ["base", "whole-step-000001", "whole-step-000002"]
    assert policies_of(report_in(evals / "whole")) == names
    texts = texts_of(evals / "whole", names)
    assert texts[0] != texts[1] != texts[2] != texts[0]
    asked = asked_of(evals / "whole", names)
    assert len({setting["weights"] for setting in asked}) == 3
    assert {setting["adapter"] for setting in asked} == {None}
    # Each was asked as itself: the checkpoint's model, evaluated alone, gives the same samples.
    folder = run / "checkpoints/step-000002"
    assert main(["eval", str(folder / "model"), *flags]) == 0
    assert [row["text"] for row in lines_of(evals / "model/base/demo")] == texts[2]
    # One checkpoint is a policy that was asked before.
    capsys.readouterr()
    assert main(["eval", str(folder), *flags]) == 0
    assert "tok/s" not in capsys.readouterr().out
    # Another run of the model has a folder of its own, with the same samples of the base.
    assert main(["eval", str(adapted / "checkpoints/step-000001"), *flags]) == 0
    assert texts_of(evals / "mine", ["base"]) == [texts[0]]
    assert policies_of(report_in(evals / "mine")) == ["base", "mine-step-000001"]
    # Other weights under a checkpoint's name are not taken for it.
    (folder / "model").rename(folder / "kept")
    shutil.copytree(run / "checkpoints/step-000001/model", folder / "model")
    assert main(["eval", str(folder), *flags]) == 2
    assert "model.safetensors is not the file that was written" in capsys.readouterr().err


def test_resolve_targets_of_other_models_are_refused(policy: Policy, tmp_path: Path) -> None:
    save_trained(policy, tmp_path / "one")
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "adapter_config.json").write_text(json.dumps(config | {"r": 4}))
    model, contestants = resolve_targets(EvaluationConfig(), ["demo", str(tmp_path / "one")])
    assert (model.path, model.lora_rank, model.dtype) == ("demo", 8, "float32")
    found = [(c.name, c.checkpoint) for c in contestants]
    assert found == [("base", None), ("one", tmp_path / "one")]
    assert len(resolve_targets(EvaluationConfig(base=False), [str(tmp_path / "one")])[1]) == 1
    with pytest.raises(ConfigError, match=r"lora_rank\b.*\b4\b.*\b8\b"):
        resolve_targets(EvaluationConfig(), [str(tmp_path / "one"), str(tmp_path / "two")])
    with pytest.raises(ConfigError, match=r"path\b.*'other'"):
        resolve_targets(EvaluationConfig(), ["other", str(tmp_path / "one")])
    (tmp_path / "one").rename(tmp_path / "base")
    with pytest.raises(ConfigError, match="called base"):
        resolve_targets(EvaluationConfig(), [str(tmp_path / "base")])
    (tmp_path / "base").rename(tmp_path / "one")
    with pytest.raises(ConfigError, match="called one"):
        resolve_targets(EvaluationConfig(), [str(tmp_path / "one"), str(tmp_path / "one")])


def test_require_context_length_prompts_are_never_truncated(
    policy: Policy, problems: list[Problem]
) -> None:
    def room(max_new_tokens: int) -> int:
        protocol = SamplingProtocol(1, False, Sampling(1.0, 1.0, -1, max_new_tokens))
        return require_context_length(policy, task_of(policy, Path(), problems[:20], protocol))

    longest = max(len(policy.student_prompt(p.problem, thinking=False)) for p in problems[:20])
    assert room(80) == longest + 80
    assert room(1024 - longest) == 1024
    with pytest.raises(ConfigError, match=f"at most {1024 - longest}"):
        room(1025 - longest)


def test_shortened_answers_end_with_positions(policy: Policy, problems: list[Problem]) -> None:
    prompts = {p.id: policy.student_prompt(p, thinking=False) for p in problems[:20]}
    longest, display = max(map(len, prompts.values())), Display(enabled=False)
    for asked, given in ((80, 80), (1024 - longest, 1024 - longest), (38_912, 1024 - longest)):
        protocol = SamplingProtocol(1, False, Sampling(1.0, 1.0, -1, asked))
        found = fit_to_context(policy, protocol, "demo", prompts, display)
        assert found == replace(protocol, sampling=Sampling(1.0, 1.0, -1, given))


def test_voted_equal_answers_share_a_vote(grader: MathGrader) -> None:
    wrong = ["\\frac{1}{2}", None, "0.5", "7", "1/2"]
    rows = [{"answer": answer, "correct": False} for answer in wrong]
    rows += [{"answer": answer, "correct": True} for answer in ("3", "3.0")]
    votes = cast_votes(rows, 7, grader)
    assert votes[0] == votes[2] == votes[4]
    assert votes[1] == -1
    assert votes[5] == votes[6]
    assert len({votes[0], votes[1], votes[3], votes[5]}) == 4
    # Votes of several problems are apart.
    assert cast_votes([{"answer": "5", "correct": False}] * 4, 2, grader) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("Wait, let me check that again. " * 200, True),
        ("x" * 5000, True),
        ("short " * 20, False),
        (" ".join(str(i * i) for i in range(2000)), False),
        (" ".join(str(i * i) for i in range(2000)) + "So it is 5. " * 400, True),
        ("So it is 5. " * 400 + " ".join(str(i * i) for i in range(2000)), False),
    ],
)
def test_is_repetitive_detects_repeated_ending(text: str, expected: bool) -> None:
    assert is_repetitive(text) == expected


def test_is_repetitive_is_false_for_real_completions() -> None:
    rows = rows_of(Path(__file__).parents[1] / "samples/math_rollouts.jsonl")
    texts = [text for row in rows for text in row["completions"]]
    assert len(texts) >= 80
    assert not [text[-80:] for text in texts if is_repetitive(text)]


def test_grade_asks_a_judge_only_for_what_it_has_not_graded(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "LONGEST_PAUSE_SECONDS", 0.01)
    asked: list[str] = []
    found: list[GradedSamples] = []
    is_down = True

    async def judge(completion: str, row: dict[str, Any]) -> float:
        asked.append(completion)
        if completion == "fails" and is_down:
            raise ValueError
        return float(completion == "fails") or 0.5

    problems = [Problem("One?", "", "1", "one"), Problem("Two?", "", "2", "two")]
    texts = {("one", 0): "a", ("one", 1): "b", ("two", 0): "c", ("two", 1): "fails"}
    place = evaluated(policy, tmp_path, problems, texts)
    grading = GradingConfig(grader=(spec_of(judge),))

    def calls(grading: GradingConfig = grading, **options: bool) -> list[str]:
        asked.clear()
        with reopen_store(place) as store, open_grader(grading) as grader:
            found.append(grade(store, grader, grading, QUIET, **options))
        return sorted(set(asked))  # a call that fails is repeated

    assert calls() == ["a", "b", "c", "fails"]
    is_down = False
    assert calls() == ["fails"]  # failures are asked again
    scores = [compute_metrics({"": samples})[""]["reward"].mean for samples in found]
    assert scores == [(0.5 + 0.5) / 2, (0.5 + 0.75) / 2]
    assert [samples.failures for samples in found] == [1, 0]
    assert [dict(samples.reasons) for samples in found] == [
        {"partial": 3},
        {"partial": 3, "right": 1},
    ]
    assert calls() == []
    assert calls(again=True) == ["a", "b", "c", "fails"]
    corrected = [problems[0], replace(problems[1], answer="3")]
    evaluated(policy, tmp_path, corrected, {})
    assert calls() == ["c", "fails"]
    assert len(calls(replace(grading, weights=(2.0,)))) == 4


@pytest.mark.parametrize("name", ["judge", "of_two"])
def test_grader_identity_has_the_constants_of_its_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from functools import partial
PROMPT = {!r}
def judge(completion, row, scale=1):
    return scale * len(PROMPT)
of_two = partial(judge, scale=2)
"""
    module = tmp_path / f"asks_{name}.py"
    module.write_text(code.format("Is it right?"))
    monkeypatch.syspath_prepend(tmp_path)
    grading = GradingConfig(grader=(f"{module.stem}:{name}",))
    before = grader_identity(grading)
    assert grader_identity(grading) == before
    assert grader_identity(replace(grading, deadline=9.0)) != before
    module.write_text(code.format("Is every step of it right?"))
    assert grader_identity(grading) != before


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("runs/first", "first"),
        ("runs/a/seed-0", "a-seed-0"),
        ("runs/old/runs/b/seed-0", "b-seed-0"),
        ("elsewhere/seed-0", "elsewhere-seed-0"),
        ("elsewhere/first", "first"),
    ],
)
def test_runs_of_one_folder_name_have_evaluations_of_their_own(run: str, name: str) -> None:
    assert name_of_run(Path("/data", run)) == name


def test_grade_any_of_several_is_right(policy: Policy, tmp_path: Path, grader: MathGrader) -> None:
    problems = [Problem("Which?", "", "2", "1", also=("two", "\\frac{5}{2}"))]
    given = enumerate(["2", "two", "2.5", "3", "1/2"])
    texts = {("1", k): rf"\boxed{{{text}}}" for k, text in given}
    place = evaluated(policy, tmp_path / "base/mine", problems, texts)
    [row] = rows_of(place / "problems.jsonl")
    assert row["answer"] == ["2", "two", r"\frac{5}{2}"]
    with reopen_store(place) as store:
        assert store.problems == problems
        graded = grade(store, grader, GradingConfig(), QUIET)
    assert graded.correct.tolist() == [[True, True, True, False, False]]


def test_stored_evaluations_with_same_names_are_distinguished(
    policy: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    for name in ("a/base/mine", "b/base/mine", "b/after/mine"):
        texts = {(problem.id, 0): rf"\boxed{{{problem.answer}}}" for problem in problems[:2]}
        evaluated(policy, tmp_path / name, problems[:2], texts)
    stores = stored_in([tmp_path / "b", tmp_path / "a", tmp_path / "b/.."])
    found = [str(path.relative_to(tmp_path)) for path in stores]
    assert found == ["b/base/mine", "b/after/mine", "a/base/mine"]
    folders = [tmp_path / "b", tmp_path / "a"]
    summarise(folders, tmp_path / "new/place", QUIET, GradingConfig())
    report = report_in(tmp_path / "new/place")
    assert policies_of(report) == [str(tmp_path / "b/base"), "after", str(tmp_path / "a/base")]
    text = (tmp_path / "new/place/summary.md").read_text()
    assert text.startswith("**Avg@1, in % with 95 % interval; 2 problems are too few**")


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "phi3"])
def test_resolve_base_of_any_family_can_be_loaded(family: str, tmp_path: Path) -> None:
    path = save_tiny(tiny_config(family), tmp_path)
    model, targets = resolve_targets(EvaluationConfig(dtype="float32"), [path])
    assert [target.name for target in targets] == ["base"]
    assert load_policy(model, seed=0).adapted
