"""The benchmark of a decode step, on the demo's model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import decode
from decode import Looks, Options, agreement, main, profile_steps
from paint.inference.engine import Completion
from paint.inference.local import LocalEngine
from paint.models.policy import Policy


def test_main_writes_figures_of_both_steps_and_their_agreement(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    plain, compiled = main(Options(rows=(2,), prompt=12, tokens=6, json=path))
    assert [plain["step"], compiled["step"]] == ["as it is", "compiled"]
    assert plain["tokens_per_s"] > 0
    # Without a GPU both are one step.
    assert compiled["same_rows"] == 2
    assert compiled["same_beginning"] == 1
    assert compiled["largest_gap_between"] == 0
    assert compiled["largest_gap"] < 1e-3
    assert len(json.loads(path.read_text())) == 2


def test_profile_counts_steps_in_the_middle_of_a_call(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Profiler:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            calls.append("start")

        def stop(self) -> None:
            calls.append("stop")

        def key_averages(self) -> list[Any]:
            kinds = [("mm", 40, 80.0), ("norm", 20, 200.0)]
            return [Event(*kind, device_type="DeviceType.CUDA") for kind in kinds]

    looks = Looks()
    engine = LocalEngine(policy, batch_size=1, display=looks)
    sampling = replace(decode.SAMPLING, max_new_tokens=12)
    monkeypatch.setattr(decode, "profile", Profiler)
    monkeypatch.setattr(decode, "on_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    for name, value in {"BEFORE": 2, "PROFILED": 3, "STEPS": 1}.items():
        monkeypatch.setattr(decode, name, value)
    found = profile_steps(looks, lambda: engine.generate([[5] * 9], sampling, [0]))
    assert calls == ["wait", "start", "wait", "stop"]
    assert found == {
        "gpu_ms_a_step": 0.28 / 3,
        "launches_a_step": 20,
        "kernels": {"norm": "6.7 x 10.0 us", "mm": "13.3 x 2.0 us"},
    }


@dataclass
class Event:
    key: str
    count: int
    device_time_total: float
    device_type: str


def test_agreement_ends_where_tokens_differ() -> None:
    some = [Completion((1, 2, 3), (-1.0, -2.0, -3.0), True), Completion((4,), (-1.0,), True)]
    others = [Completion((1, 2, 4), (-1.5, -2.0, -9.0), True), Completion((4,), (-1.0,), True)]
    assert agreement(some, others) == {
        "same_rows": 1,
        "same_beginning": 0.75,
        "mean_gap_between": 0.5 / 3,
        "largest_gap_between": 0.5,
    }
