"""Pretraining of the embedded model: its examples, and that the shipped files come from it."""

import json
from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

from demo_problems import is_held_out, random_chains
from paint.core.demo_files import MODEL
from paint.models.policy import Policy
from pretrain_demo import (
    SLIP_RATE,
    build_tokenizer,
    slip_rates,
    write_problems,
)


def test_write_problems_reproduces_shipped_files_and_disjoint_split(tmp_path: Path) -> None:
    write_problems(tmp_path)
    for name in ("train.jsonl", "held_out.jsonl"):
        assert (tmp_path / name).read_text() == (MODEL / name).read_text()
    train, test = (
        {json.loads(line)["problem"] for line in (MODEL / name).read_text().splitlines()}
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert not train & test
    assert len(train) == 1000
    assert len(test) == 200
    assert all(is_held_out(chain) for chain in random_chains(50, seed=9, held_out=True))


def test_build_tokenizer_reproduces_shipped_tokenizer(policy: Policy) -> None:
    made = build_tokenizer()
    text = "<|im_start|>user\nStart at $47$<|im_end|>\n<think>\n47+38 and ünknown words</think>"
    assert made.get_vocab() == policy.tokenizer.get_vocab()
    assert made(text)["input_ids"] == policy.tokenizer(text)["input_ids"]
    assert policy.decode(made(text)["input_ids"], special=True) == text


def test_demo_model_uses_only_steps_stated_in_prompt() -> None:
    chains = random_chains(40, seed=5, held_out=True)
    model = Qwen3ForCausalLM.from_pretrained(MODEL)
    found = slip_rates(model, build_tokenizer(), chains)
    for view in ("hidden", "other", "wrong answer"):
        assert found[view] == pytest.approx(found["alone"], abs=0.004), view
    assert found["alone"] == pytest.approx(SLIP_RATE, abs=0.004)
    assert found["told"] < found["alone"] / 4
    assert found["invented"] < 0.02  # read, since nothing else can tell it
