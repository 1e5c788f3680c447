"""Who trains and who serves, what fits, what is refused, and what is said of it."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paint.cli import _override, main
from paint.config import Config, ConfigError, Model, Rollout, Train
from paint.display import Display
from paint.plan import (
    Plan,
    Split,
    divide,
    longest_rows,
    make_plan,
    require_fit,
    server_flag,
    usual_rows,
    ways_out,
)
from paint.planning.report import lines, start_lines
from paint.planning.shapes import SHAPES
from paint.planning.work import LIMIT, MACHINES, machine_of, phases_of_a_row
from paint.recipe import find_recipe, read_recipe
from paint.training import run

DOCUMENT = Path(__file__).parents[2] / "docs/plan.md"
RECIPE = read_recipe(find_recipe("paint-qwen3-8b"))
SERVED = replace(RECIPE, rollout=replace(RECIPE.rollout, engine="vllm"))
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def of_model(path: str, config: Config = SERVED, **changes: object) -> Config:
    return replace(config, model=replace(config.model, path=path, **changes))  # type: ignore[arg-type]


# Who trains and who serves


def test_ranks_generate_where_no_server_of_ours_is_asked_for() -> None:
    assert divide(RECIPE, 8) == Split(8, 0, False, 'rollout.engine is "local"')
    elsewhere = replace(SERVED, rollout=replace(SERVED.rollout, urls=("http://a:1",)))
    split = divide(elsewhere, 8, 2)
    assert (split.trainers, split.servers, split.shared) == (16, 0, False)
    sft = replace(SERVED, train=Train(method="sft"))
    assert divide(sft, 4).servers == 0


def test_one_gpu_and_sleep_do_both_in_turns() -> None:
    assert divide(SERVED, 1).shared
    asleep = replace(SERVED, rollout=replace(SERVED.rollout, sleep=True))
    split = divide(asleep, 8)
    assert (split.trainers, split.servers, split.shared) == (8, 8, True)


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
@pytest.mark.parametrize("tokens", [1024, 16_384])
def test_all_gpus_are_used_once_and_the_step_is_the_shortest(gpus: int, tokens: int) -> None:
    config = replace(SERVED, rollout=replace(SERVED.rollout, max_new_tokens=tokens))
    config = replace(config, train=replace(config.train, micro_batch_size=1))
    plan = make_plan(config, gpus)
    assert not plan.split.shared
    assert plan.split.trainers + plan.split.servers == gpus
    others = [
        replace(plan, split=Split(gpus - servers, servers, False, "")).step
        for servers in range(1, gpus)
    ]
    assert plan.step == min(others)


def test_longer_completions_get_more_servers() -> None:
    short, long = (
        divide(replace(SERVED, rollout=replace(SERVED.rollout, max_new_tokens=tokens)), 8).servers
        for tokens in (64, 8192)
    )
    assert short < long


def test_several_machines_serve_as_whole_machines() -> None:
    for nodes in (2, 3, 4):
        split = divide(SERVED, 8, nodes)
        assert split.servers % 8 == 0
        assert 0 < split.servers < 8 * nodes


def test_no_more_gpus_train_than_there_are_rows() -> None:
    config = replace(RECIPE, train=replace(RECIPE.train, batch_size=4))
    assert divide(config, 8).trainers == 4


def test_a_large_model_is_served_by_several_gpus_and_shares_where_nothing_is_left() -> None:
    plan = make_plan(of_model(LLAMA), 8)
    assert plan.server is not None
    assert plan.server.gpus == 4
    assert plan.split.shared
    assert plan.sleeps
    given = replace(SERVED.rollout, server_args="--tensor-parallel-size 8 -x")
    eight = make_plan(replace(of_model(LLAMA), rollout=given), 8)
    assert eight.server is not None
    assert eight.server.gpus == 8


def test_server_arguments_are_read_as_vllm_reads_them() -> None:
    said = "--gpu-memory-utilization 0.4 --a=b --gpu-memory-utilization=0.3 --last"
    config = replace(SERVED, rollout=replace(SERVED.rollout, server_args=said))
    assert server_flag(config, "--gpu-memory-utilization") == "0.3"
    assert server_flag(config, "--a") == "b"
    assert server_flag(config, "--last") is None
    assert server_flag(config, "--none") is None
    plan = make_plan(config)
    assert not plan.sleeps
    assert plan.room == pytest.approx(0.6 * 80e9)


# What fits


def test_the_longest_lengths_are_the_longest_that_fit() -> None:
    plan = make_plan(RECIPE, 1, 1, 48e9)

    def with_completion(tokens: int) -> Plan:
        rollout = replace(RECIPE.rollout, max_new_tokens=tokens)
        return replace(plan, config=replace(RECIPE, rollout=rollout))

    most = plan.longest_completion
    assert with_completion(most).fits
    assert not with_completion(most + 1).fits
    rows = plan.longest
    most = plan.longest_prompt
    assert plan.peak(replace(rows, teacher_prompt=most)) <= plan.room
    longer = replace(rows, teacher_prompt=most + 1)
    assert plan.peak(longer) > plan.room or most + rows.completion == plan.shape.positions


def test_a_model_takes_no_more_than_its_positions() -> None:
    rows = longest_rows(make_plan(read_recipe(find_recipe("lab-paint")), 0))
    assert rows.teacher_prompt + rows.completion == 1024
    assert make_plan(RECIPE, 8, 1, 900e9).longest_completion == 40_960 - 250


def test_usual_rows_have_shorter_references() -> None:
    plan = make_plan(RECIPE)
    assert usual_rows(plan) == replace(plan.longest, teacher_prompt=1250)
    sft = replace(plan, config=replace(RECIPE, train=Train(method="sft")))
    assert usual_rows(sft).completion == 1000
    assert longest_rows(sft).completion == 8192 - 250


def test_layers_divided_over_gpus_take_less() -> None:
    plan = make_plan(of_model("Qwen/Qwen3-32B", RECIPE), 8)
    divided = replace(plan, sharded=True)
    assert not plan.fits
    assert divided.fits
    assert divided.shards == 8
    assert divided.memory.layers == plan.memory.layers / 8


# What is refused


def test_a_start_that_fits_is_not_refused() -> None:
    require_fit(make_plan(RECIPE, 1, 1, 80e9))
    require_fit(make_plan(read_recipe(find_recipe("lab-paint")), 1, 1, 24e9))


def test_references_that_are_seldom_so_long_are_no_reason_to_refuse() -> None:
    plan = make_plan(RECIPE, 1, 1, 25e9)
    assert not plan.fits
    require_fit(replace(plan, config=replace(RECIPE, rollout=Rollout(batch_size=4))))


@pytest.mark.parametrize(
    ("config", "memory", "ways"),
    [
        (of_model("Qwen/Qwen3-8B", gradient_checkpointing=False), 24e9, ["checkpointing"]),
        (
            replace(
                RECIPE,
                rollout=replace(RECIPE.rollout, max_new_tokens=16_384),
                train=replace(RECIPE.train, micro_batch_tokens=2**20),
            ),
            48e9,
            ["micro-batch-size 1"],
        ),
        (of_model("Qwen/Qwen3-32B", RECIPE), 48e9, ["--model.shard on 4 GPUs", "GPUs of 141 GB"]),
        (of_model(LLAMA, RECIPE), 80e9, ["--model.shard on"]),
    ],
)
def test_what_cannot_fit_is_refused_with_what_would(
    config: Config, memory: float, ways: Sequence[str]
) -> None:
    plan = make_plan(config, 1, 1, memory, split=Split(1, 0, False, ""))
    with pytest.raises(
        ConfigError, match=r"needs about \d+.* GB on each of 1 training GPU"
    ) as said:
        require_fit(plan)
    for way in ways:
        assert way in str(said.value)


@pytest.mark.parametrize("together", [4_096, 65_536])
def test_a_way_out_fits_when_it_is_taken(together: int) -> None:
    config = replace(
        RECIPE,
        rollout=replace(RECIPE.rollout, max_new_tokens=16_384),
        train=replace(RECIPE.train, micro_batch_tokens=together),
    )
    plan = make_plan(config, 1, 1, 24e9)
    shorter = next(way for way in ways_out(plan, usual_rows) if "max-new-tokens" in way)
    # Rows as long as these go alone by themselves, unless more tokens may go together.
    assert ("--train.micro-batch-size 1" in shorter) == (together == 65_536)
    flags = ["--train.micro-batch-tokens", str(together), *shorter.replace(" with ", " ").split()]
    changed = replace(plan, config=_override(find_recipe("paint-qwen3-8b"), flags, "plan"))
    assert changed.peak(usual_rows(changed)) <= changed.room


def test_a_run_says_its_plan_and_refuses_only_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = SimpleNamespace(total_memory=25.3e9, name="NVIDIA GeForce RTX 4090")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: card)
    large = of_model("Qwen/Qwen3-14B", RECIPE)

    def start(config: Config, device: str) -> str:
        run._plan(config, 1, torch.device(device), Display())
        return capsys.readouterr().out

    with pytest.raises(
        ConfigError, match=r"there are 25\.3 .*; take --rollout|take --model\.shard"
    ):
        start(large, "cuda")
    assert "GB are missing" in start(large, "cpu")
    assert "fits: yes" in start(read_recipe(find_recipe("lab-paint")), "cuda")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16e9))
    assert " of 16.0 GB to train (" in start(read_recipe(find_recipe("lab-paint")), "cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # which share the machine's memory
    assert " of 8.00 GB to train (" in start(read_recipe(find_recipe("lab-paint")), "cpu")
    assert start(of_model("owner/none"), "cuda").startswith('no plan: model.path "owner/none"')


# How long


def test_a_step_takes_its_flops_at_a_share_of_the_peak() -> None:
    plan = make_plan(RECIPE, 8)
    flops = phases_of_a_row(RECIPE, SHAPES["Qwen/Qwen3-8B"], LIMIT)
    assert plan.seconds["backward"] == pytest.approx(4 * flops["backward"] / (0.4 * 989e12))
    assert plan.step == pytest.approx(sum(plan.seconds.values()))


def test_twice_the_gpus_take_half_the_passes_and_divided_layers_may_wait() -> None:
    one, two = (make_plan(RECIPE, gpus).seconds["loss"] for gpus in (1, 2))
    assert one == pytest.approx(2 * two)
    slow = machine_of(48e9)
    assert slow.link < MACHINES["H100"].link
    config = replace(RECIPE, train=replace(RECIPE.train, micro_batch_size=1))
    config = replace(config, rollout=replace(config.rollout, max_new_tokens=64))
    plan = replace(make_plan(config, 8, 1, 48e9), sharded=True)
    assert plan.seconds["waiting for layers"] > 0
    assert "waiting for layers" not in make_plan(RECIPE, 8).seconds


def test_servers_that_sleep_are_woken_in_every_step() -> None:
    asleep = make_plan(replace(SERVED, rollout=replace(SERVED.rollout, sleep=True)))
    assert asleep.seconds["sleep and wake"] == 4 * asleep.shape.parameters / 25e9


def test_a_gpu_is_known_by_its_name_or_its_memory() -> None:
    assert machine_of(85e9, "NVIDIA A100-SXM4-80GB").flops == 312e12
    assert machine_of(80e9) == MACHINES["H100"]
    assert machine_of(141e9) == MACHINES["H200"]
    assert machine_of(22e9).flops == MACHINES["RTX 4090"].flops
    assert machine_of(22e9).memory == 22e9


# What is said


@pytest.mark.parametrize(
    ("config", "gpus", "nodes"),
    [(RECIPE, 1, 1), (RECIPE, 8, 1), (SERVED, 8, 2), (of_model(LLAMA), 8, 1)],
)
def test_the_plan_names_every_part_and_says_that_it_is_an_estimate(
    config: Config, gpus: int, nodes: int
) -> None:
    plan = make_plan(config, gpus, nodes)
    text = "\n".join(lines(plan))
    assert "an estimate, nothing was loaded" in text.splitlines()[0]
    for part in ("adapters", "optimizer", "gradients", "peak", "longest completion", "assumed"):
        assert part in text
    assert ("server " in text) == bool(plan.split.servers)
    assert max(map(len, lines(plan))) < 250


def test_a_start_says_two_lines() -> None:
    first, second = start_lines(make_plan(RECIPE, 8))
    assert first == (
        "plan, an estimate: at most 21.4 of 80.0 GB to train on each of 8 ranks (base 16.4, what "
        "is trained 2.79; most beside it in the phase loss: 2.23); fits: yes, with 50.6 GB to spare"
    )
    assert second.startswith("plan: a step about 7.9 s (rollout 7 s, teacher forward 0.28 s, ")


def test_the_documents_tables_are_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| (?:Qwen3|Llama|SmolLM2|lab).*$", text, re.MULTILINE)
    blocks = re.findall(r"^```\n(for .*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in [line for block in blocks for line in _unrolled(block)]:
        assert main(line.split()[1:]) == 0
        assert rows.pop(0) == capsys.readouterr().out.strip()
    assert not rows


def _unrolled(block: str) -> list[str]:
    """The commands of a shell's nested loops."""
    loops = re.findall(r"^for (\w+) in (.*); do$", block, re.MULTILINE)
    [command] = re.findall(r"^paint plan .*$", block, re.MULTILINE)
    lines = [command]
    for name, choices in loops:
        lines = [line.replace(f"${name}", one) for line in lines for one in shlex.split(choices)]
    return lines


def test_the_command_takes_a_recipes_flags_and_refuses_what_it_cannot_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "paint-qwen3-8b", "--gpus", "2", "--train.micro-batch-size", "1"]) == 0
    assert "micro-batches of 1;" in capsys.readouterr().out
    assert main(["plan", "paint-qwen3-8b", "--model.path", "owner/none"]) == 2
    assert "has no config.json here" in capsys.readouterr().err
    assert main(["plan", "paint-qwen3-8b", "--model.lora-targets", "experts"]) == 2
    assert "model.lora_targets names experts" in capsys.readouterr().err


def test_steps_ahead_run_beside_the_rest() -> None:
    plan = make_plan(SERVED, 8)
    rollout = plan.seconds["rollout"]
    rest = math.fsum(plan.seconds.values()) - rollout
    assert plan.step == pytest.approx(rollout + rest)
    ahead = replace(SERVED, rollout=replace(SERVED.rollout, ahead=1))
    assert replace(plan, config=ahead).step == pytest.approx(max(rollout, rest))


def test_full_tuning_is_planned() -> None:
    config = Config(model=Model(path="Qwen/Qwen3-1.7B", tuning="full", dtype="float32"))
    plan = make_plan(config)
    assert plan.memory.optimizer == 8 * plan.shape.parameters
    assert "all are trained" in "\n".join(lines(plan))
