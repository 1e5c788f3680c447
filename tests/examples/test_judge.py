"""The judge of examples/: against a local server, and against a real vLLM."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import DataConfig
from paint.core.demo_files import MODEL
from paint.data.problems import row_of, validate_rows
from paint.grading import functions
from paint.grading.contract import Grade, Grader, Item
from paint.grading.graders import find_grader
from real_vllm import needs_vllm, serving

SPEC = "judge:grade"
ROWS = [
    {"id": str(number), "problem": f"Is {number} even?", "rubric": f"It says so of {number}."}
    for number in range(12)
]


class Endpoint:
    """An OpenAI-compatible server that gives each request a score, and fails at first if told."""

    def __init__(self, *, failures: int = 0) -> None:
        self.failures = failures
        self.rating: dict[str, Any] = {"remark": "It could be shorter.", "score": 7}
        self.options: dict[str, str] = {}  # of the grader, once the address is known
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()
        # Requests wait for each other, so that what is sent at once is seen at once.
        self.gate = threading.Barrier(4)

    def respond(self, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.requests.append(body)
            self.keys.append(key)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            fails = self.failures > 0
            self.failures -= fails
        try:
            self.gate.wait(20)
        finally:
            with self.lock:
                self.under_way -= 1
        if fails:
            return 503, {"error": {"message": "overloaded"}}
        content = json.dumps(self.rating)
        choices = [{"message": {"role": "assistant", "content": content}}]
        usage = {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}
        return 200, {"choices": choices, "usage": usage}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            status, content = found.respond(body, self.headers.get("Authorization", ""))
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    found.options = {"url": url, "model": "a-judge"}
    monkeypatch.setenv("JUDGE_API_KEY", "a-key")
    monkeypatch.setattr(functions, "FIRST_PAUSE_SECONDS", 0.001)
    yield found
    server.shutdown()
    server.server_close()


def graded(grader: Grader, count: int) -> list[Grade]:
    texts = ["<think>Is it?</think>Yes.", *["No."] * (count - 1)]
    return list(
        grader.grade([Item(text, "", row=row) for text, row in zip(texts, ROWS, strict=False)])
    )


def test_judge_asks_the_endpoint_four_at_once_and_again_where_it_is_overloaded(
    endpoint: Endpoint,
) -> None:
    endpoint.failures = 4
    with find_grader(SPEC, concurrency=4, table=endpoint.options) as grader:
        grades = graded(grader, 12)
    assert endpoint.most == 4
    tokens = {"judge_tokens": 49}
    assert grades == [Grade(0.7, "7 of 10", feedback="It could be shorter.", metrics=tokens)] * 12
    assert len(endpoint.requests) == 16
    assert set(endpoint.keys) == {"Bearer a-key"}
    assert {request["model"] for request in endpoint.requests} == {"a-judge"}
    texts = [request["messages"][0]["content"] for request in endpoint.requests]
    prompts = [text for text in texts if "Is 0 even?" in text]
    assert prompts
    for prompt in prompts:
        assert "It says so of 0." in prompt
        assert prompt.endswith("=== Reply ===\nYes.")  # without its thought


@pytest.fixture
def alone(endpoint: Endpoint) -> Endpoint:
    """The endpoint, for requests that do not wait for others."""
    endpoint.gate = threading.Barrier(1)
    return endpoint


@pytest.mark.parametrize("score", [85, 11, -1, 7.6, 0.9, True, False, None, "7", "8/10", [7]])
def test_judge_score_beyond_its_scale_is_asked_again_and_fails(alone: Endpoint, score: Any) -> None:
    alone.rating["score"] = score
    with find_grader(SPEC, table=alone.options) as grader:
        [grade] = graded(grader, 1)
    assert (grade.reward, grade.failed) == (None, True)
    assert f"the judge's score is {score}, not an integer from 0 to 10" in grade.reason
    assert len(alone.requests) == functions.ATTEMPTS


@pytest.mark.parametrize(("score", "reward"), [(0, 0.0), (10, 1.0), (7.0, 0.7)])
def test_judge_score_on_its_scale_is_a_tenth_of_the_reward(
    alone: Endpoint, score: Any, reward: float
) -> None:
    alone.rating["score"] = score
    with find_grader(SPEC, table=alone.options) as grader:
        [grade] = graded(grader, 1)
    assert (grade.reward, grade.reason) == (reward, f"{int(score)} of 10")


CHAT = [
    {"role": "user", "content": "My delivery is broken, order 1100."},
    {"role": "assistant", "content": "Which country?"},
    {"role": "user", "content": "Norway."},
]


@pytest.mark.parametrize("column", ["messages", "prompt"])
def test_judge_reads_all_turns_of_a_chat_and_no_reference(alone: Endpoint, column: str) -> None:
    turns: Any = [*CHAT, {"role": "assistant", "content": "We send another."}]
    row = {column: turns if column != "prompt" else CHAT, "completion": "We send another."}
    data = DataConfig(problem_field=column, solution_field="completion")
    problem: Any
    [(_, problem)] = validate_rows([(1, row)], data, needs={})
    with find_grader(SPEC, table=alone.options) as grader:
        grader.grade([Item("Sorry!", problem.answers, row=row_of(problem))])
    [request] = alone.requests
    asked = request["messages"][0]["content"].partition("=== Request ===\n")[2]
    assert asked == (
        "user: My delivery is broken, order 1100.\n\nassistant: Which country?\n\n"
        "user: Norway.\n\n=== Reply ===\nSorry!"
    )


@pytest.mark.slow
@needs_vllm
def test_judge_of_real_vllm_rates_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model that was not trained for JSON fills it with blanks, which the grammar allows.
    compact = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    flags = ["--structured-outputs-config", compact]
    with serving(MODEL, flags, tmp_path / "log") as url:
        monkeypatch.delenv("JUDGE_API_KEY", raising=False)
        options = {"url": f"{url}/v1", "model": str(MODEL)}
        with find_grader(SPEC, concurrency=4, timeout=300, table=options) as grader:
            grades = graded(grader, 4)
    assert [grade.failed for grade in grades] == [False] * 4, grades
    assert all(0 <= (grade.reward or 0) <= 1 for grade in grades)
