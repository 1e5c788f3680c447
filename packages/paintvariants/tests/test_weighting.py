"""Completions weighted by their verdicts, and tokens by their figures."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ConfigError, ObjectiveConfig
from paint.core.extensions import spec_of
from paint.grading.contract import Grade
from paint.training import train_step
from paint.training.token_log import read_tokens, tokens_path
from paint.training.train_step import Setup
from paint.training.weighting import mean_one
from paintvariants import on_correct
from paintvariants.answer import AnswerAlone
from paintvariants.by_verdict import ByVerdict
from paintvariants.entropy_gap import EntropyGap
from paintvariants.on_correct import OnCorrect
from paintvariants.token_kinds import KINDS, kinds_of, kinds_of_tokens
from paintvariants.token_weights import mean_one_by_completion
from runs import Sections, adapter, assert_same, changed, completed, stored, train, variant

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3, "checkpoint_every": 1},
    "log": {"token_rows": "all"},
}


def small(sections: Sections | None = None, **objective: Any) -> Config:
    return changed("demo-paint", SMALL, {"objective": objective}, sections or {})


@pytest.mark.parametrize(
    ("correct", "wrong", "options", "expected"),
    [
        (1, 1, {}, [1, 1, 1]),
        (1, 0, {}, [3, 0, 0]),
        (2, 1, {}, [1.5, 0.75, 0.75]),
        # 4, 2 and 0 tokens count behind the first: Σ v c = 10, Σ c = 6.
        (2, 1, {"reduction": "token", "skip_tokens": 1}, [1.2, 0.6, 0.6]),
        (1, 0, {"reduction": "token", "skip_tokens": 5}, [0, 0, 0]),
    ],
)
def test_mean_one_weights_of_verdicts_have_mean_one(
    correct: float, wrong: float, options: dict[str, Any], expected: list[float]
) -> None:
    algorithm = OnCorrect()
    algorithm.options = on_correct.Options(correct_weight=correct, wrong_weight=wrong)
    rewards = {5: 1.0, 3: 0.0, 1: 0.0}  # by the tokens
    rollouts = [
        completed(row, tokens, grade=Grade(reward))
        for row, (tokens, reward) in enumerate(rewards.items())
    ]
    found = mean_one(rollouts, algorithm.weight, ObjectiveConfig(**options))
    assert list(found) == [0, 1, 2]
    assert list(found.values()) == pytest.approx(expected)


@pytest.mark.slow
def test_train_on_correct_learns_from_correct_completions(tmp_path: Path) -> None:
    train(small(), tmp_path / "all")
    train(small(variant(OnCorrect)), tmp_path / "correct")
    rows = stored(tmp_path / "all")
    correct = [row["loss"] for row in rows if row["correct"]]
    assert 0 < len(correct) < len(rows)

    (metrics,) = read_metrics(tmp_path / "correct")
    assert metrics["loss"] == pytest.approx(sum(correct) / len(correct), rel=1e-5)
    assert metrics["loss_weight"] == pytest.approx(1)
    weights = [row["loss_weight"] for row in stored(tmp_path / "correct")]
    share = len(rows) / len(correct)
    assert weights == pytest.approx([share * row["correct"] for row in rows])
    (plain,) = read_metrics(tmp_path / "all")
    assert metrics["kl"] == plain["kl"]
    assert metrics["gradient_norm"] != plain["gradient_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_train_by_verdict_joins_losses_and_gradients_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impl: str
) -> None:
    gradients: list[torch.Tensor] = []
    take = train_step.update

    def update(setup: Setup, step_index: int) -> float:
        found = [p.grad.flatten() for p in setup.policy.trainable if p.grad is not None]
        gradients.append(torch.cat(found).clone())
        return take(setup, step_index)

    monkeypatch.setattr(train_step, "update", update)
    cases: dict[str, Config] = {
        "both": small(variant(ByVerdict), impl=impl),
        "correct": small(variant(OnCorrect), impl=impl),
        "wrong": small(
            variant(OnCorrect, correct_weight=0.0, wrong_weight=1.0),
            impl=impl,
            divergence="reverse_kl",
        ),
    }
    for name, config in cases.items():
        train(config, tmp_path / name)

    rows = {name: stored(tmp_path / name) for name in cases}
    verdicts = [row["correct"] for row in rows["both"]]
    assert 0 < sum(verdicts) < len(verdicts)
    for is_correct, *figures in zip(verdicts, *rows.values(), strict=True):
        weighed = figures[1 if is_correct else 2]
        expected = weighed["loss"] / weighed["loss_weight"]
        assert figures[0]["loss"] == pytest.approx(expected, rel=1e-4, abs=1e-7)
    share = sum(verdicts) / len(verdicts)
    both, correct, wrong = gradients
    torch.testing.assert_close(both, share * correct + (1 - share) * wrong, rtol=1e-4, atol=1e-6)


def test_train_entropy_gap_weighs_token_losses_by_their_gap(tmp_path: Path) -> None:
    train(small(), tmp_path / "uniform")
    train(small(variant(EntropyGap)), tmp_path / "gap")
    expected = read_tokens(tokens_path(tmp_path / "uniform", 1))
    found = read_tokens(tokens_path(tmp_path / "gap", 1))
    assert len(found) == 8
    for row, tokens in expected.items():
        gap = abs(tokens["teacher_entropy"] - tokens["student_entropy"])
        weighted = tokens["loss"] * gap / gap.mean()
        assert found[row]["loss"] == pytest.approx(weighted, rel=1e-4, abs=1e-9)
        assert (found[row]["kl"] == tokens["kl"]).all()


PLACES = re.search(
    r"```python\n(# early.py\n.*?)```",
    (Path(__file__).parents[3] / "docs/how-to/variants.md").read_text(),
    re.DOTALL,
)


def test_printed_weights_by_place_train_on_the_first_tokens_of_each_completion(
    tmp_path: Path,
) -> None:
    assert PLACES is not None
    module: dict[str, Any] = {"__name__": "early"}
    exec(PLACES[1], module)
    # Hot enough that a completion goes on behind an answer's usual end.
    hot: dict[str, Any] = {"rollout": {"temperature": 2.5, "top_p": 1.0}}
    train(small(hot | {"train": {"method": spec_of(module["Early"])}}), tmp_path / "run")
    lengths = set()
    for values in read_tokens(tokens_path(tmp_path / "run", 1)).values():
        lengths.add(len(values["loss"]))
        assert (values["loss"][:40] != 0).any()
        assert not values["loss"][40:].any()
    assert max(lengths) > 40


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (lambda stats, lengths: stats["kl"][1:], r"return a tensor of \d+ numbers"),
        (lambda stats, lengths: stats["kl"].tolist(), "of type list; return a tensor"),
        (lambda stats, lengths: -stats["student_entropy"], "negative, not finite"),
    ],
)
def test_own_weights_that_are_none_are_refused_by_what_they_are(
    weights: Any, said: str, tmp_path: Path
) -> None:
    class Own(EntropyGap):
        def weights(self, stats: Any, lengths: Any) -> Any:
            return weights(stats, lengths)

    with pytest.raises(ConfigError, match=said):
        train(small({"train": {"method": spec_of(Own)}}), tmp_path / "run")


def test_own_weights_of_bools_and_integers_weigh_as_numbers(tmp_path: Path) -> None:
    class Own(EntropyGap):
        def weights(self, stats: Any, lengths: Any) -> Any:
            return stats["kl"] >= 0

    train(small(), tmp_path / "uniform")
    train(small({"train": {"method": spec_of(Own)}}), tmp_path / "own")
    assert_same(adapter(tmp_path / "uniform"), adapter(tmp_path / "own"))


def test_kinds_of_classifies_tokens() -> None:
    text = "So we get $3+4$, thus \\boxed{7}. Done"
    kinds = [KINDS[kind] for kind in kinds_of(text)]
    of = {word: kinds[text.index(word)] for word in ("So", "3", "+", "thus", "7", "Done")}
    said = {"So": "style", "3": "number", "+": "formula", "thus": "style"}
    assert of == said | {"7": "answer", "Done": "other"}
    tokens = kinds_of_tokens([b"So ", b" ", b"3", b"+4"])
    assert [KINDS[kind] for kind in tokens] == ["style", "other", "number", "formula"]
    unclosed = "then \\boxed{7"
    assert KINDS[kinds_of(unclosed)[-1]] == "answer"


def test_train_answer_alone_learns_from_boxes_alone(tmp_path: Path) -> None:
    train(small(variant(AnswerAlone)), tmp_path / "run")
    rows = stored(tmp_path / "run")
    is_boxed = ["\\boxed{" in row["text"] for row in rows]
    assert [row["loss"] != 0 for row in rows] == is_boxed
    for row, values in read_tokens(tokens_path(tmp_path / "run", 1)).items():
        weighed = "".join(values["token"][i] for i in values["loss"].nonzero()[0])
        assert bool(weighed) == is_boxed[row]
        assert "The answer" not in weighed


def test_train_step_without_weight_updates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter((1, 0))

    def weigh(*arguments: Any) -> dict[int, float]:
        share = next(steps)
        return {row: share * weight for row, weight in mean_one(*arguments).items()}

    monkeypatch.setattr(on_correct, "mean_one", weigh)
    weighted = variant(OnCorrect, wrong_weight=2.0)
    train(changed("demo-paint", SMALL, weighted, {"train": {"steps": 2}}), tmp_path / "run")
    assert [row["gradient_norm"] > 0 for row in read_metrics(tmp_path / "run")] == [True, False]
    assert [row["loss_weight"] for row in read_metrics(tmp_path / "run")] == [
        pytest.approx(1),
        0,
    ]
    # Momentum of the first step moves nothing in the second.
    assert_same(adapter(tmp_path / "run", 1), adapter(tmp_path / "run", 2))


def test_mean_one_by_completion_divides_by_mean_of_counted_tokens() -> None:
    weights = torch.tensor([9.0, 1, 3, 0, 0, 5, 2])
    options = ObjectiveConfig(skip_tokens=1)
    found = mean_one_by_completion(weights, [3, 2, 2, 0], options)
    assert found.tolist() == [0, 0.5, 1.5, 0, 0, 0, 1]


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, 3e38])
def test_mean_one_by_completion_without_valid_weights_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="negative, not finite or too large to sum"):
        mean_one_by_completion(torch.tensor([1.0, value, 3e38]), [3], ObjectiveConfig())
