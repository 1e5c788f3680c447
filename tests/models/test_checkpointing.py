"""Gradient checkpointing changes no number, in any family that has dropout of some name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from conftest import DEMO
from paint.models.layers import checkpoint_layers
from paint.models.policy import PolicyError, load_policy
from paint.models.structure import dropout_rates
from tiny_models import rate_names, save_tiny, tiny_config, tiny_model

RATE = 0.1

WRAPPERS = {
    "blt": "its encoder's table of hashes has 500,002 rows whatever the config says",
    "emu3": "an image model around a text model of a fixed size",
    "gemma3": "gemma3_text is its text model",
    "gemma3n": "gemma3n_text is its text model",
    "gemma4": "gemma4_text is its text model",
    "gemma4_unified": "gemma4_unified_text is its text model",
    "git": "an image encoder of a fixed size",
    "got_ocr2": "qwen2 is its text model",
    "llama4": "llama4_text is its text model",
    "mllama": "an image model around a text model of a fixed size",
    "musicgen": "audio; its config needs those of three models",
    "musicgen_melody": "audio; its config needs those of three models",
    "phi4_multimodal": "encoders of images and sounds of a fixed size; phi3 is its text model",
    "qwen3_5": "qwen3_5_text is its text model",
    "qwen3_5_moe": "qwen3_5_moe_text is its text model",
    "qwen4_exp": "qwen4_exp_text is its text model",
}
"""Families that cannot be built tiny."""

NO_RUN = {
    "dbrx": "this transformers cannot build it (DbrxAttentionConfig without rope_theta)",
    "diffllama": "it refuses a rate above 0",
    "llama4_text": "get_decoder returns the model with its head",
    "modernbert-decoder": "get_decoder returns the head",
    "reformer": "its backward pass runs in training mode only",
}
"""Families that can be built, but not run as a policy, with or without checkpointing."""

WITHOUT_LAYERS = ("cpmant", "ctrl", "gpt_neox_japanese", "openai-gpt", "xlm", "xlnet")
"""Families without layers that transformers can checkpoint."""

QUICK = ("biogpt", "falcon", "gpt2", "gpt_neox", "mixtral", "opt", "phimoe", "starcoder2")


def families_with_dropout() -> list[str]:
    families = []
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if family in WRAPPERS or rate_names(vars(CONFIG_MAPPING[family]())):
            families.append(family)
    return families


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


def require_same_with_checkpoints(family: str) -> None:
    model = tiny_model(tiny_config(family, dropout=RATE))
    assert dropout_rates(model), family
    loss, gradients = loss_and_gradients(model)
    assert checkpoint_layers(model) >= 2
    again, checkpointed = loss_and_gradients(model)
    assert again == loss
    assert checkpointed.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("family", QUICK)
def test_checkpoint_layers_of_usual_family_changes_no_number(family: str) -> None:
    require_same_with_checkpoints(family)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of old families' own code
def test_checkpoint_layers_of_every_family_changes_no_number() -> None:
    left_out = {*WRAPPERS, *NO_RUN, *WITHOUT_LAYERS}
    families = families_with_dropout()
    assert left_out <= {*families}
    for family in families:
        if family not in left_out:
            require_same_with_checkpoints(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", WITHOUT_LAYERS)
def test_checkpoint_layers_of_family_without_layers_finds_none(family: str) -> None:
    assert checkpoint_layers(tiny_model(tiny_config(family))) == 0


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


def test_load_policy_without_layers_to_checkpoint_is_refused(tmp_path: Path) -> None:
    path = save_tiny(tiny_config("ctrl"), tmp_path)
    config = replace(DEMO, path=path, lora_targets=("Wq",))
    load_policy(config, seed=0)
    with pytest.raises(PolicyError, match=r"CTRLLMHeadModel has no layers .* checkpoint"):
        load_policy(replace(config, gradient_checkpointing=True), seed=0)
