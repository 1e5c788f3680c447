"""Budgets of a step on a GPU, counted without one at the sizes of Qwen3-1.7B."""

import time

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from paint.config import schema as cfg
from paint.models.policy import Policy, _with_adapter, load_tokenizer
from paint.models.teacher import open_teacher

QWEN3 = Qwen3Config(
    hidden_size=2048,
    num_hidden_layers=28,
    intermediate_size=6144,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
    tie_word_embeddings=True,
    attn_implementation="sdpa",
)


@pytest.fixture(scope="module")
def large() -> Policy:
    """Qwen3-1.7B with adapters, without memory for its weights."""
    with torch.device("meta"):
        base = Qwen3ForCausalLM(QWEN3).to(torch.bfloat16)
        model = _with_adapter(base, cfg.ModelConfig(path="large"), seed=0)
    return Policy(model, load_tokenizer("demo"), base.get_output_embeddings(), False, True)


def test_teacher_view_takes_less_than_two_milliseconds(large: Policy) -> None:
    teacher = open_teacher(large, cfg.TeacherConfig())
    assert len(large.adapted) == 28 * 7
    seconds = []
    for _ in range(10):
        start = time.process_time()
        with teacher.view():
            pass
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.002
