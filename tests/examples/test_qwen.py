"""The experiment on a real Qwen, without the model: its contexts, rows and methods."""

import json
import re
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from qwen.contexts import NUMBER, first_step, numbers_shifted, with_wrong_numbers
from qwen.python_tool import in_blocks, python, use_of, written
from qwen.run import Options, Task, share, with_wrong_end, write_rows

from chatforms.call_styles import call_style
from chatforms.tool_calls import read_reply
from paint.config.schema import DataConfig
from paint.core.display import Display
from paint.core.storage import read_jsonl
from paint.data.problems import read_problems
from tool_templates import tokenizer_with

SOLUTION = "She sold 48/2 = 24 clips.\n48+24 = 72 in all.\nThe answer is \\boxed{72}."


def test_with_wrong_numbers_changes_the_last_share_alike() -> None:
    wrong = with_wrong_numbers(SOLUTION, "row", share=0.4)
    before, after = NUMBER.findall(SOLUTION), NUMBER.findall(wrong)
    assert NUMBER.sub("n", wrong) == NUMBER.sub("n", SOLUTION)
    assert after[:4] == before[:4]  # 0.6 of seven numbers
    assert all(a != b for a, b in zip(after[4:], before[4:], strict=True))
    # 72 stands twice in that part, and agrees with itself.
    assert after[5] == after[6]
    assert all(
        1 <= abs(float(a) - float(b)) <= 9 for a, b in zip(after[4:], before[4:], strict=True)
    )


def test_context_functions_show_other_numbers_and_the_first_line() -> None:
    row = {"id": "7", "solution": SOLUTION}
    shifted = numbers_shifted(row, [row], seed=0)
    assert shifted == numbers_shifted(row, [], seed=5)
    assert not set(NUMBER.findall(shifted)) & {"48", "72"}
    assert first_step(row, [row], seed=0) == "She sold 48/2 = 24 clips."


def test_wrong_end_keeps_the_answer() -> None:
    row = with_wrong_end({"id": "1", "solution": SOLUTION, "answer": "72"})
    assert row["answer"] == "72"
    assert re.search(r"\\boxed\{(\d+)\}", row["solution"])[1] != "72"  # type: ignore[index]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Rows of our own under the names of the published files."""
    data = tmp_path / "data"
    data.mkdir()
    rows: list[dict[str, Any]] = []
    for n in range(40):
        solution = f"{n}+{n} = {2 * n}.\nThe answer is \\boxed{{{2 * n}}}."
        rows.append({"id": str(n), "problem": f"{n}+{n}?", "solution": solution, "answer": 2 * n})
    code = [
        {"id": str(n), "problem": f"Return {n}.", "solution": f"```python\n{n}\n```", "tests": "1"}
        for n in range(40)
    ]
    for name in ("gsm8k_train", "gsm8k_test", "math500", "mbpp_train", "mbpp_test", "humaneval"):
        made = code if name in ("mbpp_train", "mbpp_test", "humaneval") else rows
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    (tmp_path / "out").mkdir()
    return Options(model="demo", data=data, folder=tmp_path / "out")


def test_write_rows_splits_train_and_keeps_fields(options: Options) -> None:
    write_rows(options)
    folder = options.folder / "data"
    train, validation = (
        list(read_jsonl(folder / f"gsm8k_{split}.jsonl", "")) for split in ("train", "validation")
    )
    assert [row["id"] for row in train + validation] == [str(n) for n in range(40)]
    assert len(validation) == 8
    wrong = list(read_jsonl(folder / "gsm8k_wrong_train.jsonl", ""))
    assert [row["id"] for row in wrong] == [row["id"] for row in train]
    assert all(a["solution"] != b["solution"] for a, b in zip(train, wrong, strict=True))
    data = DataConfig(path=str(folder / "mbpp_train.jsonl"))
    assert read_problems(data, needs={"tests": "code"}).problems[3].fields["tests"] == "1"


def test_share_does_each_task_after_its_needs_and_goes_on_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    done: list[str] = []

    def fail() -> None:
        raise ValueError("broken")

    tasks = [
        Task("last", lambda: done.append("last"), ("first",)),
        Task("never", lambda: done.append("never"), ("bad",)),
        Task("nor this", lambda: done.append("nor this"), ("never",)),
        Task("bad", fail),
        Task("first", lambda: done.append("first")),
    ]
    share(tasks, tmp_path, Display(enabled=False))
    assert done == ["first", "last"]
    assert "ValueError: broken" in (tmp_path / "bad.failed").read_text()
    assert (tmp_path / "nor this.failed").read_text() == "never failed\n"
    share(tasks, tmp_path, Display(enabled=False))  # nothing is done again
    assert done == ["first", "last"]


def test_python_tool_computes_lines_and_runs_nothing() -> None:
    assert python("a = 3 * 4\n\nprint(a + 2)") == "14"
    assert python("round(7 / 2, 1) - max(1, -2) // 1 + 5 % 3") == "4.5"
    for code in ("__import__('os')", "a.b", "2 ** 9", "while 1: 2", "x", "9" * 20, "abs()", "'a'"):
        with pytest.raises(ValueError, match=r"is no|beyond"):
            python(code)
    with pytest.raises(ValueError, match="no line"):
        python("# nothing")


def test_written_chat_has_the_formulas_that_give_the_answer() -> None:
    row = {"solution": "She sold 48/2 = 24.\n48+24 = $72.\nThe answer is \\boxed{72}."}
    call, result, last = written(row | {"answer": "72"})
    assert call["tool_calls"][0]["function"]["arguments"] == {"code": "48/2\n48+24"}
    assert (result["content"], last["content"]) == ("72", "The answer is \\boxed{72}.")
    assert written(row | {"answer": "71"}) == []
    # A use counts where a later turn has the result.
    turns = [call, result, last]
    other = [call, {"role": "tool", "content": "Error: x"}, last]
    records = [
        {"calls": 1, "failed_calls": 0, "messages": turns},
        {"calls": 1, "failed_calls": 1, "messages": other},
        {"calls": 0, "failed_calls": 0, "messages": [last]},
    ]
    assert list(use_of(records).values()) == [3, 2, 2, 1, 1, 1]


def test_template_in_blocks_is_read_and_another_one_is_refused() -> None:
    pytest.importorskip("trl")
    tokenizer = copy(tokenizer_with("qwen2_5"))
    tokenizer.chat_template = in_blocks(tokenizer.chat_template)
    style = call_style(tokenizer)
    assert (style.opening.strip(), style.closing.strip()) == ("```json", "```")
    reply = read_reply(style, '```json\n{"name": "python", "arguments": {"code": "1"}}\n```')
    assert [call.arguments for call in reply.calls] == [{"code": "1"}]
    with pytest.raises(ValueError, match="none of Qwen2"):
        in_blocks("{{ messages }}")
