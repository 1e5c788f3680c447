r"""Verdicts: which answer a completion really gives, and whether it is the gold one."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paint.grading import answer_text, boxed, is_correct

ROLLOUTS = Path(__file__).parents[2] / "shared/data/math_rollouts.jsonl"


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
def test_the_last_box_that_holds_something_is_the_answer(text: str, content: str | None) -> None:
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
def test_an_answer_counts_only_outside_a_think_block(completion: str, answer: str | None) -> None:
    assert answer_text(completion) == answer


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("1{,}000", "1000"),
        ("1,000,000", "1000000"),
        (r"1\,000", "1000"),
        (r"1,\!000", "1,000"),
        ("007", "7"),
        ("+5", "5"),
        ("-0", "0"),
        ("000", "0"),
        ("- 5", "-5"),
        ("\u2212005", "-5"),
        ("$5$", "5"),
        ("$$5$$", "5"),
        (r"\(5\)", "5"),
        ("5.", "5"),
        ("$5$.", "$5.$"),
        ("5", r"$\boxed{5}$"),
        ("5", r"So the answer is $\boxed{5}$."),
        ("9" * 6000, "0" + "9" * 6000),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\frac{ 1 }{2}", r"$\frac{1}{2}$"),
        ("(1, 2)", "(1,2)"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    ],
)
def test_spellings_of_one_answer_are_equal(given: str, gold: str) -> None:
    assert is_correct(rf"It is $\boxed{{{given}}}$.", gold)


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("5", "-5"),
        ("50", "5"),
        ("1,00", "100"),
        ("1,0000", "10000"),
        ("1, 000", "1000"),
        ("1000,000", "1000000"),
        ("\u0665", "5"),
        ("0.333..", "0.333"),
        ("5, 6", "56"),
        ("(1,2)", "(2,1)"),
        (r"\frac{1}{2}", r"\frac{1}{3}"),
        ("x", "y"),
        (" ", " "),
        ("$ $", "$"),
        (r"5 \text{ cm}", "6"),
    ],
)
def test_different_answers_are_not_equal(given: str, gold: str) -> None:
    assert not is_correct(rf"It is $\boxed{{{given}}}$.", gold)


def test_a_right_number_without_a_box_or_in_an_open_thought_is_not_an_answer() -> None:
    assert not is_correct("The answer is 5.", "5")
    assert not is_correct(r"<think> so \boxed{5}", "5")
    assert not is_correct("", "")
    assert not is_correct(r"\boxed{}", "")


@given(st.integers(), st.integers())
def test_integers_are_equal_exactly_when_their_values_are(a: int, b: int) -> None:
    assert is_correct(rf"$\boxed{{{a:,}}}$", f"${b:+}$") == (a == b)
    assert is_correct(rf"$\boxed{{{a:,}}}$.".replace(",", "{,}"), f"{a:07}.")


PIECES = st.sampled_from(
    [
        "\\",
        "{",
        "}",
        "$",
        "boxed",
        "\\boxed",
        "\\boxed{",
        "<think>",
        "</think>",
        "\\frac",
        "1",
        "-",
        ",",
        ".",
        " ",
        "\ud800",
    ]
)


@given(st.lists(PIECES | st.text(max_size=3)).map("".join), st.lists(PIECES).map("".join))
def test_no_text_makes_grading_fail(completion: str, answer: str) -> None:
    text = answer_text(completion)
    assert text is None or text == text.strip() != ""
    assert is_correct(completion, answer) in (True, False)
    if text is None:
        assert not is_correct(completion, answer)


@given(st.text(alphabet="abc12+-{}\\ ,.$", max_size=20).filter(lambda text: boxed(rf"\boxed{{{text}}}") == text))
def test_what_is_put_into_a_box_comes_out_of_it(text: str) -> None:
    assert boxed(rf"\boxed{{1}} then $\boxed{{{text}}}$ and {{more}}") == text


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 150_000,
        r"\boxed{" * 100_000 + "}" * 100_000,
        r"\boxed{}" * 125_000,
        r"\boxed " * 150_000,
        r"\boxed word " * 80_000,
        r"\boxed a{" * 110_000,
        r"\boxed{" + "{" * 1_000_000,
        "<think>" * 140_000,
        "<think></think>" * 70_000,
        "\\" * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_megabyte_of_anything_is_searched_in_moments(text: str) -> None:
    began = time.process_time()
    answer_text(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("unit", ["1", "1,000", "$", "{", r"\{", r"\frac", r"\frac{", r"\text{", " ", "\\", "-", "."])
def test_a_long_answer_is_compared_in_time_that_grows_with_its_length(unit: str) -> None:
    def seconds(length: int) -> float:
        content = unit * (length // len(unit))
        completion = r"\boxed{x" + content + "}" * (1 + content.count("{") - content.count(r"\{")) + r"\boxed{x}"
        gold = "x" + content
        began = time.process_time()
        is_correct(completion.removesuffix(r"\boxed{x}"), gold)
        is_correct(completion, gold)
        return time.process_time() - began

    # Ten times the length; what grows with the square would cost a hundred times.
    assert seconds(20_000) < 0.5 + 40 * seconds(2_000)


@pytest.mark.skipif(not ROLLOUTS.exists(), reason=f"needs the rollouts of a real model in {ROLLOUTS}")
def test_verdicts_on_real_rollouts_agree_with_the_given_ones() -> None:
    graded = [
        (row["answer"], is_correct(completion, row["answer"]), correct)
        for row in map(json.loads, ROLLOUTS.read_text(encoding="utf-8").splitlines())
        for completion, correct in zip(row["completions"], row["correct"], strict=True)
    ]
    assert len(graded) == 320
    # Nothing wrong counts as right: the one answer here is what all eight say, 4:30 \text{ p.m.}
    assert {answer for answer, mine, given in graded if mine and not given} <= {r"\text{4:30 p.m.}"}
    # Nothing right counts as wrong but for a unit that only the gold answer has.
    units = {r"100\text{ square units}", r"48^\circ", r"120^\circ", r"198\%"}
    assert {answer for answer, mine, given in graded if given and not mine} <= units
    assert sum(mine == given for _, mine, given in graded) >= 280
