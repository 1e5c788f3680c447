"""Wrong responses of a server: each call ends in the right result, or in an error of ours.

Each field of a good response is dropped, repeated, or replaced by each kind of wrong value; and the
response as a whole is cut, redirected, sent with another status, ...
"""

import asyncio
import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_vllm_server import END, FakeVllmServer
from paint.core.errors import sanitize_for_terminal
from paint.inference.engine import Completion, EngineError, Sampling
from paint.inference.vllm import client
from paint.inference.vllm.client import TokenLimits, Unreachable, VllmServer

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=8)
PROMPT, VOCABULARY = [10, 40, 70], TokenLimits(600, [END])
RIGHT = (3, 10, 40, END)

ESCAPES = "\x1b[31m\u202etext\x07"
WRONG: list[Any] = [None, True, -1, 10**30, 0.5, math.nan, math.inf, -math.inf, ESCAPES, "", [], {}]
WRONG += [[[[[]]], [1]]]
DROP = object()
CHANGES: list[Callable[[Any], Any]] = [
    lambda _: DROP,
    lambda value: [value],
    lambda value: value * 3 if isinstance(value, (list, str)) else str(value),
    lambda value: value[:-1] if isinstance(value, (list, str)) else DROP,
    lambda value: value * 1000 if isinstance(value, (int, float)) else DROP,
    *((lambda _, wrong=wrong: wrong) for wrong in WRONG),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a JSON value."""
    yield path
    keys = value if isinstance(value, dict) else range(len(value) if type(value) is list else 0)
    for key in keys:
        yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A JSON value that is changed at a place."""
    if not path:
        return change(value)
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], change)
    if copy[path[0]] is DROP:
        del copy[path[0]]
    return copy


COMPLETION = {"choices": [{"token_ids": [*RIGHT], "prompt_token_ids": PROMPT,
                           "logprobs": {"token_logprobs": [-0.5] * 4}, "finish_reason": "stop",
                           "stop_reason": None}]}  # fmt: skip
MODELS = {"data": [{"id": "base", "parent": None, "max_model_len": 1024},
                   {"id": "n", "parent": "base", "root": "/p"}]}  # fmt: skip


def wrong(good: Any) -> list[Any]:
    bodies = [changed(good, path, change) for path in places(good) for change in CHANGES]
    return [body for body in bodies if body is not DROP and body != good]


def talk(fake_server: FakeVllmServer, tmp_path: Path) -> Completion:
    """Connect to a server, and ask it for a completion."""
    adapter = tmp_path / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_model.safetensors").touch()
    (adapter / "adapter_config.json").write_text('{"r": 8}')

    async def connect_and_complete() -> Completion:
        client = VllmServer(fake_server.url, timeout=0.5)
        try:
            await client.connect(tmp_path)
            return await client.complete(adapter, PROMPT, SAMPLING, 0, VOCABULARY)
        finally:
            await client.close()

    return asyncio.run(connect_and_complete())


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllmServer]:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.001)
    made = FakeVllmServer()
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "good"), [("/v1/completions", COMPLETION), ("/v1/models", MODELS)]
)
def test_response_with_invalid_field_is_refused_or_read_correctly(
    fake_server: FakeVllmServer, tmp_path: Path, route: str, good: Any
) -> None:
    assert talk(fake_server, tmp_path).ids == RIGHT
    respond, messages = fake_server.respond, []
    for body in wrong(good):
        fake_server.respond = lambda path, asked, body=body: (  # type: ignore[assignment,misc]
            (200, body) if path == route else respond(path, asked)
        )
        try:
            completion = talk(fake_server, tmp_path)
        except (Unreachable, EngineError) as error:
            messages.append(str(error))
        else:
            assert completion.ids == RIGHT, body
            assert all(-1e9 < log_prob < 0.01 for log_prob in completion.log_probs), body
            assert not completion.truncated, body
    assert len(messages) > len(wrong(good)) / 2
    assert messages == [sanitize_for_terminal(message) for message in messages]
    assert max(map(len, messages)) < 2000


def raw(content: bytes) -> Callable[[Any, bytes], None]:
    return lambda handler, body: handler.wfile.write(content.replace(b"<body>", body))


def answer(status: int, change: Callable[[bytes], bytes], **headers: str) -> Any:
    def send(handler: Any, body: bytes) -> None:
        content = change(body)
        handler.send_response(status)
        for name, text in ({"Content-Length": str(len(content))} | headers).items():
            handler.send_header(name.replace("_", "-"), text)
        handler.end_headers()
        handler.wfile.write(content)

    return send


HEAD = b"HTTP/1.1 200 Fine\r\n"
CARRIERS = {
    **{f"status {s}": answer(s, lambda body: body) for s in (304, 400, 401, 404, 429, 500, 599)},
    "an error with escapes": answer(500, lambda _: json.dumps(ESCAPES * 1000).encode()),
    "a redirect": answer(307, lambda _: b"", Location="http://127.0.0.1:1/elsewhere"),
    "nothing": raw(b""),
    "garbage": raw(b"\x00\x01 garbage \r\n\r\n"),
    "half a header": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a bad length": raw(HEAD + b"Content-Length: -5\r\n\r\n<body>"),
    "too short": raw(HEAD + b"Content-Length: 1000000\r\n\r\n<body>"),
    "a bad chunk": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n<body>"),
    "no body": answer(200, lambda _: b""),
    "half a body": answer(200, lambda body: body[: len(body) // 2]),
    "two bodies": answer(200, lambda body: body * 2),
    "no UTF-8": answer(200, lambda body: body.replace(b":", b":\xff")),
    "a page": answer(200, lambda _: b"<html>login</html>"),
    "no gzip": answer(200, lambda body: body, Content_Encoding="gzip"),
}


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("route", ["/v1/models", "/v1/completions"])
def test_broken_response_is_server_failure(
    fake_server: FakeVllmServer, tmp_path: Path, route: str, carrier: Callable[[Any, bytes], None]
) -> None:
    def send(handler: Any, path: str, _: int, content: Any) -> bool:
        if path == route:
            handler.close_connection = True
            carrier(handler, json.dumps(content).encode())
        return path == route

    fake_server.send = send
    with pytest.raises((Unreachable, EngineError)) as error:
        talk(fake_server, tmp_path)
    assert str(error.value) == sanitize_for_terminal(str(error.value))
    assert len(str(error.value)) < 2000


def test_compressed_response_is_read(fake_server: FakeVllmServer, tmp_path: Path) -> None:
    def send(handler: Any, path: str, _: int, content: Any) -> bool:
        if path == "/v1/completions":
            packed = answer(200, gzip.compress, Content_Encoding="gzip")
            packed(handler, json.dumps(content).encode())
        return path == "/v1/completions"

    fake_server.send = send
    assert talk(fake_server, tmp_path).ids == RIGHT
