"""Benchmarks on the demo's model and few problems: what they count, and how they sum it up."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import top_k
import whole_step
from comparison_plot import save_plot
from generation import SAMPLING, by_engine, by_transformers
from loss import Size, make, products_of
from paint.lab.checkpoint_results import CheckpointResult
from paint.lab.comparison_report import Layout
from paint.models.policy import Policy


def test_generation_counts_tokens_up_to_the_end_of_a_completion(policy: Policy) -> None:
    prompts = torch.randint(500, (2, 12), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = replace(SAMPLING, max_new_tokens=5)
    for contender in (by_engine, by_transformers):
        assert 2 <= contender(policy, prompts, sampling)() <= 10


def test_products_of_sum_in_another_dtype_counts_its_multiplications() -> None:
    x = make(Size("one", 8, 4, 1, vocabulary=16), 1)
    states, head = (part.to("meta", torch.bfloat16) for part in (x.student.detach(), x.head))
    logits = torch.empty(4, 16, device="meta")

    def run() -> None:
        torch.addmm(logits, states, head.T, out_dtype=torch.float32, out=logits)

    assert products_of(run, x) == 1


@pytest.mark.slow
def test_top_k_is_exact_with_the_whole_vocabulary_and_nearer_with_more_entries() -> None:
    rows = top_k.main(top_k.Options(problems=3, k=(1, 16)))
    assert [row["objective"] for row in rows[::3]] == list(top_k.OBJECTIVES)
    for one, more, whole in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert abs(float(whole["value"])) < 1e-4
        assert float(whole["cosine"]) == pytest.approx(1, abs=1e-6)
        assert abs(float(more["value"])) < abs(float(one["value"]))
        assert float(one["cosine"]) < float(more["cosine"]) < 1


@pytest.mark.slow
def test_whole_step_measures_the_steps_of_a_trainer_of_trl(tmp_path: Path) -> None:
    options = whole_step.Options(
        rows=2, tokens=3, steps=2, only=("trl sdft",), tiny=True, json=tmp_path / "a.json"
    )
    found = whole_step.main(options)["trl sdft"]
    assert len(found["steps"]) == 2, found
    for step in found["steps"]:
        assert step["seconds"] > step["rollouts"] > 0


def test_summary_leaves_the_first_step_out_unless_it_is_the_only_one() -> None:
    steps = [
        {"seconds": seconds, "rollouts": seconds - 1, "peak_bytes": 2e9} for seconds in (9, 4, 2)
    ]
    whole = {"rollouts": 2, "update": 1, "seconds": 3, "first": 9, "steps": 3, "peak_GB": 2}
    assert whole_step.summary({"steps": steps}) == whole
    cut = {"rollouts": 8, "update": 1, "seconds": 9, "first": 9, "steps": 1, "peak_GB": 2}
    found = whole_step.summary({"steps": steps[:1], "error": "late"})
    assert found == cut | {"ended": "late"}


def test_save_plot_names_each_run_and_the_difference_to_the_last(tmp_path: Path) -> None:
    exam = {"samples": 4, "problems": 3, "benchmark": "demo"}
    config, ids = {"train": {"steps": 2}}, ["one", "two", "three"]
    results = [
        CheckpointResult(run, 0, config, exam, "same", 2, 100, 1.0, ids, right, 9.0)
        for run, right in (("base", [1, 2, 1]), ("mine", [2, 2, 3]), ("last", [4, 3, 4]))
    ]
    for names, difference in ((["mine", "last"], "last less"), (["mine"], "mine less")):
        path = tmp_path / f"{len(names)}.svg"
        save_plot(path, Layout("Ours", names), results)
        text = path.read_text()
        assert all(f">{name}</text>" in text for name in ["base", *names])
        assert difference in text
    assert (tmp_path / "1.svg").read_bytes() != (tmp_path / "2.svg").read_bytes()
