"""Pretrain the embedded model, and write its tokenizer and its problems.

    python tools/pretrain_demo.py [--out FOLDER] [--seed N]

The model is a Qwen3 architecture of well under a million parameters. It works the demo's chains
step by step, and slips in 3 % of the results, so that about six answers in ten are right. A text in
its prompt helps by what it says and by nothing else:

- A step that the text tells (this number, this operation) is copied from it, without a slip.
- Every other step slips as often as if there were no text: what is hidden, what only another
  problem's solution tells, whatever stands beside an answer, right or wrong, and what comes after a
  slip of the model's own, since then the number is another one.
- Its own rationale in an earlier turn is such a text, too. Rationales are in the other style of
  references, so that it can write in both.

So the model finds out by itself whether a reference belongs to the problem, step by step. In
thinking mode it does the same inside a think block, and then answers.

Left out: everything that a general language model would need. The demo's claims are about the
method, not about language.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from demo_problems import (
    LENGTHS,
    MODULUS,
    Chain,
    Step,
    boxed,
    is_held_out,
    random_chain,
    random_chains,
    visible_steps,
)
from paint.core import storage
from paint.objective.masking import MARKER, mask_solution
from paint.objective.messages import rationale_messages, student_messages, teacher_messages

SLIP_RATE = 0.03
SHARE_THINKING = 0.06
SHARE_COMPLETE = 0.25

View = Literal["alone", "own", "other", "answer", "rationale", "two turns"]
SHARES: dict[View, float] = {
    "alone": 0.30,
    "own": 0.35,
    "other": 0.16,
    "answer": 0.05,
    "rationale": 0.06,
    "two turns": 0.08,
}
"""How often a prompt shows what, as weights."""

# Qwen3's chat format, shorter: thinking is the default; switched off, a think block is closed at
# once, empty. The model has seen neither tools nor calls.
CHAT_TEMPLATE = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n# Tools\\n' }}"
    "{%- for tool in tools %}{{- (tool.function | tojson) + '\\n' }}{%- endfor %}"
    '{{- \'Call: <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call><|im_end|>\\n\' }}'
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments}"
    " | tojson) + '</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
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


@dataclass(frozen=True)
class Stage:
    """What pretraining takes its examples from, which changes as it goes on.

    Attributes:
        lengths: how many operations the chains have, at least and at most.
        invented: share of the references with invented results.
        shares: how often a prompt shows what, as weights.
    """

    lengths: tuple[int, int] = LENGTHS
    invented: float = 0.3
    shares: Mapping[View, float] = field(default_factory=lambda: SHARES)


LAST = Stage()
OTHERS = Stage(invented=0.15, shares=SHARES | {"own": 0.25, "other": 0.30})
OWN = Stage(invented=0.15, shares=SHARES | {"own": 0.42, "other": 0.22, "alone": 0.20})


def grown(progress: float) -> Stage:
    """By the share of the first phase that is done: short chains at first, and all invented.

    In a short chain the next operation, and the step that a reference tells, are soon found. If the
    model could compute a result, it would not learn to copy it from the reference.
    """
    growth = min(max((progress - 0.25) / 0.25, 0.0), 1.0)
    shortest, longest = LENGTHS
    lengths = (round(2 + growth * (shortest - 2)), round(4 + growth * (longest - 4)))
    return Stage(lengths, min(max((0.70 - progress) / 0.15, LAST.invented), 1.0))


@dataclass(frozen=True)
class Phase:
    """Optimizer steps under one schedule of the learning rate, from its peak to nearly zero.

    Attributes:
        stage: by the share of these steps that is done.
    """

    steps: int
    learning_rate: float
    stage: Callable[[float], Stage]


PHASES = (
    Phase(3600, 7e-4, grown),
    # What is learnt late: that another problem's solution tells nothing, and then, how surely the
    # own one tells what it tells.
    Phase(1200, 5e-4, lambda _: OTHERS),
    Phase(1200, 5e-4, lambda _: OWN),
)


def pretraining_example(rng: random.Random, stage: Stage = LAST) -> tuple[Messages, bool, str]:
    """Messages, whether thinking is on, and the completion without its end token."""
    chain = training_chain(rng, stage)
    [view] = rng.choices(list(stage.shares), list(stage.shares.values()))
    messages = shown_messages(chain, view, rng, stage)
    told = visible_steps("\n".join(message["content"] for message in messages))
    text = chain.worked(SLIP_RATE, rng, told, in_own_style=view != "rationale")

    thinking = rng.random() < SHARE_THINKING
    if thinking:
        last_line = text.rsplit("\n", 1)[1]
        text = f"<think>\n{text}\n</think>\n\n{last_line}"
    return messages, thinking, text


def training_chain(rng: random.Random, stage: Stage = LAST) -> Chain:
    """A random chain that is not held out."""
    chain = random_chain(rng, stage.lengths)
    while is_held_out(chain):
        chain = random_chain(rng, stage.lengths)
    return chain


def shown_messages(chain: Chain, view: View, rng: random.Random, stage: Stage = LAST) -> Messages:
    """A prompt that shows what the view names."""
    match view:
        case "alone":
            return student_messages(chain.problem)
        case "answer":
            answer = rng.choice([chain.answer, training_chain(rng, stage).answer])
            context = f"The answer is ${boxed(answer)}$."
        case "other":
            # The same operations from another number look like what follows a slip.
            same = Chain(rng.randrange(MODULUS), chain.operations)
            context = revealed(rng.choice([training_chain(rng, stage), same]).solution, rng)
        case "own" | "rationale" | "two turns":
            is_invented = rng.random() < stage.invented
            told = invented_results(chain, rng) if is_invented else None
            context = revealed(chain.reference(told), rng)

    complete = MARKER not in context
    if view == "rationale":
        return rationale_messages(chain.problem, context, complete=complete)
    rationale = None
    if view == "two turns":
        rationale = chain.worked(SLIP_RATE, rng, visible_steps(context), in_own_style=False)
    return teacher_messages(chain.problem, context, complete=complete, rationale=rationale)


def revealed(solution: str, rng: random.Random) -> str:
    """A reference as a teacher may meet it: complete, or partly hidden, mostly at its end."""
    if rng.random() < SHARE_COMPLETE:
        return solution

    placement = rng.choice(["suffix"] * 5 + ["punctuation", "prefix", "middle", "random"])
    return mask_solution(
        solution,
        rng.uniform(0.1, 0.95),
        placement=placement,  # type: ignore[arg-type]
        seed=rng.getrandbits(32),
    )


def invented_results(chain: Chain, rng: random.Random) -> dict[Step, int]:
    """Any number as the result of each step: only who reads the reference can know them."""
    value, told = chain.start, {}
    for operation in chain.operations:
        told[value, *operation] = result = rng.randrange(MODULUS)
        value = result
    return told


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose words are phrases, operations and short numbers: prompts stay short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"([+-]|\\times )\d{1,2}(, | \\equiv )?|\d{1,2}"), "isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()

    rng = random.Random(seed)
    corpus = []
    for _ in range(1500):
        messages, _, text = pretraining_example(rng)
        corpus += [*(message["content"] for message in messages), text]
        corpus += ["\n\n", "user\n", "assistant\n"]
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
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, stage: Stage = LAST
) -> tuple[list[int], list[int]]:
    """Token ids of an example's prompt and of its completion, the end token included."""
    messages, thinking, text = pretraining_example(rng, stage)
    prompt = prompt_text(tokenizer, messages, thinking=thinking)
    ids = tokenizer([prompt, text + "<|im_end|>"], add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


ROWS = 32  # a batch
PARTS = 4  # of a batch
POOL = 16  # batches


def batches(
    tokenizer: PreTrainedTokenizerFast, phase: Phase, seed: int
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Batches in parts: right-padded rows of similar length, labels on completions only.

    Rows of all lengths are in a batch: a short one shows nothing, and a long one a reference.
    """
    rng = random.Random(seed)
    size = ROWS // PARTS
    for first in range(0, phase.steps, POOL):
        stage = phase.stage(first / phase.steps)
        pool = [encode_example(tokenizer, rng, stage) for _ in range(ROWS * POOL)]
        pool.sort(key=lambda row: len(row[0] + row[1]))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        for i in rng.sample(range(POOL), POOL):
            yield [_padded(group, tokenizer.pad_token_id) for group in groups[i::POOL]]


def _padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor]:
    width = max(len(p) + len(c) for p, c in rows)
    ids = [p + c + [pad] * (width - len(p) - len(c)) for p, c in rows]
    labels = [[-100] * len(p) + c + [-100] * (width - len(p) - len(c)) for p, c in rows]
    return torch.tensor(ids), torch.tensor(labels)


def slip_rates(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, chains: Sequence[Chain]
) -> dict[str, float]:
    """Mean probability of a wrong result, after a right beginning, by what the prompt shows.

    ``told`` and ``hidden`` are the steps on either side of the mask, 40 % of the own solution being
    hidden. ``invented`` are those of a reference whose results can only be looked up.
    """
    wrong: dict[str, list[float]] = {}
    for i, chain in enumerate(chains):
        other = chains[i - 1]
        context = mask_solution(chain.solution, 0.4)
        told = visible_steps(context)
        steps = zip(chain.values, chain.operations, strict=False)
        sides = ["told" if (value, *operation) in told else "hidden" for value, operation in steps]

        answer = f"The answer is ${boxed(other.answer)}$."
        invented = chain.reference(invented_results(chain, random.Random(i)))
        views = [
            (sides, context, chain.worked()),
            (["other"] * len(sides), other.solution, chain.worked()),
            (["wrong answer"] * len(sides), answer, chain.worked()),
            (
                ["invented"] * len(sides),
                invented,
                chain.worked(given_results=visible_steps(invented)),
            ),
        ]
        shares = _wrong_shares(model, tokenizer, student_messages(chain.problem), chain.worked())
        wrong.setdefault("alone", []).extend(shares)
        for names, shown, worked in views:
            messages = teacher_messages(chain.problem, shown, complete=MARKER not in shown)
            shares = _wrong_shares(model, tokenizer, messages, worked)
            for name, share in zip(names, shares, strict=True):
                wrong.setdefault(name, []).append(share)
    return {name: sum(shares) / len(shares) for name, shares in wrong.items()}


def _wrong_shares(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    worked: str,
) -> list[float]:
    """The probability of anything but the right result, for each step of what was worked."""
    prompt = tokenizer(prompt_text(tokenizer, messages, thinking=False))["input_ids"]
    completion = tokenizer(worked)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]

    right = logits.softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
    return [
        1 - right[j].item()
        for j in range(1, len(completion))
        if "equiv" in tokenizer.decode([completion[j - 1]])
    ]


def pretrain(out: Path, seed: int) -> None:
    """Train a model from scratch; write it, with its slips, every 500 steps and at the end."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, vocabulary {len(tokenizer)}", flush=True)

    tokenizer.save_pretrained(out)
    for number, phase in enumerate(PHASES):
        print(f"phase {number + 1} of {len(PHASES)}", flush=True)
        run_phase(model, tokenizer, phase, out, seed + number)


def run_phase(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    phase: Phase,
    out: Path,
    seed: int,
) -> None:
    """Train through one phase, with an optimizer of its own."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=phase.learning_rate, betas=(0.9, 0.98))

    def schedule(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / phase.steps))
        return min((step + 1) / 100, cosine + 0.01)  # warm-up first

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    chains = random_chains(100, seed=1, held_out=True)
    began = time.monotonic()
    for step, parts in enumerate(batches(tokenizer, phase, seed), 1):
        count = sum(int((labels != -100).sum()) for _, labels in parts)
        mean_loss = 0.0
        for ids, labels in parts:
            attended = (ids != tokenizer.pad_token_id).long()
            hidden = model.model(ids, attention_mask=attended).last_hidden_state
            predicts = labels[:, 1:] != -100
            logits = model.lm_head(hidden[:, :-1][predicts])
            loss = F.cross_entropy(logits, labels[:, 1:][predicts], reduction="sum") / count
            loss.backward()
            mean_loss += loss.item()

        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        if step % 100 == 0 or step == phase.steps:
            elapsed = time.monotonic() - began
            left = elapsed / step * (phase.steps - step)
            line = (
                f"step {step}/{phase.steps}  loss {mean_loss:.4f}  {elapsed:.0f} s, "
                f"{left:.0f} s left in this phase"
            )
            if step % 500 == 0 or step == phase.steps:
                slips = slip_rates(model, tokenizer, chains)
                line += "  slips: " + ", ".join(f"{name} {x:.2%}" for name, x in slips.items())
                model.save_pretrained(out)
                facts = {"slip_rates": slips}
                storage.write_atomic(out / "pretraining.json", json.dumps(facts, indent=2) + "\n")
            print(line, flush=True)


def write_problems(out: Path) -> None:
    """Write the demo's problems, to train on and held out, in the format of paint.data.problems."""
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
        storage.write_jsonl(out / name, rows)


def main() -> None:
    """Make the problems and the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo_model"), help="folder that the model is written to"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    write_problems(options.out)
    pretrain(options.out, options.seed)


if __name__ == "__main__":
    main()
