"""Layers that the ranks of a machine share: the same bits as whole ones, and a part for each."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from conftest import DEMO, move, untie
from own_server import OwnServer
from paint.config.run_folder import read_metrics
from paint.config.schema import RolloutConfig
from paint.core.demo_files import MODEL
from paint.core.display import Display
from paint.data.problems import Problem
from paint.inference.adapter_sync_check import check_adapter_sync
from paint.inference.engine import Engine, Sampling
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.vllm.pool import VllmEngine
from paint.inference.vllm.process import free_port
from paint.models.policy import Policy, load_policy
from paint.models.sharding import gather_parameters, is_sharded, passes_missing, shard
from paint.models.weights import save_trained, weights_digest
from processes import MODULES, in_two_processes, started, train_command
from runs import (
    Sections,
    adapter,
    assert_same,
    assert_same_history,
    changed,
    line_in_turn,
    train_by_two_ranks,
    wait_for,
)

PROMPTS, COMPLETIONS = [[5, 20, 31, 7], [9, 9, 12]], [[50, 60, 70], [80]]

# Five rows on two ranks, two at a time: one rank has two micro-batches, the other one.
SMALL: Sections = {
    "model": {"lora_rank": 4, "lora_alpha": 8, "shard": True},
    "data": {"limit": 20},
    "rollout": {"max_new_tokens": 24, "batch_size": 4},
    "train": {"steps": 3, "batch_size": 5, "micro_batch_size": 2, "checkpoint_every": 1},
}


def test_shard_in_one_process_keeps_layers() -> None:
    policy = load_policy(replace(DEMO, shard=True), seed=0)
    assert not is_sharded(policy.base)
    assert policy.digest is None
    assert passes_missing(Accelerator(cpu=True), policy.base, 3) == 0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one rank: everything that ranks do, without the others."""
    distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def gradients(policy: Policy) -> list[torch.Tensor]:
    policy.hidden_states(PROMPTS, COMPLETIONS).square().sum().backward()
    return [p.grad for p in policy.trainable if p.grad is not None]


def frozen(policy: Policy) -> list[nn.Parameter]:
    return [weight for weight in policy.base.parameters() if not weight.requires_grad]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_shard_gathered_layers_are_exact(group: None, tmp_path: Path, checkpointing: bool) -> None:
    one, other = (
        load_policy(replace(DEMO, gradient_checkpointing=checkpointing), seed=0) for _ in range(2)
    )
    shard(other.base, "cpu")
    for policy in (one, other):
        move(policy)
    assert weights_digest(one) == weights_digest(other)
    assert torch.equal(*(p.hidden_states(PROMPTS, COMPLETIONS) for p in (one, other)))
    expected, found = gradients(one), gradients(other)
    assert len(expected) == len(found) == len(one.trainable)
    assert all(map(torch.equal, expected, found))
    assert len(frozen(one)) == len(frozen(other))

    save_trained(other, tmp_path / "adapter")  # peft reads all weights for it
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert all(map(torch.equal, gradients(one), gradients(other)))


def test_shard_layers_are_complete_only_within_gather(group: None) -> None:
    policy = load_policy(DEMO, seed=0)
    shard(policy.base, "cpu")
    layer = policy.base.get_decoder().layers[0].mlp.up_proj.get_base_layer()

    def is_part() -> bool:
        return isinstance(layer.weight, DTensor)

    for _ in range(2):
        assert is_part()
        with gather_parameters(policy.base):
            assert not is_part()
            with torch.no_grad():
                policy.hidden_states(PROMPTS, COMPLETIONS)
            assert not is_part()


@pytest.mark.usefixtures("group")
def test_adapter_sync_check_involves_all_ranks_when_sharded(
    policy: Policy, problems: list[Problem], tmp_path: Path, monkeypatch: Any
) -> None:
    shard(policy.base, "cpu")
    asked: list[str] = []

    def spied(_: Policy, engine: Engine, *rest: Any) -> dict[str, float]:
        asked.append(type(engine).__name__)
        return check_adapter_sync(policy, engine, *rest)

    monkeypatch.setattr("paint.inference.factory.check_adapter_sync", spied)
    server = OwnServer(policy, batch_size=4)
    options, sampling = RolloutConfig(engine="vllm"), Sampling(1.0, 1.0, -1, 8)
    setup = EngineSetup(policy, DEMO, options, tmp_path, Display(enabled=False), 64, problems)
    monkeypatch.setattr(VllmEngine, "from_setup", lambda _: server)
    with open_engine(setup) as engine:
        assert [len(c.ids) > 0 for c in engine.generate(PROMPTS, sampling, [1, 2])] == [True, True]
    assert asked == ["Rank0Engine"]


def finish(*commands: list[str]) -> None:
    """Run commands side by side until all have ended well."""
    processes = [started(command) for command in commands]
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output


def assert_same_run(one: Path, other: Path) -> None:
    """Losses, norms of gradients, rollouts and adapters of two runs, bit by bit."""
    assert_same_history(one, other)
    norms = [[row["gradient_norm"] for row in read_metrics(run)] for run in (one, other)]
    assert norms[0] == norms[1]
    assert_same(adapter(one), adapter(other))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two ranks that share the layers, or have them whole, of two models."""
    home = tmp_path_factory.mktemp("ranks")
    own_head = untie(Path(shutil.copytree(MODEL, home / "model")))
    models: dict[str, dict[str, Any]] = {
        "": {},
        "untied-": {"path": own_head, "gradient_checkpointing": True},
    }
    configs = {
        f"{kind}{name}": changed("demo-paint", SMALL, {"model": model | {"shard": is_shared}})
        for kind, model in models.items()
        for name, is_shared in (("shared", True), ("whole", False))
    }
    train_by_two_ranks(configs, home)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "untied-"])
def test_shard_two_ranks_train_bitwise_equal(runs: Path, kind: str) -> None:
    assert_same_run(runs / f"{kind}shared", runs / f"{kind}whole")


@pytest.mark.slow
def test_shard_run_killed_and_resumed_is_bitwise_equal(tmp_path: Path, runs: Path) -> None:
    killed = tmp_path / "killed"
    process = started(in_two_processes(train_command(changed("demo-paint", SMALL), killed)))
    wait_for(lambda: (killed / "checkpoints" / "step-000001").exists(), process)
    launcher = psutil.Process(process.pid)
    for each in [launcher, *launcher.children(recursive=True)]:
        each.kill()
    process.communicate()  # closes the pipe, too
    assert len(read_metrics(killed)) < 3

    finish(in_two_processes([sys.executable, "-m", "paint.cli", "resume", str(killed)]))
    assert_same_run(runs / "shared", killed)


@pytest.mark.slow
def test_shard_two_machines_shard_separately(tmp_path: Path) -> None:
    configs = {
        name: changed("demo-paint", SMALL, {"model": {"shard": is_shared}})
        for name, is_shared in (("shared", True), ("whole", False))
    }
    line, port = line_in_turn(configs, tmp_path), str(free_port())
    # Two launchers of two ranks are two machines to all that run there.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--nnodes", "2", "--master-port", port, "--node-rank"]
    launch = ["env", "ACCELERATE_USE_CPU=true", f"PYTHONPATH={MODULES}", *launch]
    finish(*([*launch, str(rank), *line[1:]] for rank in range(2)))
    assert_same_run(tmp_path / "shared", tmp_path / "whole")


HELD = """
import json, sys
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from paint.config.schema import ModelConfig
from paint.models.policy import load_policy
accelerator = Accelerator(cpu=True)
policy = load_policy(ModelConfig(path="demo", dtype="float32", lora_rank=8, shard=True), seed=0)
held = {
    name: (value.to_local() if isinstance(value, DTensor) else value).numel()
    for name, value in policy.base.named_parameters()
}
with open(sys.argv[1] + str(accelerator.process_index), "w") as file:
    json.dump([policy.digest, held], file)
"""


@pytest.mark.slow
def test_shard_rank_holds_its_part_of_layers(tmp_path: Path, policy: Policy) -> None:
    script = tmp_path / "held.py"
    script.write_text(HELD)
    finish(in_two_processes([sys.executable, str(script), str(tmp_path / "rank")]))
    for rank in range(2):
        digest, held = json.loads((tmp_path / f"rank{rank}").read_text())
        assert digest == weights_digest(policy)
        for name, value in policy.base.named_parameters():
            is_shared = ".layers." in name and "lora_" not in name
            assert held[name] == value.numel() / (2 if is_shared else 1)
