"""`paint chat`: everybody answers as their engine would, side by side."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from extensions.calculator import calculate
from extensions.check_answer import CheckAnswer
from paint.cli import main
from paint.config.schema import ConversationConfig
from paint.core.errors import ConfigError
from paint.core.extensions import spec_of
from paint.data.problems import Problem
from paint.evaluation.chat import open_chat
from paint.inference.engine import Sampling, derive_seed
from paint.inference.local import LocalEngine

SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=30)


def test_chat_answers_are_of_base_trained_and_teacher(run: Path, problems: list[Problem]) -> None:
    chat, problem = open_chat(str(run)), problems[0]
    policy, engine = chat.policy, LocalEngine(chat.policy, batch_size=1)
    steps = list(chat.answers(problem.problem, SAMPLING, 7, solution=problem.solution))
    assert 1 < len(steps) <= 30
    assert list(steps[0]) == ["base", "shown-step-000003", "teacher"]

    student = policy.student_prompt(problem.problem)
    teacher = policy.teacher_prompt(problem.problem, problem.solution, complete=True)
    seeds = [derive_seed(7, problem.problem)]
    expected = {"shown-step-000003": engine.generate([student], SAMPLING, seeds)}
    with chat.base.view():
        expected["base"] = engine.generate([student], SAMPLING, seeds)
        expected["teacher"] = engine.generate([teacher], SAMPLING, seeds)
    for name, (completion,) in expected.items():
        assert steps[-1][name] == policy.transcript(student, completion.ids), name


def test_chat_answers_every_line_of_input(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 1 + 1?\nWhat is 2 + 2?\n\nunread\n"))
    assert main(["chat", str(run), "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.count("shown-step-000003") == 2


def test_chat_with_model_has_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, last) = open_chat("demo").answers("What is 1 + 1?", SAMPLING, 0)
    assert list(last) == ["base"]


def test_chat_prompt_beyond_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the model's context length"):
        list(open_chat("demo").answers("so " * 2000, SAMPLING, 0))


def scripted(
    monkeypatch: pytest.MonkeyPatch, texts: Sequence[str]
) -> tuple[list[list[int]], list[str]]:
    """Let every engine say these texts in turn; the prompts, and nothing left of the texts."""
    prompts, left = [], list(texts)

    def tokens(
        self: LocalEngine, prompt: Sequence[int], sampling: Sampling, seed: int
    ) -> Iterator[int]:
        prompts.append(list(prompt))
        yield from self.policy.solution_ids(left.pop(0))

    monkeypatch.setattr(LocalEngine, "tokens", tokens)
    return prompts, left


def test_chat_shows_call_and_result_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"formula": "2 + 3"}}\n</tool_call>'
    prompts, left = scripted(monkeypatch, [f"I add.\n{call}", "It is 5."])
    chat = open_chat("demo", ConversationConfig(tools=(spec_of(calculate),)))
    steps = [answer["base"] for answer in chat.answers("Add 2 and 3.", SAMPLING, 0)]
    assert steps[-1] == f"I add.\n{call}\n\ntool calculate: 5\n\nIt is 5."
    assert f"I add.\n{call}\n\ntool calculate: 5" in steps  # before the next turn's first token
    first, second = (chat.policy.decode(prompt, special=True) for prompt in prompts)
    assert '"name": "calculate"' in first
    assert "<|im_start|>tool\n5<|im_end|>" in second
    assert not left


def test_chat_shows_what_environment_says_and_its_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch, ["It is 4.", "It is 3.", "It is 2."])
    chat = open_chat("demo", ConversationConfig(environment=spec_of(CheckAnswer), max_turns=2))
    (*_, last) = chat.answers("Add 2 and 3.", SAMPLING, 0)
    check = "user: This is wrong. Check each step, and answer again."
    assert last["base"].split("\n\n") == ["It is 4.", check, "It is 3.", "environment: reward 0"]


def test_chat_shows_by_what_environment_begins_and_what_cut_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asks:
        def reset(self, row: dict[str, object], seed: int) -> str:
            return "Which number?"

        def step(self, messages: list[dict[str, object]], completion: str) -> str:
            return "And the next?"

    prompts, _ = scripted(monkeypatch, ["1", "2"])
    chat = open_chat("demo", ConversationConfig(environment=spec_of(Asks), max_turns=2))
    (*_, last) = chat.answers("unread", SAMPLING, 0)
    following = "user: And the next?"
    said = ["user: Which number?", "1", following, "2", following, "ended by max_turns"]
    assert last["base"].split("\n\n") == said
    assert "unread" not in chat.policy.decode(prompts[0])


def test_chat_of_teacher_keeps_the_reference_in_its_later_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts, left = scripted(monkeypatch, ["A", "B", "C", "D"])
    chat = open_chat("demo", ConversationConfig(environment=spec_of(CheckAnswer)))
    (*_, last) = chat.answers("Add 2 and 3.", SAMPLING, 0, solution="Two and three.")
    assert [name for name, text in last.items() if "A" in text] == ["base"]
    read = [chat.policy.decode(prompt, special=True) for prompt in prompts]
    assert ["Two and three." in text for text in read] == [False, True, False, True]
    assert ["This is wrong." in text for text in read] == [False, False, True, True]
    assert not left


def test_chat_command_of_run_has_its_own_conversation_once_it_is_trusted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent"
    shutil.copytree(run, sent)
    table = json.loads((sent / "run.json").read_text())
    # Not as an object, which would be this process's own.
    (tmp_path / "sent_desk.py").write_text(
        "from extensions.check_answer import CheckAnswer as Desk"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table["config"]["conversation"] |= {"environment": "sent_desk:Desk", "max_turns": 2}
    (sent / "run.json").write_text(json.dumps(table))  # no longer what was signed
    _, left = scripted(monkeypatch, ["It is 4."] * 4)  # two turns of the base, and of the trained

    def chat(*flags: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO("Add 2 and 3.\n"))
        return main(["chat", str(sent), *flags])

    assert chat() == 2
    refusal = capsys.readouterr().err
    assert '"sent_desk:Desk"' in refusal
    assert "--environment" in refusal
    assert "sent_desk" not in sys.modules
    assert len(left) == 4
    assert chat("--trust") == 0
    assert capsys.readouterr().out.count("environment: reward 0") == 2
    assert not left


def test_chat_command_of_tools_prints_their_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"formula": "12 * 13"}}\n</tool_call>'
    scripted(monkeypatch, [call, "It is 156."])
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 12 * 13?\n"))
    assert main(["chat", "demo", "--tools", "extensions.calculator:calculate"]) == 0
    printed = capsys.readouterr().out
    assert "tool calculate: 156" in printed
    assert "It is 156." in printed


@pytest.mark.slow
def test_chat_ends_where_nobody_reads() -> None:
    typed = "What is 1 + 1?\n" * 1000
    line = f"{sys.executable} -P -m paint.cli chat demo --max-new-tokens 2 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        input=typed.encode(),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGPIPE
