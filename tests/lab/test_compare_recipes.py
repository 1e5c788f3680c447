"""`paint compare`: recipes on problems of the user's, with stored rollouts and controls."""

from pathlib import Path
from typing import Any

import pytest

import paint
from paint.cli import main
from paint.config.schema import Config, ConfigError
from paint.evaluation.frame import select_rows
from paint.inference.engine import sampling_from
from paint.lab.checkpoint_results import read_results
from paint.lab.eval_protocols import protocol_for
from processes import write_recipe
from reports import report_in, row_of
from runs import changed, small_run, write_problems

SMALL = small_run(40, steps=1, batch_size=2, micro_batch_size=2)


def problems_of(*steps: int) -> list[dict[str, str]]:
    problem = "Start at $1$ and apply $+{}$ modulo $100$.".format
    solution = "We get $1+{}={}$, so the answer is $\\boxed{{{}}}$.".format
    return [
        {"problem": problem(n), "answer": str(n + 1), "solution": solution(n, n + 1, n + 1)}
        for n in steps
    ]


def test_protocol_of_own_task_needs_its_benchmark_and_samples_as_trained(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "mine.jsonl", [{"problem": "Where is my parcel?"}])
    config = changed(
        "paint", {"model": {"path": "owner/name"}, "grading": {"grader": "mine:grade"}}
    )
    with pytest.raises(ConfigError, match="name problems by --benchmark"):
        protocol_for(config, None, None, 2)
    protocol = protocol_for(config, path, None, 2)
    assert protocol.thinking is config.model.student_thinking is False
    assert protocol.sampling == sampling_from(config.rollout)
    assert [problem.answer for problem in protocol.benchmark.problems] == [""]


SETTINGS: dict[str, Any] = {
    "train": {"steps": 40, "options": {"correct_weight": 0.4}},  # 40 is demo-paint's own
    "model": {"teacher_thinking": False, "lora_rank": 4},
    "context": {"mask_ratio_wrong": 0.1},
}
FLAGS = (
    "--train.steps 40 --train.options.correct-weight=0.4 --model.no-teacher-thinking "
    "--model.lora-rank 4 --context.mask_ratio_wrong 0.1"
)


def test_compare_settings_are_those_of_all_recipes(
    tmp_path: Path, compared: list[dict[str, Config]]
) -> None:
    rows = write_problems(tmp_path / "rows.jsonl", problems_of(2, 3))
    masked = tmp_path / "masked.toml"
    masked.write_text(
        '[train]\nsteps = 7\nmethod = "paintvariants.on_correct:OnCorrect"\n'
        "[context]\nmask_ratio_correct = 0.9\n"
    )
    line = ["compare", str(masked), "paint-on-correct", "--base", "demo-paint"]
    assert main([*line, *FLAGS.split(), "--data.path", rows]) == 0
    names = [str(masked), "paint-on-correct"]
    paint.compare(names, base="demo-paint", data=rows, **SETTINGS)
    configs, again = compared
    assert configs == again
    assert list(configs) == ["masked", "paint-on-correct"]
    assert configs["masked"].context.mask_ratio_correct == 0.9
    for config in configs.values():
        assert (config.train.steps, config.train.options["correct_weight"]) == (40, 0.4)
        assert (config.model.teacher_thinking, config.model.lora_rank) == (False, 4)
        assert (config.context.mask_ratio_wrong, config.data.path) == (0.1, rows)


def test_compare_folder_is_its_recipes_and_their_last_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: list[dict[str, Config]]
) -> None:
    def publish(layout: Any, *_: Any) -> None:
        assert not layout.all_pairs

    monkeypatch.setattr("paint.lab.comparison_report.publish", publish)
    line = "compare ablations/mask-placement --base demo-paint --against-last --train.steps 7"
    assert main(line.split()) == 0
    train = {"steps": 7}
    paint.compare("ablations/mask-placement", base="demo-paint", against_last=True, train=train)
    own = tmp_path / "mine"
    own.mkdir()
    for name in ("suffix", "random", "prefix", "middle"):
        (own / f"{name}.toml").write_text(
            f'[context]\nplacement = "{name}"\n[objective]\n'
            "interpolation_weight = 0.0\ntop_fraction = 0.0\n"
        )
    paint.compare(own, base="demo-paint", against_last=True, train=train)
    rows, *others = compared
    assert others == [rows, rows]
    assert list(rows) == ["middle", "prefix", "random", "suffix"]
    assert {config.train.steps for config in rows.values()} == {7}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"options": {"correct_weight": 0.4}}}, r"^demo-grpo: .*correct_weight"),
        ({"train": {"seed": 3}}, "have their own folders and seeds"),
        ({"log": {"name": "mine"}}, "have their own folders and seeds"),
    ],
)
def test_compare_setting_that_a_recipe_cannot_have_is_refused(
    settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        paint.compare(["demo-grpo", "demo-paint"], output_dir=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_compare_feedback_with_that_of_another_completion_at_every_checkpoint(
    tmp_path: Path,
) -> None:
    small = "--train.steps 2 --train.batch-size 4 --rollout.max-new-tokens 12 --data.limit 20"
    line = f"compare demo-paint --controls other_feedback --context.source feedback {small}"
    few = f"--problems 1 --samples 1 --max-new-tokens 8 --seeds 1 --output-dir {tmp_path}"
    every = "--every-checkpoint --train.checkpoint-every 1 --against-last"
    assert main([*line.split(), *few.split(), *every.split()]) == 0
    names = ["demo-paint-other-feedback", "demo-paint"]
    results = [(result.run, result.steps) for result in read_results(tmp_path)]
    assert results == [("base", 0), *((name, step) for name in names for step in (1, 2))]
    rows = report_in(tmp_path, "results").rows
    for name in names:
        found = [row.step for row in rows if row.policy == name and row.metric == "seconds"]
        assert found == [None, 1, 2]
    rollouts = paint.load_run(tmp_path / "demo-paint/seed-0").rollouts()
    assert set(rollouts["context"]) == {"truncated"}  # of the mathematics grader


def test_compare_under_a_judge_has_its_mean_rewards_and_their_difference(tmp_path: Path) -> None:
    rows = [row | {"score": "0.5"} for row in problems_of(2, 3)]
    scores = ["0.37", "0.8", "fails"]
    held_out = [
        row | {"score": score} for row, score in zip(problems_of(4, 5, 6), scores, strict=True)
    ]
    frame = paint.compare(
        [changed("demo-paint", SMALL)],
        data=write_problems(tmp_path / "rows.jsonl", rows),
        grading={"grader": "extensions.row_grader:grade"},
        benchmark=write_problems(tmp_path / "held-out.jsonl", held_out),
        seeds=1,
        samples=2,
        max_new_tokens=8,
        output_dir=tmp_path / "out",
    )
    assert [result.rewards for result in read_results(tmp_path / "out")] == [[0.37, 0.8, None]] * 2
    assert list(frame["reward"]) == pytest.approx([0.585, 0.585])
    report = report_in(tmp_path / "out", "results")
    level = row_of(report, policy="base", metric="reward")
    assert level.mean == pytest.approx(0.585)
    assert level.n == 2
    [gain] = [row for row in select_rows(report.rows, against="base") if row.p is None]
    assert (gain.metric, gain.mean) == ("reward", 0)
    main = report.tables[0]
    assert main.columns[1:3] == ["Mean reward", "gain over base"]
    assert [row[1].split()[0] for row in main.rows] == ["58.5", "58.5"]


@pytest.mark.slow
def test_compare_trains_on_stored_rollouts_and_evaluates_on_own_problems(tmp_path: Path) -> None:
    base, masked = tmp_path / "base.toml", tmp_path / "masked.toml"
    write_recipe(base, changed("demo-paint", SMALL))
    masked.write_text("[context]\nmask_ratio_correct = 0.9\n")
    rows = write_problems(tmp_path / "rows.jsonl", problems_of(2, 3, 4))
    held_out = write_problems(tmp_path / "held-out.jsonl", problems_of(5, 6))
    first = paint.train(base, data=rows, output_dir=tmp_path / "first")

    folder, flags = tmp_path / "compare", ["--base", str(base), "--data.path", rows]
    flags += ["--stored", str(first.path), "--benchmark", held_out, "--controls", "other"]
    flags += ["--seeds", "1", "--samples", "2", "--max-new-tokens", "60"]
    assert main(["compare", str(masked), *flags, "--output-dir", str(folder)]) == 0

    names = ["masked-other", "masked"]
    results = read_results(folder)
    assert [result.run for result in results] == ["base", *names]
    assert {len(result.right) for result in results} == {2}
    assert results[0].protocol["max_new_tokens"] == 60
    texts = [list(paint.load_run(folder / name / "seed-0").rollouts()["text"]) for name in names]
    assert texts == [list(first.rollouts()["text"])] * 2
    assert paint.load_run(folder / "masked/seed-0").config.context.mask_ratio_correct == 0.9
    table = (folder / "results.md").read_text()
    assert "| masked-other | context.source: ['solution'] -> ['other'] |" in table
    assert "| masked less masked-other |" in table

    asked: dict[str, Any] = {"controls": ["other"], "benchmark": held_out, "seeds": 1}
    asked |= {"samples": 2, "max_new_tokens": 60, "output_dir": folder}
    again = paint.compare([masked], base=base, data=rows, stored=first.path, **asked)
    assert list(again["run"]) == ["base", *names]
    assert list(again["avg_at_k"]) == [sum(result.right) / 4 for result in results]
