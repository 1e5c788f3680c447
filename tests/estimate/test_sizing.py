"""Micro-batches and flags of a server that a plan's bytes allow."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import ConfigError
from paint.estimate.plan import (
    BESIDE,
    SERVER_SHARE,
    Machine,
    Plan,
    Split,
    gb,
    make_plan,
    server_flags,
    server_of,
    worst_peak,
)
from paint.training.check import check_config

SHARED = Split(1, 1, True, "")


def planned(model: str, memory: float, split: Split | None = SHARED, gpus: int = 1) -> Plan:
    config = read_recipe(find_recipe(f"paint-qwen3-{model}")).changed("rollout", engine="vllm")
    return make_plan(check_config(config), Machine(gpus, memory), split)


@pytest.mark.parametrize(
    ("model", "memory", "utilization", "sequences"),
    [
        ("1.7b", 80e9, 0.89, 32),
        ("4b", 80e9, 0.82, 32),
        ("8b", 80e9, 0.71, 32),
        ("1.7b", 40e9, 0.78, 32),
        ("4b", 40e9, 0.64, 32),
        ("1.7b", 24e9, 0.64, 32),
        ("1.7b", 16e9, 0.46, 12),
    ],
)
def test_server_flags_leave_trainer_its_bytes(
    model: str, memory: float, utilization: float, sequences: int
) -> None:
    plan = planned(model, memory)
    flags = server_flags(plan)
    assert (flags.utilization, flags.sequences) == (utilization, sequences)
    assert utilization * memory + plan.memory.resident + BESIDE <= memory
    server = server_of(plan)
    assert server.cache == pytest.approx(utilization * memory - 2e9 - server.weights)
    assert server.fits


def test_server_flags_of_own_gpus_are_servers_default_and_all_requests() -> None:
    plan = planned("8b", 80e9, Split(4, 4, False, ""), gpus=8)
    assert server_flags(plan).utilization == SERVER_SHARE
    ahead = plan.config.changed("rollout", batch_size=16, off_policy_steps=2)
    assert server_flags(replace(plan, config=ahead)).sequences == 48


def test_server_flags_keep_users_share() -> None:
    plan = planned("8b", 80e9)
    given = plan.config.changed("rollout", server_args="--gpu-memory-utilization 0.5")
    assert server_flags(replace(plan, config=given)).utilization == 0.5


@pytest.mark.parametrize(("model", "memory"), [("4b", 24e9), ("8b", 40e9), ("8b", 16e9)])
def test_server_flags_without_room_are_refused(model: str, memory: float) -> None:
    plan = planned(model, memory)
    with pytest.raises(ConfigError, match=r"no room for one row of 9,216 tokens; .*nf4, .*--gpus"):
        server_flags(plan)
    server_flags(replace(plan, capacity=48e9))
    if memory > 16e9:
        server_flags(replace(plan, config=plan.config.changed("model", quantization="nf4")))
        server_flags(replace(plan, split=Split(1, 1, False, "")))


def test_machines_of_documents_match_sizes() -> None:
    """The table of three models on three machines, row by row."""
    page = Path(__file__).parents[2] / "docs/how-to/large-models.md"
    machines = {"one H100": (1, 80e9), "one of 24 GB": (1, 24e9), "8 x 80 GB": (8, 80e9)}
    rows = re.findall(r"^\| (\d[\d.]*B) \| (.*) \|$", page.read_text(), re.MULTILINE)
    wanted = []
    for model in ("1.7B", "4B", "8B"):
        for machine, (gpus, memory) in machines.items():
            plan = planned(model.lower(), memory, None, gpus)
            split, config = plan.split, plan.chosen
            try:
                flags = server_flags(plan)
                server = [f"{flags.utilization:.2f}", str(flags.sequences)]
            except ConfigError:
                server = ["refused", "-"]
            cells = [
                machine,
                "shared" if split.shared else f"{split.trainers}+{split.servers}",
                gb(plan.memory.resident),
                gb(worst_peak(plan)),
                f"{config.train.token_limit:,}",
                "on" if config.model.gradient_checkpointing else "off",
                *server,
            ]
            wanted.append((model, " | ".join(cells)))
    assert rows == wanted
