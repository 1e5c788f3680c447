"""A reference brings one thought a turn, where the prompt has room for one, or is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chat_templates import tokenizer_of
from chatforms.conventions import read_thinking
from paint.core.display import Display
from paint.data.problems import DataError, Problem, ValidRows
from paint.models.model_errors import PromptError
from paint.models.policy import Policy
from paint.models.references import LEFT_OUT, OPENED, TEXT, Reference, fit_reference
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems
from runs import changed

FULL, LONE, PLAIN = "<think>\nadd\n</think>\n\n5", "add\n</think>\n\n5", "It is 5."
CLOSE = "\n</think>\n\n"


def fit(template: str, solution: str, thinking: bool) -> Reference:
    known = read_thinking(tokenizer_of(template), "2024-02-03")
    return fit_reference(solution, known, thinking=thinking)


@pytest.mark.parametrize(
    ("template", "thinking", "solution", "expected"),
    [
        ("QWEN3", False, PLAIN, Reference("", PLAIN)),
        ("QWEN3", False, FULL, Reference("", "5", LEFT_OUT)),
        ("QWEN3", False, LONE, Reference("", "5", LEFT_OUT)),
        ("QWEN3", False, "<think>\n\n</think>\n\n" + FULL, Reference("", "5", LEFT_OUT)),
        ("QWEN3", True, PLAIN, Reference("", PLAIN)),
        ("QWEN3", True, FULL, Reference("", FULL)),
        ("QWEN3", True, LONE, Reference("", f"<think>\n{LONE}", OPENED)),
        ("QWEN3", True, "<think>\n\n</think>\n\n" + FULL, Reference("", FULL)),
        ("QWEN3", True, "<think></think>\n" + LONE, Reference("", f"<think>\n{LONE}", OPENED)),
        (
            "QWEN3",
            True,
            "<think>a <think> b</think>5",
            Reference("", "<think>a <think> b</think>5"),
        ),
        ("QWEN3", False, "<reasoning>a</reasoning>5", None),
        ("R1", False, PLAIN, Reference(CLOSE, PLAIN)),
        ("R1", True, FULL, Reference("", LONE)),
        ("R1", False, LONE, Reference("", LONE)),
        ("DEEPSEEK_V3", False, FULL, Reference("", "5", LEFT_OUT)),
        ("DEEPSEEK_V3", True, FULL, Reference("", LONE)),
        ("SEED", False, "<seed:think>\na</seed:think>5", Reference("", "5", LEFT_OUT)),
        ("SEED", True, "a</seed:think>5", Reference("", "<seed:think>\na</seed:think>5", OPENED)),
        ("SEED", True, FULL, Reference("", FULL, TEXT)),
        ("CHATML", False, FULL, Reference("", FULL)),  # its prompt says nothing of thinking
        ("CHATML", False, LONE, Reference("", f"<think>\n{LONE}", OPENED)),
    ],
)
def test_fit_reference_leaves_one_thought_a_turn(
    template: str, thinking: bool, solution: str, expected: Reference | None
) -> None:
    expected = expected or Reference("", solution, TEXT)
    assert fit(template, solution, thinking) == expected


def test_fit_reference_model_without_thoughts_keeps_and_opens_those_of_others() -> None:
    known = replace(read_thinking(tokenizer_of("QWEN3"), "2024-02-03"), tags=())
    known = replace(known, closed=(False, False))
    assert fit_reference(FULL, known, thinking=False) == Reference("", FULL, TEXT)
    opened = Reference("", f"<think>\n{LONE}", OPENED)
    assert fit_reference(LONE, known, thinking=False) == opened


@pytest.mark.parametrize("template", ["QWEN3", "R1", "CHATML"])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    ("solution", "fault"),
    [
        ("<think>\nadd. It is 5.", "opens a thought and does not close it"),
        ("<think>a</think>5<think>", "opens a thought and does not close it"),
        ("<think>a</think><think>b</think>5", "closes several thoughts"),
        ("a</think>b</think>5", "closes several thoughts"),
        ("Sure. <think>a</think>5", "has text before its thought"),
        ("<think>a</think>\n", "ends with its thought"),
        ("a</reasoning>5", "closes a thought by </reasoning>"),
    ],
)
def test_fit_reference_thought_that_fits_no_turn_is_refused(
    template: str, thinking: bool, solution: str, fault: str
) -> None:
    with pytest.raises(PromptError, match=rf"a solution {fault}"):
        fit(template, solution, thinking)


def problems(solutions: Sequence[str]) -> list[Problem]:
    return [Problem(f"What is {i}?", s, "5", str(i)) for i, s in enumerate(solutions, start=1)]


def test_filter_problems_counts_thoughts_and_refuses_those_that_do_not_fit(
    policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    run = check_config(changed("demo-sft", {"data": {"path": "rows.jsonl"}}))
    rows = problems([FULL, PLAIN, LONE])
    assert filter_problems(policy, run, ValidRows(rows, {}), Display()) == rows
    assert "2 of 3 solutions bring a thought, which is left out" in capsys.readouterr().out
    thinks = replace(policy, student_thinking=True)
    filter_problems(thinks, run, ValidRows(rows, {}), Display())
    assert "1 of 3 solutions close a thought that they do not open" in capsys.readouterr().out
    rows += problems(["<think>\nadd"] * 4)[3:]
    with pytest.raises(DataError, match=r"rows.jsonl: the solution of problem 4 opens .* skip"):
        filter_problems(policy, run, ValidRows(rows, {}), Display())
    run = run.changed("data", on_bad_row="skip")
    assert filter_problems(policy, run, ValidRows(rows, {}), Display()) == rows[:3]
    run = check_config(changed("demo-paint", {"data": {"path": "rows.jsonl"}}))
    # The teacher reads it, and no student writes it.
    assert filter_problems(policy, run, ValidRows(rows, {}), Display()) == rows
