"""Normalisation, anchors, overlap, mask ratio and masked solution."""

import re
import time
from itertools import product
from pathlib import Path
from statistics import mean, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.objective.masking import (
    MARKER,
    Placement,
    anchors,
    mask_ratio,
    mask_solution,
    normalize,
    overlap,
    overlap_metrics,
)
from runs import rows_of

SAMPLES = Path(__file__).parents[1] / "samples"
ROLLOUTS = rows_of(SAMPLES / "math_rollouts.jsonl")

FRAGMENTS = r"""
$ $$ \( \) \[ \] { } \{ \} ( ) [ ] ^ _ ' \prime ^{\prime} \frac \dfrac \sqrt √ \binom \boxed{ \boxed
\fbox{ \framebox[2cm]{ \text{ \text \mathrm{ \pmod{ \bmod \operatorname*{ \left \right \left. \, \!
\; ~ \\ \\[4pt] \ & \% \$ \# \_ \not = < <= <=> > -> - + * / ! \cdot × ÷ − ≤ \le \leq \alpha α \foo
\a a b xy sin \sin \log 0 1 2 12 000 345 1,000 1{,}000 1\,000 , {,} . ... … \ldots \circ ^\circ
^{\circ} ° \begin{align} \end{align} \begin \end{ \begin{array}{cc} \tag{1} \tag \phantom{2} \quad ²
é 1/2 3/ ^{2} _{i} ^12 | \mid [asy] [/asy] <img_12> or The x=5 \pmod
"""
BLANKS = [*" \n\u00a0\x00\x01\x04\ud800", "\n\n", ", ", ". ", r"\text{ or }", "a b", r"\ "]
latex_like = st.lists(st.sampled_from(FRAGMENTS.split() + BLANKS), max_size=14).map("".join)
any_text = st.text() | latex_like
many = settings(max_examples=200)


@many
@given(any_text)
def test_normalize_is_idempotent(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        (r"We get $x=\boxed{\frac{3}{4}}$.", (r"\frac{3}{4}",)),
        (r"so \fbox{7} or \framebox{B}, \framebox[3em]{c}", ("7", "B", "c")),
        (r"$\boxed 9$ and $\boxed8$", ("9", "8")),
        (r"\boxed{\{1,\{2\}\}}", (r"\{1,\{2\}\}",)),
        (r"\boxed{\text{yes, \boxed{5}}}", ("yes", "5")),  # each of nested boxes for itself
        (r"Hence $n=\boxed{42$. More prose follows.", ("42", "n=42")),
        (r"\boxed{x}y, a\boxed{b} and $2$\boxed{3n} p", ("x", "b", "3n")),
        (r"\boxed{C}is right, I $\boxed{D}$\nE", ("C", "D")),
        (r"\boxed{A}\boxed{B}, \boxed 7,500", ("A", "B", "7", "500")),
        (r"$a_{10}=b_{12}+1$, $x_{2^{10}}$, $y_345$ and $z_{i,20}$", ("b_{12}+1",)),
        (
            r"$\sum_{k=10}^{20} a_{30}$ and $\int_{40}^{50} f$ for $x_{\max}=60$",
            (
                r"\sum_{k=10}^{20}a_{30}",
                r"\int_{40}^{50}f",
                "x_{max}=60",
                *(["10", "20", "40", "50", "60"]),
            ),
        ),
        (r"$\sum_{i\in I_0} m_{i}=7$", (r"\sum_{i∈I_{0}}m_{i}",)),
        (r"no answer in \boxed{} or \boxed{\phantom{2}}", ()),
        (
            "\\begin{align*}\n 2x+3 &= 11 \\\\\n 2x &= 8 \\\\\n x &= \\boxed{4}.\n\\end{align*}",
            ("2x+3", "11", "2x=8", "4", "x=4"),
        ),
        (
            "$$\n\\begin{aligned}\n(n+1)^{2} & =n^{2}+2 n+1 \\\\[4pt]\n"
            "& \\leq 3 n^{2}\n\\end{aligned}\n$$",
            ("(n+1)^{2}", "n^{2}+2n+1", "3n^{2}"),
        ),
        (
            r"The area is $\frac{1}{2}\cdot 6\cdot 16 = 48\text{ cm}^2$.",
            (r"\frac{1}{2}*6*16", r"\frac{1}{2}", "16", "48cm^{2}", "48"),
        ),
        (r"In total \$1,250 and $12{,}500$ people, not (1,250).", ("1250", "12500", "250")),
        (
            r"$\angle ABC = 45^\circ$, so $3x + 36^{\circ} = 180^\circ$",
            ("∠ABC=45°", "45", "3x+36°", "36", "180"),
        ),
        (r"$x$, $a_{k+1}$, $f(x)$, $=$ and $ABC$ name things; 7 is a digit.", ()),
        (r"pairs $(2,7)$ and $(a,b)$ with $a=1\text{ or }b>2$", ("(2, 7)", "a=1", "b>2")),
        (r"$\sum_{k=1}^n k=\frac n2$, $n \geq 1$", (r"\sum_{k=1}^{n}k", r"\frac{n}{2}", "n≥1")),
        ("Then 12 * 3 = 36, and 4.50 in a 2:30 talk.", ("12*3", "12", "36", "4.50", "30")),
        (r"[asy] draw((17,23)--(x+1,y)); label(\"$42$\"); [/asy] See <img_3188>: $17$", ("17",)),
        ("Half of 1/4+1/8 is left.", (r"\frac{1}{4}+\frac{1}{8}", r"\frac{1}{4}", r"\frac{1}{8}")),
        ("It costs $5 and then\n\n$y=3x+1$", ("3x+1",)),
        (r"So $1) x+1=3+4$.", ("3+4",)),  # a bracket that nothing opened
    ],
)
def test_anchors_match_expected(solution: str, expected: tuple[str, ...]) -> None:
    assert sorted(anchors(solution)) == sorted(expected)


@pytest.mark.parametrize(
    ("completion", "share"),
    [
        (r"So \(a + b = 12\), b+c = 30.", 4 / 6),
        ("The answer is 25.", 1 / 6),
        ("112, 3.12, 12.5, 120, 1,012 and 0.30", 0.0),  # digits at an edge make another number
        ("12, 25. And 30!", 3 / 6),
        ("xa+b and a+bc", 0.0),  # letters at an edge make another word
        ("2a+b", 1 / 6),
        ("", 0.0),
    ],
)
def test_overlap_counts_complete_anchors(completion: str, share: float) -> None:
    solution = r"From $a+b=12$ and $b+c=30$ we get $a+b+c=25$."
    assert overlap(completion, solution) == pytest.approx(share)


@many
@given(
    st.text("abxyzπ", max_size=2),
    st.sampled_from(["", " ", "$", ", ", r"\,"]),
    st.text("abxyzπ27", min_size=1, max_size=3),
    st.sampled_from(["", " ", "$", ",", r"\,"]),
    st.text("abxyzπ05", max_size=3),
)
def test_anchors_include_boxed_answer_between_any_text(
    before: str, left: str, answer: str, right: str, after: str
) -> None:
    solution = f"{before}{left}\\boxed{{{answer}}}{right}{after}"
    assert anchors(rf"\boxed{{{answer}}}")[0] in anchors(solution)
    assert overlap(solution, solution) == 1.0


def test_overlap_without_answer_excludes_boxed() -> None:
    solution = r"From $a+b=12$ and $b+c=30$ we get $a+b+c=25$, so $\boxed{25}$."
    for completion, reference, both in (
        ("The answer is 25.", solution, (1 / 6, 0.0)),
        ("a+b=12", solution, (2 / 6, 2 / 5)),
        (solution, solution, (1.0, 1.0)),
        ("It is 7.", r"It is $\boxed{7}$.", (1.0, 0.0)),  # there is no other anchor
        ("Obvious.", "Obvious.", (0.0, 0.0)),
    ):
        expected = dict(zip(("overlap", "overlap_without_answer"), both, strict=True))
        assert overlap_metrics(completion, reference) == expected


def test_anchors_are_limited_to_first_thousand() -> None:
    found = anchors(" ".join(f"$x+{i}$" for i in range(100, 2000)))
    assert found[:3] == ("x+100", "100", "x+101")
    assert len(found) == 1000


@many
@given(latex_like, latex_like)
def test_overlap_with_itself_is_one(solution: str, completion: str) -> None:
    wanted = anchors(solution)
    assert overlap(solution, solution) == (1.0 if wanted else 0.0)
    assert overlap(completion, solution) in {
        found / max(len(wanted), 1) for found in range(len(wanted) + 1)
    }
    assert len(set(wanted)) == len(wanted)


LONG = {
    "boxes": r"\boxed{" * 25_000,
    "dollars": "$" * 250_000,
    "braces": "{" * 250_000,
    "powers": "^" * 250_000,
    "commas": "1," * 125_000,
    "fractions": r"\frac{" * 40_000,
    "a long answer": r"\boxed{" + "xy " * 75_000 + "x}" + "xy " * 8_000,
    "indices": "_{a_{" * 50_000,
    "nested indices": "_{" + "{a}_{b" * 40_000,
    "letters in boxes": "x \x04 " + r"\boxed a " * 25_000,
    "marks": "}$(\ud800\x03=\\ and then some more of it, " * 8_000,
    "formulas": "".join(f"Let $x_{{{i}}}+{i}=\\frac{{{i}}}{{7}}$. " for i in range(8_000)),
    # each number stands in all before it
    "runs": " ".join("1" * length for length in range(400, 1, -1)),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_overlap_and_masking_of_long_texts_are_fast(text: str) -> None:
    # CPU seconds, a limit that a quadratic step misses by far and a busy machine does not
    start = time.process_time()
    assert overlap(text, text) in (0.0, 1.0)
    for placement in ("suffix", "punctuation"):
        assert MARKER in mask_solution(text, 0.4, placement=placement)
    assert time.process_time() - start < 3


@given(st.floats(0, 1), st.floats(0, 0.999), st.floats(0, 0.999))
def test_mask_ratio_is_affine_in_overlap(alpha: float, one: float, other: float) -> None:
    wrong, correct = sorted((one, other))
    ratio = mask_ratio(alpha, wrong=wrong, correct=correct)
    assert ratio == pytest.approx((1 - alpha) * wrong + alpha * correct, abs=1e-12)
    assert mask_ratio(alpha / 2, wrong=wrong, correct=correct) <= ratio
    assert mask_ratio(alpha, wrong=wrong, correct=wrong) == wrong


# No blanks, so that every character can be counted.
SOLID = "".join(chr(ord("a") + i % 26) for i in range(200))
PLACEMENTS: tuple[Placement, ...] = ("suffix", "prefix", "middle", "random", "punctuation")


@given(
    st.text("abcdef0123.$", min_size=1, max_size=80),
    st.floats(0, 0.99),
    st.sampled_from(PLACEMENTS),
    st.integers(),
)
def test_mask_solution_hides_one_block(
    solution: str, ratio: float, placement: Placement, seed: int
) -> None:
    shown = mask_solution(solution, ratio, placement=placement, seed=seed)
    hidden = int(ratio * len(solution) + 1e-9)
    assert (MARKER in shown) == (hidden > 0)
    if not hidden:
        assert shown == solution
        return
    before, _, after = shown.partition(MARKER)
    before, after = before.removesuffix(" "), after.removeprefix(" ")
    assert solution.startswith(before)
    assert solution.endswith(after)
    if placement == "punctuation":
        assert len(before) <= len(solution) - hidden
    else:
        assert len(before) + hidden + len(after) == len(solution)
    assert before == "" or placement != "prefix"
    assert after == "" or placement not in ("suffix", "punctuation")
    if placement == "middle":
        assert 0 <= len(after) - len(before) <= 1


def test_mask_solution_placement_hides_expected_part() -> None:
    assert mask_solution(SOLID, 0.4) == f"{SOLID[:120]} {MARKER}"
    assert mask_solution(SOLID, 0.4, placement="prefix") == f"{MARKER} {SOLID[80:]}"
    assert mask_solution(SOLID, 0.4, placement="middle") == f"{SOLID[:60]} {MARKER} {SOLID[140:]}"
    # 0.29 * 200 is 57.99999... in floats
    assert mask_solution(SOLID, 0.29) == f"{SOLID[:142]} {MARKER}"
    assert mask_solution("one two three four", 0.5) == f"one two t {MARKER}"
    # the blank beside the block goes
    assert mask_solution("one two three", 0.4) == f"one two {MARKER}"


def test_mask_solution_random_depends_only_on_seed() -> None:
    masks = [mask_solution(SOLID, 0.4, placement="random", seed=seed) for seed in range(50)]
    assert masks == [mask_solution(SOLID, 0.4, placement="random", seed=seed) for seed in range(50)]
    starts = {mask.index(MARKER) for mask in masks}
    assert len(starts) > 25
    assert min(starts) < 20
    assert max(starts) > 100
    assert max(starts) <= 121  # 200 - 80 and a blank
    with pytest.raises(ValueError, match="needs a seed"):
        mask_solution(SOLID, 0.4, placement="random")


@pytest.mark.parametrize(
    ("solution", "ratio", "visible"),
    [
        ("First we add. Then we divide by two.", 0.3, "First we add."),
        ("First we add. Then we divide by two.", 0.8, "First we"),  # no end
        # no end in the second half of what is visible
        ("One. Then we add all of them and divide it by two", 0.5, "One. Then we add all of t"),
        (
            "We know $a. B$ holds, it ends there. Fine then, all.",
            0.3,
            "We know $a. B$ holds, it ends there.",
        ),
        (r"Take \[ x = 1. Y \] and go on with the rest of it.", 0.5, r"Take \[ x = 1. Y \]"),
        (r"Take $$ x = 1. Y $$ and go on with the rest of it.", 0.5, r"Take $$ x = 1. Y $$"),
        (
            "It is 2:30 p.m. in this, and pi is 3.14, they say.",
            0.4,
            "It is 2:30 p.m. in this, and p",
        ),
        ("One paragraph\n\nAnother one that is hidden", 0.5, "One paragraph"),
        (r"\begin{align} a. B \end{align} then some more", 0.3, r"\begin{align} a. B \end{align}"),
    ],
)
def test_mask_solution_punctuation_keeps_sentences_and_displays(
    solution: str, ratio: float, visible: str
) -> None:
    assert mask_solution(solution, ratio, placement="punctuation") == f"{visible} {MARKER}"


def test_anchors_of_real_solutions_are_normalized_and_complete() -> None:
    for row in rows_of(SAMPLES / "olympiad_solutions.jsonl") + ROLLOUTS:
        solution = row["solution"]
        wanted = anchors(solution)
        assert wanted, solution
        assert overlap(solution, solution) == 1.0
        assert [normalize(anchor) for anchor in wanted] == list(wanted)
        third = len(solution) // 3
        torn = solution[third:-third]  # formulas and braces without their partners
        assert overlap(torn, torn) in (0.0, 1.0)
        for text in (row["problem"], solution, torn, *row.get("completions", [])):
            assert normalize(normalize(text)) == normalize(text)


def test_anchors_of_real_solution_include_boxed_answer() -> None:
    for row in ROLLOUTS:
        answer = normalize(row["answer"]).rstrip(".")
        assert answer in [anchor.rstrip(".") for anchor in anchors(row["solution"])]


@pytest.mark.parametrize(
    ("name", "mean_below", "most_below"),  # measured on the sample: 0.007, 0.07; 0.034, 0.20
    [("olympiad_solutions.jsonl", 0.03, 0.2), ("math_rollouts.jsonl", 0.08, 0.4)],
)
def test_overlap_with_others_is_small(name: str, mean_below: float, most_below: float) -> None:
    solutions = [row["solution"] for row in rows_of(SAMPLES / name)]
    n = len(solutions)
    pairs = [(i, (i + shift) % n) for i, shift in product(range(n), (1, n // 3))]
    others = [overlap(solutions[j], solutions[i]) for i, j in pairs]
    assert mean(others) < mean_below
    assert quantiles(others, n=20)[-1] < most_below


def test_anchors_match_documented_cases() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/anchors.md").read_text(encoding="utf-8")
    cases = re.findall(r"^```latex\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.M | re.S)
    assert len(cases) == page.count("\n## ") - 2 == 10  # the last two sections have no case
    for solution, listed in cases:
        assert anchors(solution) == tuple(listed.splitlines())
