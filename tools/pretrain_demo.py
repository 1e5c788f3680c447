"""Pretrain the embedded model, and write its tokenizer and its problems.

    python tools/pretrain_demo.py [--out FOLDER] [--seed N]

The model is a Qwen3 architecture of well under a million parameters. It works the demo's chains
step by step. It can compute, and errs in few results. It does not know the rules that give words
their values: in pretraining they change from text to text. A text in its prompt helps by what it
says and by nothing else:

- A rule that the text states is read from it, also from a list of rules. Every other word is a
  guess, right one time in four.
- A step that the text tells (this number, this operation) is copied from it.
- What is hidden, what another problem's solution tells of other words and steps, and whatever
  stands beside an answer, right or wrong, changes nothing.
- Where a tool ``look_up`` is offered, every second word that no text explains is looked up, and the
  others are guessed: the model can use the tool, and does not do it reliably.
- Its own rationale in an earlier turn is such a text, too. Rationales are in the other style of
  references, so that it can write in both.

In thinking mode it does the same inside a think block, and then answers.

Left out: everything that a general language model would need. The demo's claims are about the
method, not about language.
"""

import argparse
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from chatforms.tool_schemas import tool_schemas
from demo_problems import (
    LENGTHS,
    MODULUS,
    NEW_RULES,
    RULES,
    VALUES,
    WORD_COUNTS,
    Chain,
    Step,
    Worked,
    boxed,
    is_held_out,
    random_chain,
    random_chains,
    random_rules,
    rule_text,
    visible_rules,
    visible_steps,
    written,
)
from paint.core import storage
from paint.objective.masking import MARKER, mask_solution
from paint.objective.messages import rationale_messages, student_messages, teacher_messages

SLIP_RATE = 0.002
WORDS = [*RULES, *NEW_RULES]
SHARE_THINKING = 0.06
SHARE_COMPLETE = 0.25
LOOK_UP_RATE = 0.5

View = Literal["alone", "own", "other", "answer", "rationale", "two turns", "sheet"]
SHARES: dict[View, float] = {
    "alone": 0.30,
    "own": 0.35,
    "other": 0.16,
    "answer": 0.05,
    "rationale": 0.06,
    "two turns": 0.08,
    "sheet": 0.06,
}
"""How often a prompt shows what, as weights."""

# Qwen3's chat format, shorter: thinking is the default; switched off, a think block is closed at
# once, empty.
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

Messages = list[dict[str, Any]]


def look_up(word: str) -> str:
    """Tells what number a word stands for.

    Args:
        word: The word.
    """
    raise NotImplementedError  # pretraining describes it to the model, and answers by itself


TOOLS = tool_schemas([look_up])


@dataclass(frozen=True)
class Example:
    """A prompt and what the model writes, without its end token.

    Attributes:
        thinking: whether thinking is on.
        tools: the tools that the prompt tells of.
    """

    messages: Messages
    text: str
    thinking: bool = False
    tools: Sequence[Any] = ()


@dataclass(frozen=True)
class Stage:
    """What pretraining takes its examples from, which changes as it goes on.

    Attributes:
        lengths: how many operations the chains have, at least and at most.
        invented: share of the references with invented results.
        shares: how often a prompt shows what, as weights.
        word_counts: how many different words a chain has, as weights.
        tools: share of the prompts with a tool, of those with no solution, the own or another.
    """

    lengths: tuple[int, int] = LENGTHS
    invented: float = 0.3
    shares: Mapping[View, float] = field(default_factory=lambda: SHARES)
    word_counts: Mapping[int, float] = field(default_factory=lambda: WORD_COUNTS)
    tools: float = 0.2


LAST = Stage()
OTHERS = Stage(invented=0.15, shares=SHARES | {"own": 0.25, "other": 0.30})
OWN = Stage(invented=0.15, shares=SHARES | {"own": 0.42, "other": 0.22, "alone": 0.20})


# In a reference a step behind the rule repeats its number. A model that has learnt to read the step
# does not learn to read a rule that stands alone: so lists of rules come first, and many words.
TOOLS_FIRST = Stage((2, 4), 0.3, SHARES | {"alone": 1.5}, {2: 0.3, 3: 0.7}, tools=1.0)
RULES_FIRST = Stage((2, 4), 1.0, SHARES | {"sheet": 1.56}, {2: 0.3, 3: 0.7})


def grown(progress: float) -> Stage:
    """By the share of the second phase that is done: short chains at first, and all invented.

    In a short chain the next operation, and the step that a reference tells, are soon found. If the
    model could compute a result, it would not learn to copy it from the reference.
    """
    growth = min(max((progress - 0.05) / 0.25, 0.0), 1.0)
    shortest, longest = LENGTHS
    lengths = (round(2 + growth * (shortest - 2)), round(4 + growth * (longest - 4)))
    return Stage(lengths, min(max((0.60 - progress) / 0.15, LAST.invented), 1.0))


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
    Phase(1000, 7e-4, lambda _: RULES_FIRST),
    Phase(2200, 7e-4, grown),
    # What is learnt late: that another problem's solution tells nothing, then how surely the own
    # one tells what it tells, and whose rule to ask a tool for.
    Phase(700, 5e-4, lambda _: OTHERS),
    Phase(700, 5e-4, lambda _: OWN),
    Phase(1200, 5e-4, lambda _: replace(OWN, tools=0.5)),
    Phase(600, 7e-4, lambda _: TOOLS_FIRST),
    Phase(800, 5e-4, lambda _: replace(OWN, tools=0.5)),
)


def pretraining_example(rng: random.Random, stage: Stage = LAST) -> Example:
    """An example of a random view."""
    chain = training_chain(rng, stage)
    [view] = rng.choices(list(stage.shares), list(stage.shares.values()))
    messages = shown_messages(chain, view, rng, stage)
    if view in ("alone", "own", "other") and rng.random() < stage.tools:
        return tool_example(chain, messages, rng)
    text = continued(chain, messages, rng, in_own_style=view != "rationale")

    thinking = rng.random() < SHARE_THINKING
    if thinking:
        last_line = text.rsplit("\n", 1)[1]
        text = f"<think>\n{text}\n</think>\n\n{last_line}"
    return Example(messages, text, thinking)


def tool_example(chain: Chain, messages: Messages, rng: random.Random) -> Example:
    """A turn of a conversation in which words are looked up before the chain is worked."""
    known = visible_rules(messages[-1]["content"])
    words = [w for w in chain.words if w not in known and rng.random() < LOOK_UP_RATE]
    done = rng.randint(0, len(words))
    for word in words[:done]:
        call = {"name": look_up.__name__, "arguments": {"word": word}}
        said = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
        result = {"role": "tool", "content": rule_text(word, rng.choice(VALUES))}
        messages = [*messages, said, result]
    if done < len(words):
        call = {"name": look_up.__name__, "arguments": {"word": words[done]}}
        text = f"<tool_call>{json.dumps(call)}</tool_call>"
    else:
        text = continued(chain, messages, rng, in_own_style=True)
    return Example(messages, text, tools=TOOLS)


def continued(chain: Chain, messages: Messages, rng: random.Random, *, in_own_style: bool) -> str:
    """What the model writes: rules and steps as the messages tell them, and guesses for others."""
    shown = "\n".join(message["content"] for message in messages)
    rules = random_rules(chain.words, rng) | visible_rules(shown)
    worked = chain.work(rules, SLIP_RATE, rng, visible_steps(shown))
    return written(worked, in_own_style=in_own_style)


def training_chain(rng: random.Random, stage: Stage = LAST) -> Chain:
    """A random chain that is not held out."""
    while True:
        chain = random_chain(rng, WORDS, stage.lengths, stage.word_counts)
        if not is_held_out(chain):
            return chain


def shown_messages(chain: Chain, view: View, rng: random.Random, stage: Stage = LAST) -> Messages:
    """A prompt that shows what the view names."""
    rules = random_rules(WORDS, rng)
    match view:
        case "alone":
            return student_messages(chain.problem)
        case "answer":
            answer = rng.choice([chain, training_chain(rng, stage)]).answer(rules)
            context = f"The answer is ${boxed(answer)}$."
        case "other":
            # The same operations from another number look like what follows a slip.
            same = Chain(rng.randrange(MODULUS), chain.operations)
            other = rng.choice([training_chain(rng, stage), training_chain(rng, stage), same])
            context = revealed(other.reference(rules), rng)
        case "sheet":
            context = rule_sheet(chain, rules, rng)
        case "own" | "rationale" | "two turns":
            is_invented = rng.random() < stage.invented
            told = invented_results(chain, rules, rng) if is_invented else None
            context = revealed(chain.reference(rules, told), rng)

    complete = MARKER not in context
    if view == "rationale":
        return rationale_messages(chain.problem, context, complete=complete)
    rationale = None
    if view == "two turns":
        asked = rationale_messages(chain.problem, context, complete=complete)
        rationale = continued(chain, asked, rng, in_own_style=False)
    return teacher_messages(chain.problem, context, complete=complete, rationale=rationale)


def rule_sheet(chain: Chain, rules: Mapping[str, int], rng: random.Random) -> str:
    """A list of rules: most are of other words, and some that the chain needs may be missing."""
    listed = rng.sample(WORDS, rng.randint(1, 6))
    listed += [word for word in chain.words if word not in listed and rng.random() < 0.75]
    listed = rng.sample(listed, len(listed))
    return rng.choice([" ", "\n"]).join(rule_text(word, rules[word]) for word in listed)


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


def invented_results(chain: Chain, rules: Mapping[str, int], rng: random.Random) -> dict[Step, int]:
    """Any number as the result of each step: only who reads the reference can know them."""
    value, told = chain.start, {}
    for sign, operand in chain.operations:
        number = rules[operand] if isinstance(operand, str) else operand
        told[value, sign, number] = result = rng.randrange(MODULUS)
        value = result
    return told


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose words are phrases, operations and short numbers: prompts stay short."""
    words = "|".join(WORDS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    # A word is one token wherever it stands, and so is the beginning of its rule,
                    # which is then soon found.
                    rf"([+-]|\\times )\d{{1,2}}(, | \\equiv )?|\d{{1,2}}|\b({words})\b( is \$)?"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()

    rng = random.Random(seed)
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    special = re.compile("|".join(map(re.escape, ADDED_TOKENS)))
    corpus: list[str] = []
    for _ in range(1500):
        example = pretraining_example(rng)
        prompt = template.render(
            messages=example.messages,
            tools=example.tools,
            add_generation_prompt=True,
            enable_thinking=example.thinking,
        )
        corpus += special.split(prompt + example.text)
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


def prompt_text(
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    *,
    thinking: bool = False,
    tools: Sequence[Any] = (),
) -> str:
    """The messages in the chat format, up to where the assistant begins to write."""
    text = tokenizer.apply_chat_template(
        messages,
        tools=list(tools) or None,
        add_generation_prompt=True,
        enable_thinking=thinking,
        tokenize=False,
    )
    assert isinstance(text, str)
    return text


def encode_example(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, stage: Stage = LAST
) -> tuple[list[int], list[int]]:
    """Token ids of an example's prompt and of its completion, the end token included."""
    example = pretraining_example(rng, stage)
    prompt = prompt_text(
        tokenizer, example.messages, thinking=example.thinking, tools=example.tools
    )
    texts = [prompt, example.text + "<|im_end|>"]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
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


def wrong_rates(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, chains: Sequence[Chain]
) -> dict[str, float]:
    """Mean probability of a wrong result or rule, after a right beginning, by what is shown.

    ``told`` and ``hidden`` are on either side of the mask, 40 % of the own solution being hidden.
    ``invented`` are the results of a reference that can only be looked up.
    """
    wrong: dict[str, list[float]] = {}
    for i, chain in enumerate(chains):
        rng = random.Random(i)
        rules = random_rules(WORDS, rng)
        right = chain.work(rules)
        context = mask_solution(chain.reference(rules), 0.4)
        told_steps, told_rules = visible_steps(context), visible_rules(context)
        other = Chain(rng.randrange(MODULUS), tuple(x for x in chains[i - 1].operations))
        known = set(chain.words)
        strange = Chain(
            other.start,
            tuple((s, x) for s, x in other.operations if x not in known) or ((("+", 2)),),
        )
        answer = f"The answer is ${boxed(other.answer(rules))}$."
        results = invented_results(chain, rules, rng)
        invented = chain.reference(rules, results)
        views = [
            ("alone", None, right),
            ("partly", context, right),
            ("other", strange.reference(rules), right),
            ("answer", answer, right),
            ("invented", invented, chain.work(rules, given_results=results)),
        ]
        for view, shown, worked in views:
            messages = student_messages(chain.problem)
            if shown is not None:
                messages = teacher_messages(chain.problem, shown, complete=MARKER not in shown)
            for kind, key, share in _wrong_shares(model, tokenizer, messages, worked):
                name = view
                if view == "partly":
                    is_told = key in told_rules if kind == "rule" else key in told_steps
                    name = "told" if is_told else "hidden"
                wrong.setdefault(f"{name} {kind}", []).append(share)
    return {name: sum(shares) / len(shares) for name, shares in sorted(wrong.items())}


def _wrong_shares(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    worked: Worked,
) -> list[tuple[str, object, float]]:
    """The probability of anything but the right token, of each rule's value and each result."""
    prompt = tokenizer(prompt_text(tokenizer, messages))["input_ids"]
    text = written(worked)
    encoded = tokenizer(text, return_offsets_mapping=True)
    completion, offsets = encoded["input_ids"], encoded["offset_mapping"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    right = logits.softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
    begins = {begin: j for j, (begin, _) in enumerate(offsets)}
    found: list[tuple[str, object, float]] = []
    ends = iter(match.end() for match in re.finditer(r"\\equiv ", text))
    for value, sign, number, _ in worked.steps:
        found.append(("step", (value, sign, number), 1 - right[begins[next(ends)]].item()))
    rules = [(match[1], match.end()) for match in re.finditer(r"A ([a-z]+) is \$", text)]
    found += [("rule", word, 1 - right[begins[end]].item()) for word, end in rules]
    return found


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
    chains = random_chains(100, WORDS, seed=1, held_out=True)
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
                slips = wrong_rates(model, tokenizer, chains)
                line += "  wrong: " + ", ".join(f"{name} {x:.2%}" for name, x in slips.items())
                model.save_pretrained(out)
                facts = {"wrong_rates": slips}
                storage.write_atomic(out / "pretraining.json", json.dumps(facts, indent=2) + "\n")
            print(line, flush=True)


def write_problems(out: Path) -> None:
    """Write the demo's problems, to train on and held out, in the format of paint.data.problems."""
    for name, count, rules, held_out in (
        ("train.jsonl", 1000, RULES, False),
        ("held_out.jsonl", 200, RULES, True),
        ("held_out_new_rules.jsonl", 200, NEW_RULES, True),
    ):
        chains = random_chains(count, list(rules), seed=2, held_out=held_out)
        rows = (
            {
                "id": f"chain-{i}",
                "problem": chain.problem,
                "solution": chain.reference(rules),
                "answer": chain.answer(rules),
            }
            for i, chain in enumerate(chains)
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
