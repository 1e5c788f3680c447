"""What is saved is known again: adapters by weights and shape, models by every number."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

from conftest import move
from paint.config.schema import Dtype, ModelConfig
from paint.evaluation.generate import checkpoint_digest
from paint.models.exports import export_adapter, export_merged
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.teacher import student_weights
from paint.models.weights import (
    load_trained,
    model_digests,
    read_adapter_shape,
    save_served,
    save_trained,
    weights_digest,
)

DEMO = ModelConfig(path="demo", dtype="float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_save_served_rounds_adapter_as_server_would(dtype: Dtype, tmp_path: Path) -> None:
    policy = load_policy(replace(DEMO, dtype=dtype), seed=0)
    move(policy)
    save_trained(policy, tmp_path / "trained")
    save_served(policy, tmp_path / "served")
    paths = [tmp_path / name / "adapter_model.safetensors" for name in ("trained", "served")]
    trained, served = map(load_file, paths)
    assert trained.keys() == served.keys()
    rounded = {name: value.to(getattr(torch, dtype)) for name, value in trained.items()}
    assert all(torch.equal(value, served[name]) for name, value in rounded.items())
    shapes = [read_adapter_shape(tmp_path / name) for name in ("trained", "served")]
    assert shapes[0] == shapes[1]


def test_adapter_digest_depends_on_weights_and_shape(trained: Policy, tmp_path: Path) -> None:
    save_trained(trained, tmp_path)
    path, before = tmp_path / "adapter_config.json", checkpoint_digest(tmp_path)
    shape = json.loads(path.read_text())
    assert shape["target_modules"] == sorted(shape["target_modules"])
    shape["target_modules"].reverse()
    path.write_text(json.dumps(shape | {"base_model_name_or_path": "moved/elsewhere"}))
    assert checkpoint_digest(tmp_path) == before
    path.write_text(json.dumps(shape | {"lora_alpha": 17}))
    assert checkpoint_digest(tmp_path) != before
    path.write_text(json.dumps(shape))
    with torch.no_grad():
        trained.trainable[0].view(-1)[3] += 1e-4
    save_trained(trained, tmp_path)
    assert checkpoint_digest(tmp_path) != before


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "IA3"},
        {"lora_bias": True},
        {"use_dora": True},
        {"use_rslora": True},
        {"target_parameters": ["experts.down_proj"]},
        {"alpha_pattern": {"q_proj": 160}},
        {"r": "16"},
        {"target_modules": "all-linear"},
    ],
)
def test_read_adapter_shape_of_other_adapter_is_refused(
    policy: Policy, tmp_path: Path, change: dict[str, Any]
) -> None:
    save_trained(policy, tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PolicyError, match=r"adapter_config\.json"):
        read_adapter_shape(tmp_path)


def test_weights_digest_changes_with_any_number(policy: Policy) -> None:
    before = weights_digest(policy)
    assert weights_digest(load_policy(replace(DEMO, lora_rank=2), seed=5)) == before
    generator = torch.Generator().manual_seed(0)
    weights = [p for name, p in policy.base.named_parameters() if "lora_" not in name]
    for weight in weights:
        flat = weight.data.view(-1)
        at = int(torch.randint(len(flat), (), generator=generator))
        kept = flat[at].clone()
        flat[at] = torch.nextafter(kept, torch.tensor(9.0))
        assert weights_digest(policy) != before
        flat[at] = kept
    assert weights_digest(policy) == before


def test_model_digests_ignore_path_and_have_chat_template(policy: Policy, tmp_path: Path) -> None:
    save_trained(load_policy(replace(DEMO, train_mode="full"), seed=0), tmp_path)
    moved, digests = replace(DEMO, path=str(tmp_path)), model_digests(policy)
    assert model_digests(load_policy(moved, seed=0)) == digests
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text("utf-8") + " ", "utf-8")
    other = model_digests(load_policy(moved, seed=0))
    assert other["weights"] == digests["weights"]
    assert other != digests


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_save_trained_nan_is_refused(tuning: Literal["lora", "full"], tmp_path: Path) -> None:
    policy = load_policy(replace(DEMO, train_mode=tuning), seed=0)
    before = [parameter.clone() for parameter in policy.trainable]
    with torch.no_grad():
        policy.trainable[0].view(-1)[3] = torch.inf
    save_trained(policy, tmp_path / "saved")
    with torch.no_grad():
        policy.trainable[0].copy_(before[0])
    with pytest.raises(PolicyError, match=r"saved: .*weight\b.*not finite"):
        load_trained(policy, tmp_path / "saved")
    for parameter, value in zip(policy.trainable, before, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_export_merged_reports_what_rounding_keeps(
    tuning: Literal["lora", "full"], dtype: torch.dtype, tmp_path: Path
) -> None:
    config = replace(DEMO, train_mode=tuning, lora_rank=4)
    policy, base = load_policy(config, seed=0), load_policy(config, seed=0)
    move(policy, by=1e-3)
    save_trained(policy, tmp_path / "trained")
    before = {name: value.clone() for name, value in base.base.named_parameters()}
    found = export_merged(base, tmp_path / "trained", tmp_path / "out", dtype).rounding

    stored, along, squares, errors = load_file(tmp_path / "out/model.safetensors"), 0.0, 0.0, 0.0
    assert {value.dtype for value in stored.values()} == {dtype}
    for name, value in student_weights(policy):
        part = f"{name}.base_layer.weight" if tuning == "lora" else name
        plain = part.replace(".base_layer", "")
        update = (value if tuning == "lora" else value - before[part]).detach().double()
        kept = stored[plain].double() - before[part].detach().double()
        along += float((kept * update).sum())
        squares += float(update.square().sum())
        errors += float((kept - update).square().sum())
    assert found.kept == pytest.approx(along / squares, abs=1e-4)
    assert found.error == pytest.approx((errors / squares) ** 0.5, rel=1e-2, abs=1e-4)
    assert (found.error > 0.01) == (dtype == torch.bfloat16)  # as float32 keeps nearly all


def test_export_adapter_in_16_bits_keeps_nearly_all(trained: Policy, tmp_path: Path) -> None:
    save_trained(trained, tmp_path / "trained")
    for name, dtype in (("exact", torch.float32), ("rounded", torch.bfloat16)):
        (tmp_path / name).mkdir()
        found = export_adapter(tmp_path / "trained", tmp_path / name, dtype)
        assert found.kept == pytest.approx(1, abs=1e-3)
        assert (found.error > 1e-4) == (dtype == torch.bfloat16)
    shape = json.loads((tmp_path / "rounded/adapter_config.json").read_text())
    assert shape["lora_alpha"] == 16
    path = "adapter_model.safetensors"
    exact, rounded = (load_file(tmp_path / name / path) for name in ("exact", "rounded"))
    assert all(torch.equal(rounded[name], value.bfloat16()) for name, value in exact.items())
