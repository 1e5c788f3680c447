"""Evaluate and train Qwen2.5-Coder-0.5B-Instruct on GSM8K with a Python tool.

python examples/qwen/python_tool.py --model FOLDER --test FILE --train FILE
python examples/qwen/python_tool.py --model FOLDER --test FILE --train FILE --blocks

With --blocks, a copy of the chat template spells calls as blocks of JSON, as this model writes
them: its head has no row of its own for <tool_call> (docs/how-to/turns-and-tools.md).
"""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

import paint
from paint.core.storage import read_jsonl

ASKED = "Call the tool python to compute the answer. Then write it as \\boxed{answer}."
EXAMPLE = """First call the tool, as in
<tool_call>
{"name": "python", "arguments": {"code": "12 * 3 + 4"}}
</tool_call>
When you have its result, write the final answer within \\boxed{}."""
"""What is asked behind each problem: of a template with blocks, and of the model's own."""

BLOCKS = {
    r"within <tool_call></tool_call> XML tags:\n<tool_call>\n": r"in a block:\n```json\n",
    r"\n</tool_call><|im_end|>": r"\n```<|im_end|>",
    r"'\n<tool_call>\n{": r"'\n```json\n{",
    r"'}\n</tool_call>'": r"'}\n```'",
}
"""What takes the place of marks in Qwen2.5's chat template."""

OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (abs, float, int, max, min, round)},
    "ceil": math.ceil,
    "floor": math.floor,
    "print": lambda *values: values[-1],
    "sum": lambda *values: sum(values),
}
TEMPLATE = "chat_template.jinja"
LARGEST = 1e15
"""Beyond it a number is refused, so that no product takes long."""

FORMULA = re.compile(r"([\d.(][\d.+\-*/() ]*[+\-*/][\d.+\-*/() ]*[\d.)]) *=")
"""What stands before an equals sign in a solution of GSM8K."""


def python(code: str) -> str:
    """Runs lines of Python that compute with numbers, and returns the value of the last line.

    Args:
        code: Assignments and formulas, such as "a = 3 * 4\\na + 2". There are no imports and loops.
    """
    # The lines are computed here and not run: what they can do and how long they take is bounded.
    if len(code) > 2_000:
        raise ValueError("the code has more than 2,000 characters")
    names: dict[str, float] = {}
    lines = ast.parse(code.strip()).body
    if not lines:
        raise ValueError("the code has no line")
    for line in lines:
        if not isinstance(line, ast.Assign | ast.Expr):
            raise ValueError(f"line {line.lineno} is no assignment and no formula")
        value = value_of(line.value, names)
        if isinstance(line, ast.Assign):
            names |= {ast.unparse(target): value for target in line.targets}
    return f"{value:.10g}"


def value_of(node: ast.expr, names: Mapping[str, float]) -> float:
    """The number that a formula gives. Raises ValueError for what is none."""
    match node:
        case ast.Constant(value=int() | float() as value):
            pass
        case ast.Name(id=name) if name in names:
            value = names[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATIONS:
            value = OPERATIONS[type(op)](value_of(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            value = OPERATIONS[type(op)](value_of(left, names), value_of(right, names))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as given) if name in FUNCTIONS:
            value = FUNCTIONS[name](*(value_of(one, names) for one in given))
        case _:
            raise ValueError(
                f"{ast.unparse(node)} is no number, no + - * / // % and none of "
                f"{', '.join(FUNCTIONS)}"
            )
    if not abs(value) <= LARGEST:
        raise ValueError(f"a number is beyond {LARGEST:g}")
    return value


@dataclass(frozen=True)
class Options:
    """Measure what a small model does with a Python tool (docs/how-to/turns-and-tools.md)."""

    model: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    """Hub name, or a folder, which --blocks needs."""
    test: str = "gsm8k_test.jsonl"
    """JSONL with problem and answer."""
    train: str = "gsm8k_train.jsonl"
    """JSONL with problem, solution and answer."""
    folder: Path = Path("runs/python-tool")
    problems: int = 24
    tokens: int = 160
    """Most new tokens of a turn; without the tool, of twice as many."""
    steps: int = 6
    """Steps of SFT on written chats; 0: none."""
    batch: int = 8
    learning_rate: float = 3e-4
    blocks: bool = False
    """Spell calls as blocks of JSON."""

    @property
    def asked(self) -> str:
        """What is asked behind each problem."""
        return ASKED if self.blocks else EXAMPLE


def with_blocks(model: Path, folder: Path) -> str:
    """A folder with a model's files, whose chat template spells calls as blocks of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        link = folder / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())
    template = in_blocks((model / TEMPLATE).read_text())
    (folder / TEMPLATE).unlink()
    (folder / TEMPLATE).write_text(template)
    return str(folder)


def in_blocks(template: str) -> str:
    """Qwen2.5's chat template with blocks for marks. Raises ValueError for another template."""
    for mark, block in BLOCKS.items():
        if mark not in template:
            raise ValueError(f"the chat template has no {mark}; it is none of Qwen2.5")
        template = template.replace(mark, block)
    return template


def rows_of(path: str, count: int, *, asked: str = "") -> list[dict[str, Any]]:
    """The first rows of a file; with what is asked behind each problem, as chats of one turn."""
    rows = list(read_jsonl(Path(path), "name a file"))[:count]
    if not asked:
        return rows
    for row in rows:
        row["messages"] = [{"role": "user", "content": f"{row.pop('problem')}\n\n{asked}"}]
    return rows


def written(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A chat that computes a solution's formulas by a call; [] if they do not give its answer."""
    code = "\n".join(FORMULA.findall(re.sub(r"[$,]", "", row["solution"])))
    try:
        if float(result := python(code)) != float(row["answer"]):
            return []
    except (ValueError, ArithmeticError, SyntaxError):
        return []
    call = {"type": "function", "function": {"name": "python", "arguments": {"code": code}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "python", "content": result},
        {"role": "assistant", "content": f"The answer is \\boxed{{{row['answer']}}}."},
    ]


def use_of(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Counts of conversations that call the tool, of calls, and of results that are used.

    A result is used where its number stands in a later turn of the model.
    """
    counts = dict.fromkeys(("conversations", "called", "calls", "failed", "results", "used"), 0)
    for record in records:
        counts["conversations"] += 1
        counts["called"] += record["calls"] > 0
        counts["calls"] += record["calls"]
        counts["failed"] += record["failed_calls"]
        messages = record["messages"]
        for number, message in enumerate(messages):
            if message["role"] != "tool" or message["content"].startswith("Error"):
                continue
            later = [m["content"] for m in messages[number + 1 :] if m["role"] == "assistant"]
            said = re.findall(r"-?\d+(?:\.\d+)?", " ".join(later).replace(",", ""))
            counts["results"] += bool(later)
            counts["used"] += float(message["content"]) in map(float, said)
    return counts


def evaluate(options: Options, target: Any, name: str, *, with_tool: bool) -> None:
    """Evaluate a policy, print its accuracy and what it did with the tool."""
    found = paint.evaluate(
        target,
        benchmarks=rows_of(
            options.test, options.problems, asked=options.asked if with_tool else ""
        ),
        samples=1,
        thinking=False,
        base=False,
        output_dir=str(options.folder / "evals" / name),
        conversation={"tools": [python], "max_turns": 3} if with_tool else {},
        rollout={
            "temperature": 0.001,
            "max_new_tokens": options.tokens * (1 if with_tool else 2),
            "batch_size": options.problems,
        },
    )
    print(name, found.table.to_string(), sep="\n")
    for store in sorted(found.path.rglob("completions.jsonl")) if with_tool else ():
        records = [row["conversation"] for row in read_jsonl(store, "evaluate again")]
        print(store.parent.parent.name, use_of(records))


def main(options: Options) -> None:
    """Evaluate without and with the tool, learn its use from written chats, and evaluate again."""
    if options.blocks:
        options = replace(options, model=with_blocks(Path(options.model), options.folder / "model"))
    evaluate(options, options.model, "without", with_tool=False)
    evaluate(options, options.model, "with", with_tool=True)
    if not options.steps:
        return
    solved = list(read_jsonl(Path(options.train), "name a file"))
    asked = rows_of(options.train, len(solved), asked=options.asked)
    chats = [
        {"answer": row["answer"], "messages": [*row["messages"], *after]}
        for row, after in zip(asked, map(written, solved), strict=True)
        if after
    ]
    print(f"{len(chats):,} of {len(solved):,} solutions are formulas that give their answer")
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    run = paint.train(
        "sft",
        data={"path": str(path), "turns": "all"},
        output_dir=str(options.folder / "sft"),
        model={"path": options.model, "student_thinking": False},
        train={
            "steps": options.steps,
            "batch_size": options.batch,
            "learning_rate": options.learning_rate,
        },
        conversation={"tools": [python], "max_turns": 3},
    )
    print(run.metrics["loss"].to_string())
    evaluate(options, run, "trained", with_tool=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
