"""A grader of the demo's problems that says what the first wrong step of a completion should be.

    paint train demo-opsd --context.source feedback --grading.grader examples.first_error:grade

What a word stands for is read from the reference. The feedback on a right completion is empty, so
nothing is learned from it.
"""

import re
from collections.abc import Mapping
from typing import Any

from paint.grading.contract import Grade

START = re.compile(r"Start at \$(\d+)\$")
OPERATION = re.compile(r"(\+|-|\\times )(\d+|[a-z]+)")
RULE = re.compile(r"A ([a-z]+) is \$(\d+)\$")
WRITTEN = re.compile(r"\d+(?:\+|-|\\times )\d+ \\equiv (?=(\d+))")
BOX = re.compile(r"\\boxed\{(\d+)\}")


def grade(completion: str, row: Mapping[str, Any]) -> Grade:
    steps, results = solve(row["problem"], dict(RULE.findall(row["solution"])))
    written = [int(result) for result in WRITTEN.findall(completion)]
    boxes = [int(number) for number in BOX.findall(completion)]
    if boxes and boxes[-1] == results[-1]:
        return Grade(1.0, "right answer")
    for number, step in enumerate(steps):
        if number == len(written):
            return Grade(0.0, f"no step {number + 1}", feedback=step)
        if written[number] != results[number]:
            return Grade(0.0, f"wrong step {number + 1}", feedback=step)
    return Grade(0.0, "wrong answer", feedback=f"The result is $\\boxed{{{results[-1]}}}$.")


def solve(problem: str, rules: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """Every step as it should be written, with the rule of its word, and its result."""
    start = START.match(problem)
    assert start is not None, problem
    value, steps, results = int(start[1]), [], []
    for sign, operand in OPERATION.findall(problem):
        rule = ""
        number = operand
        if operand in rules:
            number = rules[operand]
            rule = f"A {operand} is ${number}$. "
        step = f"{value}{sign}{number}"
        if sign == "+":
            value += int(number)
        elif sign == "-":
            value -= int(number)
        else:
            value *= int(number)
        value %= 100
        steps.append(f"{rule}${step} \\equiv {value}$.")
        results.append(value)
    return steps, results
