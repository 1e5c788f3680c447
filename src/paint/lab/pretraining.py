"""Make the lab's model: its tokenizer, its habits, its weights (`python -m paint.lab.pretraining`).

The model is a Qwen3 architecture of well under a million parameters. It learns three habits on the
lab's chains, so that it stands to them roughly as a real reasoning model stands to competition
problems:

- Alone, it works line by line and slips in 18 % of the results, so that about half of its answers
  are right.
- With a reference in its prompt it works in the same style. It does not slip where the reference
  shows the result, and slips in 10 % of the results that are hidden. So it matters how much is
  revealed, as it does for a real model.
- In thinking mode it does the same inside a think block, and then answers.

Left out: everything that a general language model would need. The lab's claims are about the
method, not about language.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from paint import files
from paint.context import MARKER, mask_solution, student_messages, teacher_messages
from paint.lab.problems import Chain, is_held_out, random_chain, random_chains

SLIP_RATE = 0.18
SLIP_RATE_HIDDEN = 0.10
SHARE_TEACHER = 0.4
SHARE_THINKING = 0.1
SHARE_COMPLETE = 0.25

# Qwen3's chat format without tools: thinking is the default; switched off, a think block is closed
# at once, empty.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)
ADDED_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

Messages = list[dict[str, str]]


def pretraining_example(rng: random.Random) -> tuple[Messages, bool, str]:
    """Messages, whether thinking is on, and the completion without its end token."""
    chain = random_chain(rng)
    while is_held_out(chain):
        chain = random_chain(rng)

    if rng.random() < SHARE_TEACHER:
        context = revealed_reference(chain, rng)
        messages = teacher_messages(chain.problem, context, complete=MARKER not in context)
        known = chain.known_results(context)
        hidden = len(chain.operations) - known
        text = chain.worked([0.0] * known + [SLIP_RATE_HIDDEN] * hidden, rng)
    else:
        messages = student_messages(chain.problem)
        text = chain.worked([SLIP_RATE] * len(chain.operations), rng)

    thinking = rng.random() < SHARE_THINKING
    if thinking:
        last_line = text.rsplit("\n", 1)[1]
        text = f"<think>\n{text}\n</think>\n\n{last_line}"
    return messages, thinking, text


def revealed_reference(chain: Chain, rng: random.Random) -> str:
    """The reference as a teacher may meet it: complete, or partly hidden, mostly at its end."""
    if rng.random() < SHARE_COMPLETE:
        return chain.solution

    placement = rng.choice(["suffix"] * 5 + ["punctuation", "prefix", "middle", "random"])
    return mask_solution(
        chain.solution,
        rng.uniform(0.1, 0.95),
        placement=placement,  # type: ignore[arg-type]
        seed=rng.getrandbits(32),
    )


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose words are whole phrases and short numbers: prompts stay short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()

    rng = random.Random(seed)
    corpus = []
    for _ in range(4000):
        messages, _, text = pretraining_example(rng)
        corpus += [messages[0]["content"], "\n\n", "user\n", "assistant\n", text]
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=50,
        special_tokens=ADDED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)

    # As in Qwen3, the tags of a think block are text: decoding keeps them.
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = "think" not in token["content"]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 model of three layers with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def prompt_text(tokenizer: PreTrainedTokenizerFast, messages: Messages, *, thinking: bool) -> str:
    """The messages in the chat format, up to where the assistant begins to write."""
    text = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=thinking, tokenize=False
    )
    assert isinstance(text, str)
    return text


def encode_example(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Token ids of an example's prompt and of its completion, the end token included."""
    messages, thinking, text = pretraining_example(rng)
    prompt = prompt_text(tokenizer, messages, thinking=thinking)
    ids = tokenizer([prompt, text + "<|im_end|>"], add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


def batches(
    tokenizer: PreTrainedTokenizerFast, *, rows: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of right-padded rows of similar length, labels on completions only."""
    rng = random.Random(seed)
    pad = tokenizer.pad_token_id
    while True:
        pool = [encode_example(tokenizer, rng) for _ in range(rows * 16)]
        pool.sort(key=lambda row: len(row[0] + row[1]))
        groups = [pool[i : i + rows] for i in range(0, len(pool), rows)]
        rng.shuffle(groups)

        for group in groups:
            width = max(len(p) + len(c) for p, c in group)
            ids = [p + c + [pad] * (width - len(p) - len(c)) for p, c in group]
            labels = [[-100] * len(p) + c + [-100] * (width - len(p) - len(c)) for p, c in group]
            yield torch.tensor(ids), torch.tensor(labels)


Reference = Literal["alone", "masked", "complete"]
REFERENCES: tuple[Reference, ...] = ("alone", "masked", "complete")
"""What a prompt shows of the reference, in ``arithmetic_accuracy``: nothing, 60 % of it, all."""


def arithmetic_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, chains: list[Chain]
) -> dict[str, float]:
    """The share of results that are the model's first choice after a correct prefix.

    By what the prompt shows of the reference.
    """
    shares: dict[str, float] = {}
    for reference in REFERENCES:
        right = total = 0
        for i in range(0, len(chains), 50):
            counts = _count_right_results(model, tokenizer, chains[i : i + 50], reference)
            right, total = right + counts[0], total + counts[1]
        shares[reference] = right / max(total, 1)
    return shares


def _count_right_results(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    chains: Sequence[Chain],
    reference: Reference,
) -> tuple[int, int]:
    """How many results are the model's first choice, of how many."""
    prompts, completions = [], []
    for chain in chains:
        messages = _messages(chain, reference)
        prompts.append(tokenizer(prompt_text(tokenizer, messages, thinking=False))["input_ids"])
        completions.append(tokenizer(chain.worked())["input_ids"])

    rows = [p + c for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    with torch.no_grad():
        logits = model(torch.tensor([row + [0] * (width - len(row)) for row in rows])).logits
    choices = logits.argmax(-1)

    right = total = 0
    for choice, prompt, completion in zip(choices, prompts, completions, strict=True):
        for j in range(1, len(completion)):
            if "equiv" in tokenizer.decode([completion[j - 1]]):
                total += 1
                right += int(choice[len(prompt) + j - 1] == completion[j])
    return right, total


def _messages(chain: Chain, reference: Reference) -> Messages:
    match reference:
        case "alone":
            return student_messages(chain.problem)
        case "masked":
            context = mask_solution(chain.solution, 0.4)
            return teacher_messages(chain.problem, context, complete=False)
        case "complete":
            return teacher_messages(chain.problem, chain.solution, complete=True)


def pretrain(out: Path, *, steps: int, rows: int, learning_rate: float, seed: int) -> None:
    """Train a model from scratch; write it, with its accuracy, every 250 steps and at the end."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, vocabulary {len(tokenizer)}", flush=True)

    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))

    def schedule(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        return min((step + 1) / 100, cosine + 0.01)  # warm-up first

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    chains = random_chains(200, seed=1, held_out=True)
    stream = batches(tokenizer, rows=rows, seed=seed)
    began = time.monotonic()
    for step in range(1, steps + 1):
        ids, labels = next(stream)
        attended = (ids != tokenizer.pad_token_id).long()
        hidden = model.model(ids, attention_mask=attended).last_hidden_state
        predicts = labels[:, 1:] != -100
        logits = model.lm_head(hidden[:, :-1][predicts])
        loss = F.cross_entropy(logits, labels[:, 1:][predicts])

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        if step % 100 == 0 or step == steps:
            elapsed = time.monotonic() - began
            left = elapsed / step * (steps - step)
            line = (
                f"step {step}/{steps}  loss {loss.item():.4f}  {elapsed:.0f} s, {left:.0f} s left"
            )
            if step % 250 == 0 or step == steps:
                shares = arithmetic_accuracy(model, tokenizer, chains)
                line += "  " + "  ".join(f"{name} {share:.1%}" for name, share in shares.items())
                model.save_pretrained(out)
                tokenizer.save_pretrained(out)
                facts = {"steps": step, "rows": rows, "seed": seed, **shares}
                files.write(out / "pretraining.json", json.dumps(facts, indent=2) + "\n")
            print(line, flush=True)


def write_problems(out: Path) -> None:
    """Write the lab's problems, to train on and held out, in the format of paint.data.problems."""
    for name, count, held_out in (("train.jsonl", 1000, False), ("held_out.jsonl", 200, True)):
        rows = (
            {
                "id": f"chain-{i}",
                "problem": chain.problem,
                "solution": chain.solution,
                "answer": chain.answer,
            }
            for i, chain in enumerate(random_chains(count, seed=2, held_out=held_out))
        )
        files.write(out / name, files.to_jsonl(rows))


def main() -> None:
    """Make the problems and the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("lab_model"), help="folder that the model is written to"
    )
    parser.add_argument("--steps", type=int, default=1800, help="optimizer steps")
    parser.add_argument("--rows", type=int, default=64, help="sequences a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    write_problems(options.out)
    pretrain(
        options.out,
        steps=options.steps,
        rows=options.rows,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
