"""What ``auto`` becomes, and a server on the trainer's GPU: on machines that are made up."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.core.display import Display
from paint.inference.resolve import resolve_evaluation, resolve_training

H100, RTX_4090 = 85.0e9, 25.4e9
LONG: dict[str, Any] = {"max_new_tokens": 8192}  # so that auto looks for vLLM
QUIET = Display(enabled=False)

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes torch see a GPU with so many bytes (0: none), and these commands on the PATH."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def make(memory: float = H100, *commands: str) -> None:
        properties = SimpleNamespace(total_memory=int(memory))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(memory))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        found = {name: f"/bin/{name}" for name in commands}
        monkeypatch.setattr("shutil.which", lambda name: found.get(name))

    return make


def configured(recipe: str = "paint-qwen3-1.7b", **rollout: Any) -> Config:
    return read_recipe(find_recipe(recipe)).changed("rollout", **rollout)


@pytest.mark.parametrize(
    ("memory", "commands", "rollout", "engine", "why"),
    [
        (0, ["vllm"], LONG, "local", "torch sees no GPU"),
        (H100, ["vllm"], {}, "local", "completions have at most 1,024 tokens"),
        (H100, ["vllm"], {"max_new_tokens": 4096}, "local", "completions have at most 4,096"),
        (H100, ["vllm"], {"max_new_tokens": 4097}, "vllm", "completions are long"),
        (H100, [], LONG, "local", "`vllm` is not on the PATH"),
        (H100, ["uvx"], LONG, "local", "`vllm` is not on the PATH"),  # nothing is downloaded
        (H100, ["vllm"], LONG, "vllm", "`vllm serve` can be started"),
        (H100, ["env"], {"server": "env A=1 vllm serve"} | LONG, "vllm", "`env A=1 vllm serve`"),
        (H100, ["uvx"], {"server": "mine serve"} | LONG, "local", "`mine` is not"),
        (0, [], {"urls": ("http://node1:8000",)}, "vllm", "servers are named"),
        (H100, ["vllm"], {"engine": "local"} | LONG, "local", ""),
        (H100, ["vllm"], {"off_policy_steps": 1} | LONG, "local", "off_policy_steps"),
        (RTX_4090 / 2, ["vllm"], LONG, "local", "no room for one row of 16,384 tokens"),
    ],
)
def test_resolve_training_auto_is_vllm_for_long_completions_where_it_is_installed(
    machine: Machine, capsys: Any, memory: float, commands: Any, rollout: Any, engine: str, why: str
) -> None:
    machine(memory, *commands)
    config = resolve_training(configured(**rollout), Display())
    assert config.rollout.engine == engine
    said = capsys.readouterr().out
    assert re.search(rf"engine: {engine}, since .*{why}" if why else "^$", said)
    assert resolve_training(config, QUIET) == config  # the record of a run stays as it is


def test_resolve_training_ranks_and_full_weights_generate_themselves(machine: Machine) -> None:
    machine(H100, "vllm")
    assert resolve_training(configured(**LONG), QUIET, 8).rollout.engine == "local"
    full = configured(**LONG).changed("model", train_mode="full", dtype="float32")
    assert resolve_training(full, QUIET).rollout.engine == "local"
    assert resolve_evaluation(RolloutConfig(**LONG), QUIET, is_full=True).engine == "local"
    assert resolve_evaluation(RolloutConfig(**LONG), QUIET, is_full=False).engine == "vllm"
    assert resolve_evaluation(RolloutConfig(), QUIET, is_full=False).engine == "local"


@pytest.mark.parametrize(
    ("rollout", "sleeps"),
    [
        ({}, True),
        ({"server_args": "--gpu-memory-utilization 0.3"}, False),
        ({"server": "env CUDA_VISIBLE_DEVICES=1 vllm serve"}, False),
        ({"server_gpus": ("1",)}, False),
        ({"urls": ("http://node1:8000",)}, False),
    ],
)
def test_resolve_training_server_on_trainers_gpu_sleeps(
    machine: Machine, rollout: dict[str, Any], sleeps: bool
) -> None:
    machine(H100)
    config = resolve_training(configured(engine="vllm", **rollout), QUIET)
    assert config.rollout.colocate == sleeps
    machine(0)
    assert not resolve_training(configured(engine="vllm", **rollout), QUIET).rollout.colocate


def test_resolve_training_given_server_that_cannot_share_is_refused(machine: Machine) -> None:
    machine(RTX_4090)
    config = configured("paint-qwen3-8b", engine="vllm")
    with pytest.raises(ConfigError, match=r"8B.* 1 x 25\.4 GB, which also train.* use .*48 GB"):
        resolve_training(config, QUIET)
    machine(H100)
    config = configured(engine="vllm", off_policy_steps=1)
    with pytest.raises(ConfigError, match=r"off_policy_steps .*--gpus 2.*--gpu-memory-utiliz"):
        resolve_training(config, QUIET)
