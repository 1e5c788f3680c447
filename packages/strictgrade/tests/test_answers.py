r"""The answer of a completion: its last box outside of a thought, or its stated letter."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strictgrade.choice import chosen_letter
from strictgrade.comparer import answer_text
from strictgrade.equality import boxed
from strictgrade.spelling import LONGEST_ANSWER
from verdicts import is_correct


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{\text{a}_{b_{c}}} and {more}", r"\text{a}_{b_{c}}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\framebox{7}", "7"),
        (r"\boxed{\fbox{7}}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{x \\} }", r"x \\"),
        (r"\boxed 5", "5"),
        (r"\boxed5.", "5"),
        (r"$\boxed -5$ is it", "-5"),
        (r"\(\boxed 5\)", "5"),
        (r"\boxed \frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed C", "C"),
        (r"{\boxed 5}", "5"),
        (r"\boxed{42}, as asked within \boxed{}.", "42"),
        (r"\boxed{42}, as asked in \boxed notation", "42"),
        (r"\boxed{42}, so it is \boxed{4", None),
        (r"\boxed{42}, so it is \boxed{\frac{4}{", None),
        (r"\boxed", None),
        (r"\boxed{}", None),
        (r"\boxed{ \boxed{ } }", r"\boxed{ }"),
        (r"\boxedfoo{3}", None),
        ("42", None),
        ("", None),
    ],
)
def test_boxed_returns_last_nonempty_box(text: str, content: str | None) -> None:
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{1}", "1"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> done", None),
        (r"<think>\boxed{1}", None),
        (r"<think>\boxed{1}</think> \boxed{2} <think> hm", None),
        (r"<think>a</think> <think>b</think> \boxed{2}", "2"),
        (r"<think>a <think> b</think> \boxed{2}", "2"),
        (r"<think>a</think> b </think> \boxed{2}", "2"),
    ],
)
def test_answer_text_ignores_think_block(completion: str, answer: str | None) -> None:
    assert answer_text(completion) == answer


@given(st.integers(), st.integers())
def test_is_correct_integers_compare_by_value(a: int, b: int) -> None:
    assert is_correct(rf"$\boxed{{{a:,}}}$", f"${b:+}$") == (a == b)
    assert is_correct(rf"$\boxed{{{a:,}}}$.".replace(",", "{,}"), f"{a:07}.")


@pytest.mark.parametrize("unit", ["1,000", r"\frac{", " ", "-"])
def test_is_correct_time_is_linear_in_answer_length(unit: str) -> None:
    def seconds(length: int) -> float:
        gold = "x" + unit * (length // len(unit))
        closed = rf"\boxed{{{gold}" + "}" * (1 + gold.count("{") - gold.count(r"\{"))
        began = time.process_time()
        for completion in (closed, closed + r"\boxed{x}"):
            is_correct(completion, gold)
        return time.process_time() - began

    # Ten times the length; what grows with the square would cost a hundred times.
    assert seconds(20 * LONGEST_ANSWER) < 0.5 + 40 * seconds(2 * LONGEST_ANSWER)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"It is B, so \boxed{A}", "A"),
        (r"\boxed{\text{(c)}}", "C"),
        (r"\boxed{B. Paris}", "B"),
        (r"\boxed{Option D}", "D"),
        (r"\boxed{Paris}", None),
        ("The answer is A. No, the answer is **(B)**.", "B"),
        ("Answer: option C", "C"),
        ("The answer is a city.", None),
        ("D", "D"),
        ("B) Paris", "B"),
        ("A city in France", None),
        ("<think>The answer is A</think>\nC", "C"),
        ("<think>The answer is A", None),
        (r"\boxed{E: A polygenic score}", "E"),
        (r"\boxed{\textbf{(D)}\ 12}", "D"),
        (r"\boxed{Ｂ}", "B"),
        ("Answer：（Ｂ）", "B"),
        ("The correct option is **C**.", "C"),
        ("The answer is a prime number: B", "B"),
        ("The answer is A, I think.", "A"),
        ("Answer: B because A and C are wrong", "B"),
        (r"\boxed{\langle H\rangle \ll \Delta E} **Answer: D**", "D"),
        (r"The answer is D. \boxed{E = mc^2}", "D"),
        (r"\boxed{A and C}", None),
        (r"\boxed{A, C}", None),
        (r"\boxed{A/B}", None),
        (r"\boxed{AC}", None),
        (r"\boxed{A \text{ or } B}", None),
        (r"\boxed{(A),(C)}", None),
        (r"\boxed{A: 5, B: 6}", None),
        (r"\boxed{A} or \boxed{B}", None),
        (r"\boxed{A}, \boxed{B}", "B"),
        (r"\boxed{A}; \boxed{B}", None),
        (r"The answer is A. \boxed{A, C}", None),
        ("Answer: A or B", None),
        ("Answer: (A) Paris and (C) Rome", None),
        (r"\boxed{C(n,2)}", None),
        (r"\boxed{E = mc^2}", None),
        (r"\boxed{x=5}", None),
        (r"\boxed{A_1}", None),
        (r"\boxed{A \cup B}", None),
        (r"\boxed{A polygenic score}", None),
        (r"\boxed{I don't know}", None),
        (r"\boxed{Not B}", None),
        (r"\boxed{B is wrong}", None),
        (r"\boxed{Ⓑ}", "B"),
        (r"\boxed{\textcircled{B} 12}", "B"),
        ("Answer: 🅑", "B"),
        ("Answer: 'B'", "B"),
        ("The answer is ‘B’.", "B"),
        ("Answer: 'A' or 'B'", None),
        ("<answer>B</answer>", "B"),
        ("So it is.\n<answer>\n(B) Paris\n</answer>", "B"),
        ("<answer>A or B</answer>", None),
        ("<answer>Paris</answer>", None),
        ("答案：B", "B"),
        ("正确答案是 B。", "B"),
        ("答案：A、B", None),
        (r"\boxed{ⒶⒷ}", None),
    ],
)
def test_chosen_letter_is_that_of_box_or_stated_answer(text: str, letter: str | None) -> None:
    assert chosen_letter(text) == letter
