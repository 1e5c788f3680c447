"""A server that answers well but for one thing: every call ends in the right result or our error.

The wrong answers are made by walking the good ones (each field dropped, or replaced by each kind of
wrong value) and by breaking what carries them (truncated, repeated, endless, compressed, dripping,
redirected, ...). Each is tried against every route of a whole life of the client, in a process of
its own, whose time and memory are bounded:

    python -P tests/trials/test_server_fuzz.py SEED COUNT

prints what became of so many of them.
"""

import gzip
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where it is started by hand

from conftest import LAB
from paint.display import Display
from paint.engines import fleet, server
from paint.engines.protocol import EngineError, Sampling
from paint.engines.server import Server
from paint.engines.vllm import VllmEngine
from paint.errors import plain
from paint.model.policy import Policy, load_policy
from stand_in import END, StandIn

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=8)
PROMPTS = [[10 + i, 40 + i, 70 + i] for i in range(4)]
EXPECTED = [(i % 500 + 3, 10 + i, 40 + i, END) for i in range(4)]

IN_FLIGHT = 4

SECONDS = 25.0
"""A life takes less than one; three completions that are too slow, and patience, take six."""

MEGABYTES = 100
"""What a life may take on top of a life without a lie."""

ROUTES = (
    "/health",
    "/v1/models",
    "/v1/load_lora_adapter",
    "/v1/completions",
    "/v1/unload_lora_adapter",
    "/metrics",
    "/wake_up",
    "/sleep",
)

ESCAPES = "\x1b[31m\u202etext\x07"
WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "huge number": 10**30,
    "number of 5,000 digits": "DIGITS",
    "share": 0.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "minus infinite": float("-inf"),
    "escapes": ESCAPES,
    "empty text": "",
    "empty list": [],
    "empty object": {},
    "lists in lists": [[[[]]], [1]],
}

Send = Callable[[Any, int, Any], bool]


@dataclass(frozen=True)
class Lie:
    """One thing that is wrong: about which route, what, and how often."""

    route: str
    name: str
    send: Send
    once: bool

    def __str__(self) -> str:
        return f"{self.route} {self.name} {'once' if self.once else 'always'}"


def walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a JSON value; of a list, the first and the last."""
    yield path
    if isinstance(value, dict):
        keys: Any = value
    else:
        keys = sorted({0, len(value) - 1}) if isinstance(value, list) and value else []
    for key in keys:
        yield from walk(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A JSON value with another one at a place; where the new one is DROP, without it."""
    if not path:
        return change(value)
    copy = value.copy()
    key, *rest = path
    new = changed(value[key], tuple(rest), change)
    if new is DROP:
        del copy[key]
    else:
        copy[key] = new
    return copy


DROP = object()
CHANGES: dict[str, Callable[[Any], Any]] = {
    "dropped": lambda _: DROP,
    "repeated": lambda value: value * 3 if isinstance(value, (list, str)) else [value] * 3,
    "a thousand times": lambda v: v * 1000 if isinstance(v, (list, str)) else [v] * 1000,
    "truncated": lambda value: value[:-1] if isinstance(value, (list, str)) else None,
    "as text": str,
    "in a list": lambda value: [value],
    "as a real number": lambda value: float(value) if type(value) is int else value,
    **{name: partial(lambda wrong, _: wrong, wrong) for name, wrong in WRONG.items()},
}


def answer(
    handler: Any, status: int, content: bytes, headers: dict[str, str] | None = None
) -> bool:
    handler.send_response(status)
    for name, text in ({"Content-Length": str(len(content))} | (headers or {})).items():
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(content)
    return True


def encoded(content: Any) -> bytes:
    if content is DROP:
        return b""
    text = content if isinstance(content, str) else json.dumps(content)
    return text.replace('"DIGITS"', "7" * 5000).encode()


def at(path: tuple[Any, ...], change: Callable[[Any], Any]) -> Send:
    def send(handler: Any, status: int, content: Any) -> bool:
        places = list(walk(content))
        if path not in places:
            return False
        return answer(handler, status, encoded(changed(content, path, change)))

    return send


def raw(*parts: bytes, pause: float = 0.0, endless: bool = False) -> Send:
    """These bytes, one after the other, and then the end of the connection."""

    def send(handler: Any, _: int, content: Any) -> bool:
        handler.close_connection = True
        body = encoded(content)
        with suppress(OSError):
            for part in parts:
                handler.wfile.write(part.replace(b"<body>", body))
            end = time.monotonic() + 2 * SECONDS
            while endless and time.monotonic() < end:
                handler.wfile.write(parts[-1])
                handler.wfile.flush()
                time.sleep(pause)
        return True

    return send


def head(status: int = 200, length: int | None = 10**9, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Fine", *more]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


BOMB = gzip.compress(b" " * 10**9, 1)
STATUSES = (
    201,
    204,
    206,
    304,
    400,
    401,
    403,
    404,
    405,
    408,
    413,
    418,
    429,
    500,
    502,
    503,
    599,
    999,
)


def as_bytes(text: str, _: bytes) -> bytes:
    return text.encode()


def with_status(status: int, body: bytes) -> Send:
    return lambda handler, *_: answer(handler, status, body)


def redirect(status: int, where: str) -> Send:
    return lambda handler, *_: answer(handler, status, b"", {"Location": where})


def recoded(change: Callable[[bytes], bytes], **headers: str) -> Send:
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda handler, status, content: answer(handler, status, change(encoded(content)), names)


CARRIERS: dict[str, Send] = {
    **{f"status {status}": with_status(status, b"{}") for status in STATUSES},
    **{
        f"status {status}, endless": raw(head(status, 10**12), b"x" * 2**16, endless=True)
        for status in (200, 400, 404, 500)
    },
    "status 500 with escapes": with_status(500, encoded({"error": {"message": ESCAPES * 1000}})),
    "status 400 with an object": with_status(400, b'{"error": {"message": {"a": [1]}}}'),
    "status 400 with a list": with_status(400, b"[1, 2]"),
    "status 400, no UTF-8": with_status(400, b"\xff\xfe\xfa" * 99),
    "status 404 without the model": with_status(404, b"the model does not exist"),
    "status 500 of another rank": with_status(
        500, b"LoRA rank 99999999999999999999 is greater than max_lora_rank 8"
    ),
    **{f"redirect {s} to itself": redirect(s, "") for s in (301, 302, 303, 307, 308)},
    "redirect elsewhere": redirect(302, "http://127.0.0.1:1/elsewhere"),
    "redirect to no address": redirect(302, "http://[::1:99999/\x7f"),
    "redirect to a file": redirect(307, "file:///etc/passwd"),
    "nothing": raw(),
    "garbage": raw(b"\x00\x01\x02 garbage \r\n\r\n"),
    "no status": raw(b"HTTP/1.1\r\n\r\n<body>"),
    "another protocol": raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "half a header": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a header of a megabyte": raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2**20 + b"\r\n\r\n<body>"),
    "endless headers": raw(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 999, endless=True),
    "endless continuing": raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 99, pause=0.01, endless=True),
    "negative length": raw(head(200, -5) + b"<body>"),
    "two lengths": raw(head(200, 5, "Content-Length: 7") + b"<body>"),
    "no length": raw(head(200, None) + b"<body>"),
    "length too long": raw(head(200, 10**6) + b"<body>"),
    "a bad chunk": raw(head(200, None, "Transfer-Encoding: chunked") + b"zz\r\n<body>"),
    "odd cookies": raw(head(200, 2, "Set-Cookie: =;;;expires=never;max-age=x\x7f") + b"{}"),
    "endless body": raw(head(200, None), b"[" * 2**16, endless=True),
    "endless blanks": raw(head(200, None), b" " * 2**16, endless=True),
    "dripping body": raw(head(200, 10**6), b" ", pause=0.05, endless=True),
    "dripping header": raw(b"HTTP/1.1 200 OK\r\nX:", b"y", pause=0.05, endless=True),
    "silence": raw(b"", pause=0.2, endless=True),
    "empty body": recoded(lambda _: b""),
    "half a body": recoded(lambda body: body[: len(body) // 2]),
    "body twice": recoded(lambda body: body * 2),
    "body with a tail": recoded(lambda body: body + b"\x00"),
    "no UTF-8": recoded(lambda body: body.replace(b":", b":\xff")),
    "another encoding": recoded(lambda body: body.decode().encode("utf-16")),
    "another type": recoded(lambda body: body, Content_Type="image/png; charset=klingon"),
    "a deep body": recoded(lambda _: b"[" * 60_000),
    "a deep object": recoded(lambda _: b'{"data":' * 9_000 + b"1" + b"}" * 9_000),
    **{
        f"depth {n}": recoded(partial(lambda n, _: b'{"data":[' + b"[" * n + b"]" * n + b"]}", n))
        for n in (900, 960, 980, 990)
    },
    "compressed": recoded(gzip.compress, Content_Encoding="gzip"),
    "a bomb": recoded(lambda _: BOMB, Content_Encoding="gzip"),
    "said to be compressed": recoded(lambda body: body, Content_Encoding="br, gzip"),
    "unknown compression": recoded(lambda body: body, Content_Encoding=ESCAPES[1:5]),
    "a page": recoded(lambda _: b"<html>login</html>", Content_Type="text/html"),
    "100,000 tokens": lambda handler, status, content: answer(
        handler, status, encoded(long_answer(content))
    ),
}


def long_answer(content: Any) -> Any:
    if not isinstance(content, dict) or "choices" not in content:
        return content
    [choice] = content["choices"]
    many = {
        "token_ids": choice["token_ids"][:1] * 100_000,
        "logprobs": {"token_logprobs": [-0.5] * 100_000},
    }
    return {"choices": [choice | many]}


def all_lies() -> list[Lie]:
    """Every wrong answer to every route, always and once."""
    good = {
        "/v1/models": {"data": [{"id": "base", "parent": None, "max_model_len": 1024},
                                {"id": "n", "parent": "base", "root": "/p"}]},
        "/v1/completions": {"choices": [{
            "token_ids": [3, 10, 40, END], "prompt_token_ids": [10, 40, 70],
            "logprobs": {"token_logprobs": [-0.5] * 4}, "finish_reason": "stop",
            "stop_reason": None}]},
        "/metrics": "", "/v1/load_lora_adapter": "",
    }  # fmt: skip
    lies = []
    for once in (False, True):
        for route, content in good.items():
            for path in walk(content):
                place = "/".join(map(str, path)) or "all"
                lies += [
                    Lie(route, f"{place} {name}", at(path, change), once)
                    for name, change in CHANGES.items()
                    if not (name == "null" and place.endswith(("parent", "stop_reason")))
                ]
        lies += [
            Lie(route, name, send, once) for route in ROUTES for name, send in CARRIERS.items()
        ]
        bombs = [f'vllm:lora_requests_info{{max_lora="{digits}"}} 1.0' for digits in
                 ("9" * 5000, "-1", "", "٣", "0")]  # fmt: skip
        lies += [
            Lie("/metrics", f"slots {text[:40]}", recoded(partial(as_bytes, text)), once)
            for text in bombs
        ]
    return lies


@dataclass(frozen=True)
class Outcome:
    """What became of a life: right, refused, wrong, traceback or hang; and what it took."""

    kind: str
    detail: str
    seconds: float
    megabytes: float


def live(policy: Policy, url: str, folder: Path, sleeps: bool) -> None:
    """Everything that a client does, once; exits with what came of it on the standard output."""
    for module, name, seconds in (
        (server, "PAUSE_SECONDS", 0.01),
        (server, "HEALTH_SECONDS", 0.5),
        (fleet, "RETRY_SECONDS", 0.02),
        (fleet, "HEARTBEAT_SECONDS", 0.3),
    ):
        setattr(module, name, seconds)
    engine = VllmEngine(
        policy, [Server(url, timeout=1.0)], folder, Display(), in_flight=IN_FLIGHT, patience=2.0,
        sleeps=sleeps,
    )  # fmt: skip
    try:
        engine.connect()
        engine.adopt()
        for _ in range(2):
            completions = engine.generate(PROMPTS, SAMPLING, range(len(PROMPTS)))
            is_right = [c.ids for c in completions] == EXPECTED and all(
                -1e9 < log_prob < 0.01 for c in completions for log_prob in c.log_probs
            )
            if not is_right or any(c.truncated for c in completions):
                raise AssertionError(f"WRONG {completions}"[:500])
            engine.require_slots()
            engine.adopt()
    finally:
        engine.close()


def outcome(policy: Policy, lie: Lie | None, folder: Path) -> Outcome:
    """What becomes of a life with a server that tells this lie, in a process of its own."""
    folder.mkdir(parents=True)
    told = 0

    def send(handler: Any, path: str, status: int, content: Any) -> bool:
        nonlocal told
        if lie is None or path.split("?")[0] != lie.route or (lie.once and told):
            return False
        told += 1
        return lie.send(handler, status, content)

    stand_in = StandIn(send=send, max_tokens=1024, max_rank=16, max_loras=4)
    sleeps = lie is not None and lie.route in ("/sleep", "/wake_up")
    said = folder / "said"
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        result = ["traceback", "no result"]
        try:
            out = os.open(said, os.O_CREAT | os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            signal.alarm(int(SECONDS))
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 2**31, size + 2**31))
            live(policy, stand_in.url, folder, sleeps)
            result = ["right", ""]
        except EngineError as error:
            result = ["refused", str(error)]
        except AssertionError as error:
            result = ["wrong" if "WRONG" in str(error) else "traceback", repr(error)]
        except BaseException as error:
            result = ["traceback", f"{type(error).__name__}: {error}"[:500]]
        finally:
            sys.stdout.flush()
            (folder / "result").write_text(json.dumps(result))
            os._exit(0)

    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    stand_in.stop()
    kind, detail = ("hang", "")
    if os.WIFEXITED(status):
        kind, detail = json.loads((folder / "result").read_text())
    if kind == "refused" and (detail != plain(detail) or len(detail) > 4000):
        kind = "ugly"
    if "\x1b" in said.read_text(errors="replace"):
        kind, detail = "ugly", said.read_text(errors="replace")
    return Outcome(kind, detail, seconds, usage.ru_maxrss / 1024)


def try_lies(seed: int, count: int, folder: Path, policy: Policy) -> dict[Lie, Outcome]:
    lies = all_lies()
    chosen = random.Random(seed).sample(lies, min(count, len(lies)))
    return {lie: outcome(policy, lie, folder / str(i)) for i, lie in enumerate(chosen)}


def check(seed: int, count: int, folder: Path, policy: Policy) -> None:
    honest = outcome(policy, None, folder / "honest")
    assert honest.kind == "right", honest
    bad = {
        str(lie): found
        for lie, found in try_lies(seed, count, folder, policy).items()
        if found.kind not in ("right", "refused")
        or found.megabytes > honest.megabytes + MEGABYTES
        or found.seconds > SECONDS
    }
    assert not bad, "\n".join(f"{lie}: {found}" for lie, found in bad.items())


def test_some_lies_of_a_server_end_in_the_right_result_or_our_error(
    policy: Policy, tmp_path: Path
) -> None:
    check(0, 6, tmp_path, policy)


@pytest.mark.slow
def test_many_lies_of_a_server_end_in_the_right_result_or_our_error(
    policy: Policy, tmp_path: Path
) -> None:
    check(1, 60, tmp_path, policy)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        policy = load_policy(LAB, seed=0)
        honest = outcome(policy, None, Path(name) / "honest")
        print("honest", honest, flush=True)
        counts: Counter[str] = Counter()
        most = 0.0
        lies = all_lies()
        print(len(lies), "lies")
        chosen = random.Random(int(sys.argv[1])).sample(lies, min(int(sys.argv[2]), len(lies)))
        for i, lie in enumerate(chosen):
            found = outcome(policy, lie, Path(name) / str(i))
            counts[found.kind] += 1
            more = found.megabytes - honest.megabytes
            most = max(most, more)
            if found.kind not in ("right", "refused") or more > MEGABYTES or found.seconds > 15:
                print(lie, found.kind, f"{found.seconds:.1f} s, {more:.0f} MB", found.detail[:200],
                      flush=True)  # fmt: skip
        print(dict(counts), f"at most {most:.0f} MB more than without a lie")
