"""Gradient checkpointing changes no number, in any family that has dropout of some name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from conftest import DEMO
from paint.models.layers import checkpoint_layers
from paint.models.policy import load_policy
from paint.resolve.structure import dropout_rates
from tiny_models import save_tiny, tiny_config, tiny_model

RATE = 0.1

QUICK = ("biogpt", "falcon", "gpt2", "gpt_neox", "mixtral", "opt", "phimoe", "starcoder2")


def loss_and_gradients(model: PreTrainedModel) -> tuple[float, dict[str, Tensor]]:
    ids = torch.randint(3, 700, (2, 16), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    log_probs = model.get_output_embeddings()(states).log_softmax(-1)
    loss = -log_probs[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return float(loss.detach()), gradients


@pytest.mark.parametrize("family", QUICK)
def test_checkpoint_layers_of_usual_family_changes_no_number(family: str) -> None:
    model = tiny_model(tiny_config(family, dropout=RATE))
    assert dropout_rates(model), family
    loss, gradients = loss_and_gradients(model)
    assert checkpoint_layers(model) >= 2
    again, checkpointed = loss_and_gradients(model)
    assert again == loss
    assert checkpointed.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


PROMPTS = [[5, 20, 31, 7], [9, 9, 12, 40, 41, 42, 43], [3]]
COMPLETIONS = [[50, 60, 70], [80], [90, 91, 92, 93, 94]]


@pytest.mark.parametrize("family", ["falcon", "gpt2", "opt", "seed_oss"])
def test_load_policy_with_dropout_keeps_states_and_gradients(family: str, tmp_path: Path) -> None:
    """In full training, where most rates would act."""
    path = save_tiny(tiny_config(family, dropout=RATE), tmp_path)
    config = replace(DEMO, path=path, train_mode="full")
    found: list[list[Tensor]] = []
    for checkpointing in (False, True):
        policy = load_policy(replace(config, gradient_checkpointing=checkpointing), seed=0)
        states = policy.hidden_states(PROMPTS, COMPLETIONS)
        (states * torch.linspace(0, 1, states.shape[-1])).sum().backward()
        found.append([states.detach(), *(p.grad for p in policy.trainable if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)
