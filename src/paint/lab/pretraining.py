"""Make the lab's model: its tokenizer, its habits and its weights (`python -m paint.lab.pretraining`).

The model is a Qwen3 architecture of well under a million parameters. It is taught three habits on the lab's chains,
so that it stands to them roughly as a real reasoning model stands to competition problems:

- alone, it works line by line and slips in 18 % of the results, so that about half of its answers are right;
- with a reference in its prompt it works in the same style, without slips as far as the reference shows the results and
  with 10 % in the part that is hidden: how much is revealed matters, as it does for a real model;
- in thinking mode it does the same inside a think block and then answers.

Left out: everything a general language model would need. The lab's claims are about the method, not about language.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from paint.context import MARKER, mask_solution, student_messages, teacher_messages
from paint.lab.problems import Chain, draw_chain, draw_chains, held_out

SLIP_RATE = 0.18
SLIP_RATE_HIDDEN = 0.10
SHARE_TEACHER = 0.4
SHARE_THINKING = 0.1
SHARE_COMPLETE = 0.25

# Qwen3's chat format without tools: thinking is the default, and switching it off closes an empty think block.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
ADDED_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


def sample(rng: random.Random) -> tuple[list[dict[str, str]], bool, str]:
    """One pretraining example: messages, thinking or not, completion without its end token."""
    chain = draw_chain(rng)
    while held_out(chain):
        chain = draw_chain(rng)
    if rng.random() < SHARE_TEACHER:
        context = reveal(chain, rng)
        messages = teacher_messages(chain.problem, context, complete=MARKER not in context)
        known = chain.known(context)
        hidden = len(chain.operations) - known
        text = chain.worked([0.0] * known + [SLIP_RATE_HIDDEN] * hidden, rng)
    else:
        messages = student_messages(chain.problem)
        text = chain.worked([SLIP_RATE] * len(chain.operations), rng)
    thinking = rng.random() < SHARE_THINKING
    if thinking:
        text = f"<think>\n{text}\n</think>\n\n{text.rsplit(chr(10), 1)[1]}"
    return messages, thinking, text


def reveal(chain: Chain, rng: random.Random) -> str:
    """The reference as a teacher may meet it: complete, or hidden in part at any placement, mostly at its end."""
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
    """Byte-level BPE whose words are whole phrases and one- or two-digit numbers: prompts stay short."""
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
        messages, _, text = sample(rng)
        corpus += [messages[0]["content"], "\n\n", "user\n", "assistant\n", text]
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=50,
        special_tokens=ADDED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = (
            "think" not in token["content"]
        )  # as in Qwen3: a think block is text and is decoded
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


def encode(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[list[int], list[int]]:
    messages, thinking, text = sample(rng)
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=thinking, tokenize=False
    )
    ids = tokenizer([prompt, text + "<|im_end|>"], add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


def batches(
    tokenizer: PreTrainedTokenizerFast, *, rows: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of right-padded rows of similar length, labels on completions only."""
    rng = random.Random(seed)
    pad = tokenizer.pad_token_id
    while True:
        pool = sorted(
            (encode(tokenizer, rng) for _ in range(rows * 16)), key=lambda row: len(row[0] + row[1])
        )
        groups = [pool[i : i + rows] for i in range(0, len(pool), rows)]
        rng.shuffle(groups)
        for group in groups:
            width = max(len(p) + len(c) for p, c in group)
            ids = [p + c + [pad] * (width - len(p) - len(c)) for p, c in group]
            labels = [[-100] * len(p) + c + [-100] * (width - len(p) - len(c)) for p, c in group]
            yield torch.tensor(ids), torch.tensor(labels)


def arithmetic_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, chains: list[Chain]
) -> dict[str, float]:
    """Share of results that are the model's first choice on correct prefixes, with a reference and without."""
    shares = {}
    for name in ("alone", "masked", "complete"):
        right = total = 0
        for i in range(0, len(chains), 50):
            rows = []
            for chain in chains[i : i + 50]:
                match name:
                    case "alone":
                        messages = student_messages(chain.problem)
                    case "masked":
                        messages = teacher_messages(
                            chain.problem, mask_solution(chain.solution, 0.4), complete=False
                        )
                    case _:
                        messages = teacher_messages(chain.problem, chain.solution, complete=True)
                prompt = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, enable_thinking=False, tokenize=False
                )
                rows.append(
                    (tokenizer(prompt)["input_ids"], tokenizer(chain.worked())["input_ids"], chain)
                )
            width = max(len(p) + len(c) for p, c, _ in rows)
            ids = torch.tensor([p + c + [0] * (width - len(p) - len(c)) for p, c, _ in rows])
            with torch.no_grad():
                choice = model(ids).logits.argmax(-1)
            for row, (p, c, _) in enumerate(rows):
                for j, token in enumerate(c):
                    if j and "equiv" in tokenizer.decode([c[j - 1]]):
                        total += 1
                        right += int(choice[row, len(p) + j - 1] == token)
        shares[name] = right / max(total, 1)
    return shares


def pretrain(out: Path, *, steps: int, rows: int, learning_rate: float, seed: int) -> None:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}",
        flush=True,
    )
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))

    def schedule(step: int) -> float:
        return min(
            (step + 1) / 100, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.01
        )  # warm-up, then cosine

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    chains = draw_chains(200, seed=1, held_out_split=True)
    stream = batches(tokenizer, rows=rows, seed=seed)
    began = time.monotonic()
    for step in range(1, steps + 1):
        ids, labels = next(stream)
        hidden = model.model(
            ids, attention_mask=(ids != tokenizer.pad_token_id).long()
        ).last_hidden_state
        predicts = labels[:, 1:] != -100
        loss = F.cross_entropy(model.lm_head(hidden[:, :-1][predicts]), labels[:, 1:][predicts])
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
                save(model, tokenizer, out, {"steps": step, "rows": rows, "seed": seed, **shares})
            print(line, flush=True)


def save(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, facts: dict[str, float]
) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "pretraining.json").write_text(json.dumps(facts, indent=2) + "\n")


def write_problems(out: Path) -> None:
    """The lab's problems as files in the format of ``paint.data.problems``: to train on, and held out."""
    for name, count, held_out_split in (
        ("train.jsonl", 1000, False),
        ("held_out.jsonl", 200, True),
    ):
        chains = draw_chains(count, seed=2, held_out_split=held_out_split)
        rows = (
            {
                "id": f"chain-{i}",
                "problem": chain.problem,
                "solution": chain.solution,
                "answer": chain.answer,
            }
            for i, chain in enumerate(chains)
        )
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
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
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_problems(args.out)
    pretrain(
        args.out, steps=args.steps, rows=args.rows, learning_rate=args.learning_rate, seed=args.seed
    )
