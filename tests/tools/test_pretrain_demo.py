"""Pretraining of the embedded model: its examples, and that the shipped files come from it."""

import json
import random
from pathlib import Path
from typing import get_args

import pytest
from transformers import Qwen3ForCausalLM

from demo_problems import apply, is_held_out, random_chains, visible_steps
from paint.demo.files import MODEL
from paint.models.policy import Policy
from pretrain_demo import (
    SLIP_RATE,
    View,
    build_tokenizer,
    shown_messages,
    slip_rates,
    training_chain,
    write_problems,
)


@pytest.mark.parametrize("view", get_args(View))
def test_pretraining_messages_copy_visible_steps_and_err_elsewhere(view: View) -> None:
    rng = random.Random(1)
    told = slips = others = 0
    for _ in range(200):
        chain = training_chain(rng)
        messages = shown_messages(chain, view, rng)
        assert chain.problem in messages[0]["content"]
        known = visible_steps("\n".join(message["content"] for message in messages))
        worked = chain.worked(SLIP_RATE, rng, known)
        for step, result in visible_steps(worked).items():
            if step in known:
                told += 1
                assert known[step] == result
            else:
                others += 1
                slips += apply(*step) != result

    assert (told > 1000) == (view in ("own", "rationale", "two turns"))
    if view == "two turns":  # its own lines of the first turn tell every step
        assert others == 0
    else:  # a standard deviation of 1,000 steps, the fewest, is below 0.006
        assert abs(slips / others - SLIP_RATE) < 0.02


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
