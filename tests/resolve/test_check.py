"""What ``auto`` becomes, and a server on the trainer's GPU: on machines that are made up."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.inference.machine import find_machine
from paint.resolve.check import (
    check_training,
    resolve,
    resolve_engine,
    resolve_evaluation,
    with_resolved,
)
from paint.resolve.plan import Machine
from runs import changed

H100, RTX_4090 = 85.0e9, 25.4e9
LONG: dict[str, Any] = {"max_new_tokens": 8192}  # so that auto looks for vLLM


@pytest.fixture(autouse=True)
def has_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default command of servers is on the PATH."""
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "vllm" else None)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Finds a machine on which torch sees so many bytes, with these commands on the PATH."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)

    def find(memory: float, commands: list[str]) -> Machine:
        properties = SimpleNamespace(total_memory=int(memory))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(memory))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
        paths = {name: f"/bin/{name}" for name in commands}
        monkeypatch.setattr("shutil.which", lambda name: paths.get(name))
        return find_machine()

    return find


GPU = Machine(1, H100)
NO_GPU = replace(GPU, gpus=0)


def configured(recipe: str = "paint-qwen3-1.7b", **rollout: Any) -> Config:
    config = read_recipe(find_recipe(recipe)).changed("data", path="demo")
    return config.changed("rollout", **rollout)


FAST = {"bfloat16": 0.5, "float16": 31.0}
SLOW = Machine(memory=1e12, slowdown={"bfloat16": 31.0, "float16": 33.0})


@pytest.mark.parametrize(
    ("machine", "model", "dtype", "note"),
    [
        (Machine(gpus=1, memory=H100), {}, "bfloat16", ""),
        (Machine(memory=1e12, slowdown=FAST), {}, "bfloat16", ""),
        (SLOW, {}, "float32", "float32, since .* about 31 times"),
        (replace(SLOW, memory=9e9), {}, "bfloat16", "bfloat16, as .* would need [0-9.]+ GB; a "),
        (SLOW, {"shard": True}, "bfloat16", "about 31 times"),
        (SLOW, {"train_mode": "full"}, "float32", ""),
        (SLOW, {"dtype": "bfloat16"}, "bfloat16", "float32 is faster"),
    ],
)
def test_resolve_dtype_auto_is_float32_where_the_cpu_multiplies_bfloat16_slowly(
    machine: Machine, model: dict[str, Any], dtype: str, note: str
) -> None:
    config = configured().changed("model", **model).changed("rollout", engine="local")
    run = resolve(check_training(config), machine)
    assert run.config.model.dtype == dtype
    assert run.plan is not None
    assert run.plan.config.model.dtype == dtype
    said = [line for line in (*run.notes, *run.warnings) if line.startswith("model.dtype")]
    assert not said or (said[0] in run.warnings) == ("float32 is faster" in said[0])
    assert len(said) == bool(note)
    assert all(re.search(note, line) for line in said)
    # A resumed run keeps it, whatever the machine is then.
    resumed = with_resolved(config, run.config)
    assert (
        resolve(check_training(resumed), Machine(gpus=1, memory=H100)).config.model.dtype == dtype
    )


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
def test_resolve_engine_auto_is_vllm_for_long_completions_where_it_is_installed(
    found: Any, memory: float, commands: Any, rollout: Any, engine: str, why: str
) -> None:
    config = configured(**rollout)
    machine = found(memory, commands)
    run = resolve_engine(check_training(config), machine)
    assert run.config.rollout.engine == engine
    if why:
        assert re.search(rf"^engine: {engine}, since .*{why}", run.notes[0])
    else:
        assert run.notes == ()
    # The record of a run stays as it is.
    assert resolve_engine(check_training(run.config), machine).config == run.config


def test_resolve_engine_ranks_and_full_weights_generate_themselves() -> None:
    ranks = replace(GPU, ranks=8)
    assert resolve_engine(check_training(configured(**LONG)), ranks).rollout.engine == "local"
    config, long = configured(**LONG), RolloutConfig(**LONG)
    assert resolve_evaluation(long, GPU, config.model)[0].engine == "vllm"
    assert resolve_evaluation(RolloutConfig(), GPU, config.model)[0].engine == "local"


def test_resolve_engine_full_weights_are_sampled_locally_and_else_refused(found: Any) -> None:
    machine, setting = found(H100, ["vllm"]), 'model.train_mode "full"'
    config = configured(**LONG).changed("model", train_mode="full", dtype="float32")
    run = resolve_engine(check_training(config), machine)
    assert run.rollout.engine == "local"
    assert run.notes[0].startswith(f"engine: local, since {setting}")
    served = config.changed("rollout", engine="vllm")
    with pytest.raises(ConfigError, match=f'"local", got "vllm" .{setting}'):
        check_training(served)
    assert resolve_evaluation(config.rollout, machine, config.model)[0].engine == "local"
    with pytest.raises(ConfigError, match=f'"local", got "vllm" .{setting}.*--merged'):
        resolve_evaluation(served.rollout, machine, config.model)


def test_resolve_warns_of_settings_without_effect() -> None:
    settings: dict[str, dict[str, Any]] = {
        "teacher": {"decay": 0.5},
        "validation": {"samples": 3},
        "rollout": {"engine": "local", "server_args": "-inf"},
    }
    used: dict[str, dict[str, Any]] = {
        "teacher": {"weights": "ema"},
        "validation": {"path": "demo"},
        "rollout": {"engine": "vllm"},
    }
    for changes, count in (({}, 3), (used, 0)):
        config = changed("demo-paint", settings, changes)
        lines = resolve(check_training(config), NO_GPU).warnings
        assert sum("has no effect" in line for line in lines) == count


def test_resolve_warns_of_settings_that_are_rarely_meant() -> None:
    config = configured(off_policy_steps=1).changed("objective", divergence="reverse_kl")
    config = config.changed("teacher", weights="ema", every=100).changed("train", steps=100)
    lines = " ".join(resolve(check_training(config), NO_GPU).warnings)
    assert "the teacher never changes" in lines
    assert "off-policy: forward KL tolerates" in lines
    kept = config.changed("teacher", every=99)
    assert "never changes" not in " ".join(resolve(check_training(kept), NO_GPU).warnings)


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
def test_resolve_engine_server_on_trainers_gpu_sleeps(
    rollout: dict[str, Any], sleeps: bool
) -> None:
    config = configured(engine="vllm", **rollout)
    assert resolve_engine(check_training(config), GPU).rollout.colocate == sleeps
    assert not resolve_engine(check_training(config), NO_GPU).rollout.colocate


def test_resolve_engine_given_server_that_cannot_share_is_refused() -> None:
    config = configured("paint-qwen3-8b", engine="vllm")
    wanted = r"8B.* 1 x 25\.4 GB, which also train.* set model\.quantization nf4, .*use larger GPUs"
    with pytest.raises(ConfigError, match=wanted):
        resolve_engine(check_training(config), Machine(1, RTX_4090))
    config = configured(engine="vllm", off_policy_steps=1)
    with pytest.raises(ConfigError, match=r"off_policy_steps .*--gpus 2.*--gpu-memory-utiliz"):
        resolve_engine(check_training(config), GPU)
