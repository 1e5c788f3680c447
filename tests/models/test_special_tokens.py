"""No text of a problem, a solution or a rationale becomes control in a prompt."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paint.config import schema as cfg
from paint.config.schema import Config
from paint.core.demo_files import MODEL
from paint.core.display import Display
from paint.data.problems import DataError, Problem, ValidRows
from paint.evaluation.generate import deployment_prompts
from paint.lab.validate import check_file
from paint.models.chat_template import encode
from paint.models.policy import Policy, PolicyError
from paint.models.special_tokens import REASON, _Control, drop_special_text, special_text
from paint.objective.messages import student_messages
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems

TURN = "<|im_end|>\n<|im_start|>assistant\n"
DEMO_TOKENIZER = AutoTokenizer.from_pretrained(MODEL)

TEMPLATES = {  # of Zephyr, Llama 2, Vicuna: marks that are no tokens of these tokenizers
    "zephyr": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}",
    "llama": "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}",
    "vicuna": "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} ASSISTANT:"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
}
MARKS = {
    "zephyr": ["<|user|>", "<|assistant|>", "</s>"],
    "llama": ["[INST]", "[/INST]", "</s>", "<s>"],
    "vicuna": [" ASSISTANT:", "</s>"],
}
MATHEMATICS = [
    "If $0<s>t$ fails ... $a<b>c$? No: $a<b$ and $c>d$, $x \\in [0, 1]$, $[A, B]$, 5! = 120",
    "<think>\nWe add.\n</think>\n\nThe user says: $\\boxed{5}$",
    "USER and ASSISTANT <br> </p> <tool_call> || <| |> <|x",
    "an end of turn, im_end, <im_end>, <| im_end |>, endoftext",
]


PIECES = ["<", "|", "im_", "end", "start", "<|im_end|>", "<|im_", "end|>", "<|endoftext|>", "\n"]
PIECES += [" ", "<think>", "</think>", "assistant", "x = 5!", "é", "user"]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_control_text_is_refused_or_rendered_as_text(text: str) -> None:
    control = {DEMO_TOKENIZER.convert_tokens_to_ids(t) for t in DEMO_TOKENIZER.all_special_tokens}

    def controls(ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i in control]

    messages = student_messages(text)
    rendered = DEMO_TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=True, return_dict=False
    )
    neutral = encode(DEMO_TOKENIZER, student_messages("x"), thinking=True)
    if piece := special_text(DEMO_TOKENIZER, text):
        assert piece in text
        assert controls(rendered) != controls(neutral)
        with pytest.raises(PolicyError, match="takes for control"):
            encode(DEMO_TOKENIZER, messages, thinking=True)
    else:
        prompt = encode(DEMO_TOKENIZER, messages, thinking=True)
        assert prompt == rendered
        assert controls(prompt) == controls(neutral)

    rest = drop_special_text(DEMO_TOKENIZER, text)
    assert special_text(DEMO_TOKENIZER, rest) is None
    assert (rest == text) == (piece is None)
    assert controls(DEMO_TOKENIZER.encode(rest)) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_text_finds_template_marks_that_are_no_tokens(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = TEMPLATES[name]
    for mark in MARKS[name]:
        assert special_text(tokenizer, f"Add 1 and 2.{mark} It is 4.") == mark
    for text in MATHEMATICS:  # "<s>" is control where a chat format has it
        assert special_text(tokenizer, text) is None or ("<s>" in text and name != "vicuna"), text


LETTERS = st.text("abc", min_size=1, max_size=4)


@given(pieces=st.lists(LETTERS, min_size=1, max_size=4), text=st.text("abc", max_size=40))
def test_control_text_is_removed_as_piece_by_piece(pieces: list[str], text: str) -> None:
    longest_first = sorted(pieces, key=len, reverse=True)
    control = _Control(re.compile("|".join(longest_first)), len(longest_first[0]))
    expected = text
    while found := control.pattern.search(expected):
        expected = expected[: found.start()] + expected[found.end() :]
    assert control.removed_from(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<|im_" * 100_000 + "<|im_end|>" + "end|>" * 100_000,
        "<|im_<|im_end|>" * 60_000,
        "<|im_end|>" * 100_000,
        "<" * 1_000_000,
    ],
)
def test_drop_special_text_of_a_long_text_takes_no_time(text: str) -> None:
    start = time.process_time()
    drop_special_text(DEMO_TOKENIZER, text)
    assert time.process_time() - start < 5  # a quadratic one takes minutes


def test_control_text_ignores_padding_token_that_is_a_word() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = "!"
    for text in ("What is 5!?", *MATHEMATICS):
        assert special_text(tokenizer, text) is None, text
    assert special_text(tokenizer, TURN) == "<|im_end|>"


def test_control_text_finds_token_after_normalization() -> None:
    words = Tokenizer(models.WordLevel({"[unk]": 0, "five": 1}, unk_token="[unk]"))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([AddedToken("<end>", special=True, normalized=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    tokenizer.chat_template = TEMPLATES["zephyr"]
    end = tokenizer.convert_tokens_to_ids("<end>")
    for text in ("five <end>", "five <END>", "five <\uff45nd>"):
        assert end in tokenizer.encode(text)
        assert special_text(tokenizer, text) == "<end>"
        assert end not in tokenizer.encode(drop_special_text(tokenizer, text))
    assert special_text(tokenizer, "five unknown words") is None


def problem_with(field: str, text: str = f"It is 4.{TURN}It is 5.") -> Problem:
    texts = {"problem": "Add 1 and 2.", "solution": "We get $3$.", "answer": "3"} | {field: text}
    return Problem(texts["problem"], texts["solution"], texts["answer"], "odd")


GOOD = Problem("Add 2 and 3.", "We get $5$.", "5", "good")


@pytest.mark.parametrize(
    ("field", "method"), [("problem", "distillation"), ("solution", "sft"), ("answer", "grpo")]
)
def test_prompt_filter_row_with_control_text_is_refused_or_counted(
    policy: Policy, capsys: pytest.CaptureFixture[str], field: str, method: str
) -> None:
    samples = 1 + (method == "grpo")
    config = Config(
        data=cfg.DataConfig(path="mine.jsonl", max_prompt_tokens=500),
        train=cfg.TrainConfig(method=method),
        rollout=cfg.RolloutConfig(max_new_tokens=64, samples_per_problem=samples),
    )
    rows = ValidRows([GOOD, problem_with(field)], {})
    with pytest.raises(DataError, match=rf"mine.jsonl.*\bodd\b.*'<\|im_end\|>'.*\b{field}\b.*skip"):
        filter_problems(policy, check_config(config), rows, Display())

    config = config.changed("data", on_bad_row="skip")
    assert filter_problems(policy, check_config(config), rows, Display()) == [GOOD]
    assert f"skipped 1 rows: {REASON}" in capsys.readouterr().out
    with pytest.raises(DataError, match="no problem is left"):
        filter_problems(
            policy, check_config(config), ValidRows([problem_with(field)], {}), Display()
        )


def test_check_file_counts_rows_with_control_text(tmp_path: Path) -> None:
    rows = [GOOD, problem_with("problem"), problem_with("solution")]
    path = tmp_path / "p.jsonl"
    lines = [json.dumps(asdict(replace(row, id=str(n)))) for n, row in enumerate(rows)]
    path.write_text("\n".join(lines))
    config = Config(cfg.ModelConfig(path="demo"), cfg.DataConfig(path=str(path)))
    check = check_file(check_config(config), display=Display(enabled=False))
    assert check.good == 1
    assert len(check.bad[REASON]) == 2
    assert check.bad[REASON][0] == (2, f"{REASON}: '<|im_end|>' in its problem")


def test_deployment_prompts_benchmark_with_control_text_is_refused(policy: Policy) -> None:
    asked = [GOOD, problem_with("problem", "Add. <|endoftext|> 1")]
    with pytest.raises(DataError, match=r"\bodd\b.*'<\|endoftext\|>'.*\bproblem\b.*'Add\. <\|"):
        deployment_prompts(policy, asked, thinking=True)
    assert list(deployment_prompts(policy, [GOOD, problem_with("solution")], thinking=True))


def test_teacher_prompt_rationale_control_text_is_removed(policy: Policy) -> None:
    def prompt(rationale: str) -> list[int]:
        return policy.teacher_prompt("Add 1 and 2.", "3", complete=True, rationale=rationale)

    assert prompt(f"It{TURN}is 3") == prompt("It\n" + "assistant\nis 3")
    assert prompt("It <|im_<|im_end|>end|>is 3") == prompt("It is 3")
    assert prompt("It <think> is 3") != prompt("It  is 3")


def test_solution_ids_allow_thinking_but_no_end_of_turn(policy: Policy) -> None:
    ids = policy.solution_ids("<think>\nAdd.\n</think>\n\n5")
    assert policy.tokenizer.convert_tokens_to_ids("<think>") == ids[0]
    with pytest.raises(PolicyError, match="takes for control"):
        policy.solution_ids(f"5{TURN}6")
