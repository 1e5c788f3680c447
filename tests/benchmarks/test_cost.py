"""What the paper's runs would cost: against published counts, a real model's FLOPs, and by hand."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3Model

from paint.config import Config, ConfigError, Context, Data, Grpo, Model, Objective, Rollout, Train
from paint.experiments.ablations import GRIDS
from paint.planning.shapes import SHAPES, Shape
from paint.planning.work import (
    HIGH,
    LOW,
    Generation,
    Lengths,
    Machine,
    Work,
    attention_flops,
    backward_flops,
    decode_seconds,
    forward_flops,
    seconds,
)
from paint.recipe import find_recipe, read_recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import cost
from cost import GPUS, KNOWN, METHODS, ablations, evaluation, plan, span, training

TINY = Shape(
    layers=3, hidden=16, heads=4, intermediate=24, tied=True, kv_heads=2, head_size=8, vocabulary=32
)
PAINT = Config(model=Model(path="Qwen/Qwen3-1.7B"))
OPSD = replace(
    PAINT, context=Context(wrong=0.0, correct=0.0), objective=Objective(mix=0.0, top_fraction=0.0)
)
GRPO = replace(PAINT, train=Train(method="grpo"), rollout=Rollout(max_new_tokens=16_384))
SFT = replace(PAINT, train=Train(method="sft"))
H100 = GPUS["H100"]


@pytest.mark.parametrize(
    ("name", "parameters", "without_embedding"),
    [
        ("Qwen/Qwen3-1.7B", 1.72e9, 1.4e9),
        ("Qwen/Qwen3-4B", 4.02e9, 3.6e9),
        ("Qwen/Qwen3-8B", 8.19e9, 6.95e9),
    ],
)
def test_parameters_are_the_published_ones(
    name: str, parameters: float, without_embedding: float
) -> None:
    assert SHAPES[name].parameters == pytest.approx(parameters, rel=1e-3)
    assert SHAPES[name].weights == pytest.approx(without_embedding, rel=0.01)


def test_parameters_and_flops_are_those_of_a_real_model_with_adapters() -> None:
    length, config = 20, PAINT.model
    model = Qwen3Model(
        Qwen3Config(
            vocab_size=TINY.vocabulary,
            hidden_size=TINY.hidden,
            intermediate_size=TINY.intermediate,
            num_hidden_layers=TINY.layers,
            num_attention_heads=TINY.heads,
            num_key_value_heads=TINY.kv_heads,
            head_dim=TINY.head_size,
            attn_implementation="eager",
        )
    )
    assert sum(p.numel() for p in model.parameters()) == TINY.parameters
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=list(config.lora_targets)))
    # Else the first block's input needs no gradient, and the pass costs a little less.
    adapted.enable_input_require_grads()
    adapters = TINY.adapters(2, config.lora_targets)
    assert sum(p.numel() for p in adapted.parameters() if p.requires_grad) == adapters

    ids = torch.arange(length)[None]
    with FlopCounterMode(display=False) as forward:
        hidden = adapted(input_ids=ids).last_hidden_state
    with FlopCounterMode(display=False) as backward:
        hidden.sum().backward()
    masked = attention_flops(
        TINY, length
    )  # eager attention also computes what the causal mask hides
    assert forward.get_total_flops() == forward_flops(TINY, adapters, length) + masked
    assert backward.get_total_flops() == backward_flops(TINY, adapters, length) + 2 * masked


@pytest.mark.parametrize("config", [PAINT, OPSD, GRPO, SFT], ids=METHODS)
def test_twice_the_steps_cost_twice_as_much(config: Config) -> None:
    once = training(config, LOW)
    twice = training(
        replace(config, train=replace(config.train, steps=2 * config.train.steps)), LOW
    )
    assert once.flops > 0
    assert (twice.generated, twice.scored) == (2 * once.generated, 2 * once.scored)
    assert twice.flops == pytest.approx(2 * once.flops)
    assert seconds(twice, H100, 1) == pytest.approx(2 * seconds(once, H100, 1))


def test_twice_the_tokens_cost_more_than_twice_as_much_and_less_than_four_times() -> None:
    short, long = (
        training(GRPO, replace(LOW, problem=problem, brief=brief))
        for problem, brief in ((500, 4000), (1000, 8000))
    )
    assert (long.generated, long.scored) == (2 * short.generated, 2 * short.scored)
    assert 2 < long.flops / short.flops < 4
    assert 2 < seconds(long, H100, 1) / seconds(short, H100, 1) < 4


@pytest.mark.parametrize("path", KNOWN)
@pytest.mark.parametrize("lengths", [LOW, HIGH], ids=["low", "high"])
def test_eight_gpus_are_faster_and_at_most_eight_times(path: str, lengths: Lengths) -> None:
    for config in (PAINT, OPSD, GRPO, SFT):
        sized = replace(config, model=replace(config.model, path=path))
        for work in (
            training(sized, lengths),
            evaluation(sized, lengths, policies=5, sets=3, at_once=64),
        ):
            for machine in GPUS.values():
                gain = seconds(work, machine, 1) / seconds(work, machine, 8)
                assert 1 < gain <= 8 * (1 + 1e-9)


def test_completions_are_cut_at_the_limit_and_never_longer() -> None:
    endless = replace(HIGH, brief=math.inf, thought=math.inf, contest=math.inf)
    assert training(PAINT, endless).generated == 100 * 32 * 1024
    assert training(GRPO, endless).generated == 100 * 32 * 16_384
    assert training(SFT, endless).generated == 0
    assert (
        evaluation(PAINT, endless, policies=6, sets=3, at_once=64).generated
        == 6 * 3 * 30 * 12 * 38_912
    )
    assert training(PAINT, replace(LOW, brief=10)).generated == 100 * 32 * 10


def test_a_step_of_each_method_costs_what_it_costs_by_hand() -> None:
    shape, lengths = (
        SHAPES["Qwen/Qwen3-1.7B"],
        replace(LOW, problem=100, solution=200, trace=3000, brief=1000),
    )
    adapters = shape.adapters(64, PAINT.model.lora_targets)
    head, read = 2 * 2048 * 151_936, 1100
    student = forward_flops(shape, adapters, read) + backward_flops(shape, adapters, read)

    def row(config: Config) -> tuple[float, float]:
        (scoring,) = training(config, lengths).scorings
        return scoring.tokens, scoring.flops

    assert row(OPSD) == (2400, student + forward_flops(shape, 0, 1300) + 3 * head * 1000)
    assert row(PAINT) == (2330, student + forward_flops(shape, 0, 1230) + 3 * head * 1000)
    assert row(GRPO) == (1100, student + 2 * head * 1000)
    anchored = replace(GRPO, grpo=Grpo(kl=0.1, iterations=2))
    assert row(anchored) == (2200, student + forward_flops(shape, 0, read) + 3 * head * 1000)
    assert training(anchored, lengths).scored == 2 * 100 * 32 * 2200
    of_300 = forward_flops(shape, adapters, 300) + backward_flops(shape, adapters, 300)
    assert row(SFT) == (300, of_300 + 2 * head * 200)
    assert row(replace(SFT, data=Data(solution_field="trace")))[0] == 3100
    # In two chunks, the selected positions are visited twice; checkpointing runs the blocks once
    # more.
    long = replace(
        PAINT,
        rollout=Rollout(max_new_tokens=2000),
        model=replace(PAINT.model, gradient_checkpointing=True),
    )
    (scoring,) = training(long, replace(lengths, brief=2000)).scorings
    passes = 2 * forward_flops(shape, adapters, 2100) + backward_flops(shape, adapters, 2100)
    passes += forward_flops(shape, 0, 2230)
    assert scoring.flops == pytest.approx(passes + 3 * 1.03 * head * 2000, rel=1e-12)


def test_one_completion_takes_the_time_to_read_the_weights_for_each_token() -> None:
    work, part = (
        Work(TINY, adapters=0),
        Generation(rounds=1, completions=1, at_once=64, prompt=10, length=20),
    )
    endless = Machine(flops=math.inf, bandwidth=1e6, memory=1e9)
    cache = 2 * 3 * 2 * 8 * 2
    bytes_a_token = 2 * (TINY.weights + TINY.head) + cache * (10 + 20 / 2)
    assert decode_seconds(work, part, endless, 1) == pytest.approx(20 * bytes_a_token / 0.7e6)
    # Samples in one batch share the reading of the weights, until the memory is full.
    together = decode_seconds(work, part, endless, 4)
    assert together == pytest.approx(20 * (bytes_a_token + 3 * cache * 20) / 0.7e6)
    full = replace(endless, memory=(2 * TINY.parameters + 2.5 * cache * 20) / 0.9)
    assert decode_seconds(work, part, full, 4) == pytest.approx(
        2 * decode_seconds(work, part, endless, 2)
    )


def test_the_ablations_are_eighteen_cells_of_which_sixteen_differ_paint_and_opsd_among_them() -> (
    None
):
    assert sum(len(grid.points) for grid in GRIDS.values() if grid.is_papers) == 18
    assert len(ablations(PAINT)) == 16
    assert set(ablations(PAINT)) > {PAINT, OPSD}


def test_a_setting_that_the_arithmetic_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="knows only LoRA"):
        training(
            replace(PAINT, model=Model(path="Qwen/Qwen3-1.7B", tuning="full", dtype="float32")), LOW
        )


def test_a_span_shows_low_high_and_limit() -> None:
    assert span([0.123, 4.56, 1234.6]) == "0.12 to 4.6 (1,235)"
    assert span([0.0099, 1.0, 12.34]) == "<0.01 to 1.0 (12)"
    assert span([0, 0, 0]) == "-"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", KNOWN)
def test_the_recipe_of_each_method_and_model_has_a_cost(method: str, path: str) -> None:
    config = read_recipe(find_recipe(f"{method}-{path.split('/')[1].lower()}"))
    assert config.model.path == path
    assert training(config, LOW).flops > 0


def test_a_plan_counts_every_evaluated_policy_and_ablates_the_small_model_alone() -> None:
    small, large = plan("qwen3-1.7b", LOW), plan("qwen3-8b", LOW)

    def rounds(works: list[Work]) -> int:
        return sum(part.rounds for work in works for part in work.generations)

    left = 5 + 5 + 15_000 // 500 + 19  # sft's last checkpoint is that of its last step, 1,875
    assert rounds(large[f"their {left} checkpoints: three benchmarks"]) == left * 3
    assert rounds(large["base: three benchmarks"]) == 3
    assert rounds(small["their last checkpoints, base: AIME 2024"]) == 16 + 1
    assert len(large["all"]) == 4 + 2
    assert len(small["all"]) == 4 + 2 + 16 + 1


def test_the_tables_are_printed_as_markdown_one_for_each_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [cost.__file__, "--markdown"])
    cost.main()
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("**")] == [
        f"**{path}**" for path in KNOWN
    ]
    stated = (Path(cost.__file__).parent.parent / "docs" / "results.md").read_text().splitlines()
    rows = [line for line in printed.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == 3 + 9 + 7 + 7  # a head each; 1.7B has its ablations, too
    assert [row for row in rows if row not in stated] == []  # docs/results.md says what this prints
