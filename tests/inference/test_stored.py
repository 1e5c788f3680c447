"""Training on stored completions: of a run, of an evaluation, of a file."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paint.cli.main import main
from paint.config.run_folder import read_metrics
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.storage import CorruptFileError, read_jsonl
from paint.data.problems import DataError, Problem
from paint.inference.engine import Completion, Sampling
from paint.inference.factory import EngineSetup
from paint.inference.local import LocalEngine
from paint.inference.stored import StoredEngine
from paint.models.policy import Policy, load_policy
from paint.resolve.check import check_config
from runs import adapter, assert_same, changed, small_run, stored, train, write_problems

SMALL = small_run(
    60, limit=6, at_once=8, steps=2, batch_size=4, micro_batch_size=4, checkpoint_every=1
)
SAMPLING = Sampling(1.0, 1.0, -1, 60)


def arm(source: Path, *changes: dict[str, dict[str, Any]]) -> Any:
    """The small run on stored rollouts, with changes."""
    engine = {"rollout": {"engine": "stored", "stored": str(source)}}
    return changed("demo-paint", SMALL, engine, *changes)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run whose rollouts are stored: read only."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    train(changed("demo-paint", SMALL), folder, display=Display(enabled=False))
    return folder


@pytest.fixture
def no_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("generates")

    monkeypatch.setattr(LocalEngine, "stream", refuse)


def test_train_on_stored_rollouts_of_same_seed_repeats_run(
    first: Path, tmp_path: Path, no_generation: None
) -> None:
    train(arm(first), tmp_path / "again", display=Display(enabled=False))
    for step in (1, 2):
        assert_same(adapter(first, step), adapter(tmp_path / "again", step))
        ids = ("prompt_ids", "completion_ids", "engine_log_probs", "truncated", "context")
        for row, other in zip(stored(first, step), stored(tmp_path / "again", step), strict=True):
            assert [row[name] for name in ids] == [other[name] for name in ids]
            assert other["source"] == "stored"
    one, two = read_metrics(tmp_path / "again")
    assert 0 <= one["off_policy_kl"] < 1e-6
    assert one["off_policy_ess"] == pytest.approx(1)
    assert one["off_policy_max"] == pytest.approx(1, abs=1e-3)
    assert "logprob_mismatch_mean" not in two


def test_train_second_arm_on_stored_rollouts_differs_in_context_only(
    first: Path, tmp_path: Path, no_generation: None
) -> None:
    masks = {"context": {"mask_ratio_wrong": 0.0, "mask_ratio_correct": 0.0}}
    train(arm(first, masks), tmp_path / "arm", display=Display(enabled=False))
    rows, others = stored(first, 2), stored(tmp_path / "arm", 2)
    assert [r["completion_ids"] for r in rows] == [r["completion_ids"] for r in others]
    assert [r["context"] for r in rows] != [r["context"] for r in others]
    # The first student's rollouts, and a student that has moved since.
    assert read_metrics(tmp_path / "arm")[1]["off_policy_kl"] > 0


def test_stored_engine_chooses_by_seed_and_differently_within_problem() -> None:
    completions = [Completion((i,), (), truncated=False) for i in range(4)]
    one, other = (1, 2), (1, 3)
    of_one = [(None, completion) for completion in completions[:3]]
    engine = StoredEngine({one: of_one, other: [(5, completions[3]), (6, completions[0])]})
    found = engine.generate([one, one, one, one, other, other], SAMPLING, [7, 90, 3, 8, 6, 5])
    ids = [completion.ids[0] for completion in found]
    assert sorted(ids[:3]) == [0, 1, 2]
    assert ids[3] == ids[0]
    assert ids[4:] == [0, 3]
    # A step's choice does not depend on earlier steps, so a resumed run repeats it.
    assert engine.generate([one], SAMPLING, [7]) == found[:1]


def test_train_on_texts_tokenizes_them_and_has_no_off_policy_metrics(
    tmp_path: Path, problems: list[Problem], capsys: pytest.CaptureFixture[str], no_generation: None
) -> None:
    rows = [
        {"problem": p.problem, "text": f"It is ${p.answer}$.", "truncated": p is problems[0]}
        for p in problems[:4]
    ]
    source = Path(write_problems(tmp_path / "texts.jsonl", rows))
    train(arm(source, {"data": {"limit": 4}, "train": {"steps": 1}}), tmp_path / "run")
    assert "4 stored rollouts of 4 problems" in (said := capsys.readouterr().out)
    assert "4 are texts, which were tokenized again; 4 have no log-probs" in said
    policy = load_policy(arm(source).model, seed=0)
    texts = {p.problem: f"It is ${p.answer}$." for p in problems[:4]}
    for row in stored(tmp_path / "run"):
        ids = policy.solution_ids(texts[row["problem"]])
        assert row["completion_ids"] == (ids[:-1] if row["truncated"] else ids)
        assert row["truncated"] == (row["problem"] == problems[0].problem)
        assert row["text"] == texts[row["problem"]]
    assert not [name for name in read_metrics(tmp_path / "run")[0] if "off_policy" in name]


def test_train_on_evaluation_takes_every_sample(tmp_path: Path, problems: list[Problem]) -> None:
    names = ("problem", "solution", "answer", "id")
    rows = [{name: getattr(p, name) for name in names} for p in problems[:2]]
    path = write_problems(tmp_path / "mine.jsonl", rows)
    flags = ["--benchmarks", path, "--samples", "2", "--no-thinking", "--rollout.top-p", "1"]
    flags += ["--rollout.max-new-tokens", "60", "--output-dir", str(tmp_path / "evals")]
    assert main(["eval", "demo", *flags]) == 0
    source = tmp_path / "evals/demo/base/mine"
    pairs: dict[str, dict[str, Any]] = {
        "data": {"path": path, "limit": None},
        "rollout": {"samples_per_problem": 2},
    }
    train(arm(source, pairs), tmp_path / "run", display=Display(enabled=False))
    samples = list(read_jsonl(source / "completions.jsonl", ""))

    def ids_of(rows: list[dict[str, Any]]) -> set[tuple[str, tuple[int, ...]]]:
        return {(row["problem_id"], tuple(row["completion_ids"])) for row in rows}

    assert ids_of(stored(tmp_path / "run")) == ids_of(samples)
    assert {row["text"] for row in stored(tmp_path / "run")} == {row["text"] for row in samples}

    with pytest.raises(DataError, match=r"problem \S+ follows another prompt"):
        train(arm(source, pairs, {"model": {"student_thinking": True}}), tmp_path / "other")
    with (source / "completions.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(CorruptFileError, match=r"completions\.jsonl"):
        train(arm(source, pairs), tmp_path / "changed")


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def having(**values: Any) -> Change:
    return lambda rows: [row | values for row in rows]


def without(*names: str) -> Change:
    return lambda rows: [{key: row[key] for key in row.keys() - names} for row in rows]


REFUSED: dict[str, tuple[Change, str]] = {
    "missing": (lambda rows: rows[1:], r"no rollout of 1 of the 4 problems .*: chain-\d+;"),
    "other prompt": (having(prompt_ids=[5]), r"row 1: .*chain-\d+ follows another prompt"),
    "too long": (
        having(completion_ids=[5] * 61, engine_log_probs=None),
        r"row 1: .* 61 tokens, .*max_new_tokens is 60",
    ),
    "empty": (having(completion_ids=[]), r"row 1: .* has no token"),
    "foreign ids": (having(completion_ids=[10**30]), r"row 1: .* has the token id 10{30}"),
    "no list": (having(completion_ids=5), r"row 1: .*not iterable"),
    "positive": (having(completion_ids=[5], engine_log_probs=[0.1]), r"row 1: .* log-prob 0\.1"),
    "control": (
        lambda rows: [row | {"text": "<|im_end|>"} for row in without("completion_ids")(rows)],
        r"rows\.jsonl row 1: ",
    ),
    "no text": (
        lambda rows: [row | {"text": ["a"]} for row in without("completion_ids")(rows)],
        'row 1: it has no "completion_ids" and no text',
    ),
}


def test_train_on_unusable_rollouts_is_refused(first: Path, tmp_path: Path) -> None:
    rows = without("problem", "problem_id")(stored(first))
    source = Path(write_problems(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DataError, match='no text in "problem" or "problem_id"'):
        train(arm(source, {"train": {"steps": 1}}), tmp_path / "run")
    assert not list((tmp_path / "run/rollouts").iterdir())


@pytest.fixture(scope="module")
def student() -> Policy:
    return load_policy(arm(Path()).model, seed=0)


def engine_on(source: Path, policy: Policy, problems: list[Problem]) -> StoredEngine:
    """An engine of what is stored of these problems."""
    config, display = arm(source), Display(enabled=False)
    options = (config.model, config.rollout, source.parent, display, 200, problems)
    return StoredEngine.from_setup(EngineSetup(policy, *options))


@pytest.mark.parametrize("case", REFUSED)
def test_stored_engine_refuses_unusable_rollouts(
    first: Path, tmp_path: Path, problems: list[Problem], student: Policy, case: str
) -> None:
    change, message = REFUSED[case]
    rows = stored(first)
    drawn = [p for p in problems if p.id in {row["problem_id"] for row in rows}]
    source = Path(write_problems(tmp_path / "rows.jsonl", change(rows)))
    with pytest.raises(DataError, match=message):
        engine_on(source, student, drawn)


TEACHER = {
    "completion_ids": [5, 6],
    "engine_log_probs": None,
    "teacher_ids": [[5, 7], [6, 8]],
    "teacher_log_probs": [[-0.1, -3.0], [-0.2, -2.5]],
}
OF_NO_TEACHER: dict[str, dict[str, Any]] = {
    "one token": {"teacher_ids": [[5, 7]]},
    "no log-probs": {"teacher_log_probs": None},
    "ragged": {"teacher_ids": [[5, 7], [6]]},
    "foreign": {"teacher_ids": [[5, 7], [6, 982]]},
    "text": {"teacher_ids": [["5", "7"], ["6", "8"]]},
    "twice": {"teacher_ids": [[5, 5], [6, 8]]},
    "more log-probs": {"teacher_log_probs": [[-1, -2, -3]] * 2},
    "no number": {"teacher_log_probs": [[-1, math.nan]] * 2},
    "too much": {"teacher_log_probs": [[-0.1, -0.1]] * 2},
    "cold": {"teacher_temperature": 0},
}


def test_stored_engine_reads_what_is_stored_of_a_teacher(
    tmp_path: Path, problems: list[Problem], student: Policy
) -> None:
    def opened(rows: list[dict[str, Any]]) -> StoredEngine:
        few = problems[: len(rows)]
        named = [row | {"problem": p.problem} for row, p in zip(rows, few, strict=True)]
        return engine_on(Path(write_problems(tmp_path / "rows.jsonl", named)), student, few)

    engine = opened([TEACHER | {"teacher_temperature": 1.5}])
    [[(_, completion)]] = engine.by_prompt.values()
    top = completion.teacher_top
    assert top is not None
    assert top.temperature == 1.5
    assert top.ids.tolist() == TEACHER["teacher_ids"]
    assert top.log_probs.tolist() == [pytest.approx([-0.1, -3.0]), pytest.approx([-0.2, -2.5])]

    for change in OF_NO_TEACHER.values():
        with pytest.raises(DataError, match=r"rows\.jsonl row 1: "):
            opened([TEACHER | change])
    one = {"teacher_ids": [[5], [6]], "teacher_log_probs": [[-0.1], [-0.2]]}
    with pytest.raises(DataError, match=r"different numbers of a teacher's entries .* \(1, 2\)"):
        opened([TEACHER, TEACHER | one])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"stored": ""}}, r'rollout\.stored must be a run.*got ""'),
        ({"rollout": {"engine": "local"}}, r'rollout\.stored must be empty with .*"local"'),
        ({"rollout": {"off_policy_steps": 1}}, r"rollout\.off_policy_steps must be 0 with"),
        ({"validation": {"path": "demo"}}, r"validation\.path must be empty with"),
        ({"train": {"method": "sft"}}, r'rollout\.engine must be other than "stored" with .*"sft"'),
    ],
)
def test_config_stored_engine_with_conflicting_settings_is_refused(
    changes: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(arm(Path("runs/first"), changes))
