"""Joint layers compute what their layers compute, with the adapters of now."""

import dataclasses

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import TeacherConfig
from paint.models.joint_layers import JointLayers
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from tiny_models import tiny_config, tiny_model

IDS = torch.arange(24).view(4, 6) + 5


def states(policy: Policy) -> Tensor:
    with torch.no_grad():
        found: Tensor = policy.base.get_decoder()(input_ids=IDS, use_cache=False).last_hidden_state
    return found


def test_joint_layers_give_states_of_layers_after_updates_and_of_teacher() -> None:
    policy = load_policy(DEMO, seed=0)
    layers = JointLayers(policy.base)
    for seed in (1, 2):
        move(policy, seed)
        expected = states(policy)
        layers.refresh()
        with layers.used():
            torch.testing.assert_close(states(policy), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(states(policy), expected)
    with open_teacher(policy, TeacherConfig()).view():
        base = states(policy)
        with layers.used():
            torch.testing.assert_close(states(policy), base, rtol=1e-5, atol=1e-5)
    assert (base - expected).abs().max() > 1e-2


def test_joint_layers_join_layers_of_one_input_in_memory_of_weights(trained: Policy) -> None:
    before = sum(p.nbytes for p in trained.base.parameters())
    layers = JointLayers(trained.base)
    names = {module: name for name, module in trained.base.named_modules()}
    kinds = [[names[p.layer].rpartition(".")[2] for p in x.parts] for x in layers.layers[:4]]
    assert kinds == [
        ["q_proj", "k_proj", "v_proj"],
        ["o_proj"],
        ["gate_proj", "up_proj"],
        ["down_proj"],
    ]
    storages = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for p in trained.base.parameters()
    }
    adapters = sum(layer.rank * layer.weight.shape[1] * 4 for layer in layers.layers)
    assert sum(storages.values()) == before + adapters


def test_joint_layers_round_adapters_like_layers_do_in_bfloat16() -> None:
    """Both differ from float64 by the rounding of products in bfloat16, by equal amounts."""
    policy = load_policy(dataclasses.replace(DEMO, dtype="bfloat16"), seed=0)
    move(policy)
    layers = JointLayers(policy.base)
    layers.refresh()
    joint = layers.layers[0]
    x = torch.randn(5, joint.weight.shape[1], dtype=torch.bfloat16)
    for part, found in zip(joint.parts, joint.forward(x), strict=True):
        assert part.a is not None
        assert part.b is not None
        low = (x.double() @ part.a.double().T) @ part.b.double().T
        exact = x.double() @ part.frozen.weight.double().T + part.scale * low
        own = part.layer(x).double()
        error = (found.double() - exact).norm()
        assert error <= 1.5 * (own - exact).norm() + 4e-3 * exact.norm()
        assert error <= 1e-2 * exact.norm()


def test_joint_layers_take_weights_that_were_replaced(trained: Policy) -> None:
    layers = JointLayers(trained.base)
    weight = layers.layers[0].parts[1].frozen.weight
    weight.data = weight.data * 2
    expected = states(trained)
    layers.refresh()
    with layers.used():
        torch.testing.assert_close(states(trained), expected, rtol=1e-5, atol=1e-5)


FAMILIES: dict[str, tuple[list[str], list[int]]] = {
    # q, v, gate with up, down, with biases; k stands between q and v without an adapter
    "qwen2": (["q_proj", "v_proj", "down_proj"], [1, 1, 2, 1]),
    "phi3": (["qkv_proj", "gate_up_proj"], [1, 1]),
    "gpt2": (["c_fc"], []),
}


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("family", FAMILIES)
def test_joint_layers_of_families_give_states_of_layers(policy: Policy, family: str) -> None:
    targets, sizes = FAMILIES[family]
    settings = LoraConfig(r=3, target_modules=targets, init_lora_weights=False)
    model = get_peft_model(tiny_model(tiny_config(family)), settings)
    with torch.no_grad():  # biases start at 0
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(torch.rand(parameter.shape))
    own = dataclasses.replace(policy, model=model)
    layers = JointLayers(own.base)
    assert [len(layer.parts) for layer in layers.layers] == sizes * 2
    layers.refresh()
    expected = states(own)
    with layers.used():
        torch.testing.assert_close(states(own), expected, rtol=1e-5, atol=1e-5)
