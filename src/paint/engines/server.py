"""One vLLM server as its user sees it: what may be asked of it over HTTP and, where it is ours, its process.

Token ids go in, token ids and log-probs come out. Left out: every endpoint that takes or returns text.
"""

import asyncio
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from paint import PaintError
from paint.engines.protocol import Completion, Sampling

ATTEMPTS = 3
STOP_SECONDS = 20.0  # first for the watchdog to end, then for what it has killed
HEALTH_SECONDS = 10.0
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes for --max-lora-rank
# What a launcher of several training processes sets, and the server would take for its own.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class EngineError(PaintError, RuntimeError):
    """The engine cannot be used, or was lost; the message names the server and the way out."""


class Unreachable(Exception):
    """No usable answer now; the same request may succeed later, or elsewhere."""


class TooSlow(Unreachable):
    """No answer within the time that a completion may take."""


class Server:
    """A server at ``url``; the adapter that it is known to have, and how it is doing.

    Attributes:
        adapter: folder of the adapter that is loaded, under the folder's name; None when nobody knows.
        previous: the last one that was loaded, to be dropped for the next.
        left_out: set while it gets no requests.
        requests: those under way.
        strikes: how often it was left out since it last completed something; ``reason``: why the last time.
    """

    def __init__(self, url: str, *, timeout: float, process: "ServerProcess | None" = None) -> None:
        self.url = url.rstrip("/")
        self.process = process
        self.adapter: Path | None = None
        self.previous: Path | None = None
        self.left_out = asyncio.Event()
        self.requests: set[asyncio.Task[Completion]] = set()
        self.strikes = 0
        self.reason = ""
        self.max_tokens = 0
        key = os.environ.get("VLLM_API_KEY")
        self.client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(10.0, read=timeout, pool=None),
            # The server closes what is idle for 5 s; we are first, or a request would meet a closed connection.
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=2.0),
            trust_env=False,  # a proxy for the outside world does not know the machines of a cluster
        )
        self.loading = asyncio.Lock()

    @property
    def live(self) -> bool:
        """Requests may be sent to it."""
        return not self.left_out.is_set()

    async def healthy(self) -> bool:
        """It answers, and its engine lives."""
        try:
            return (await self.client.get("/health", timeout=HEALTH_SECONDS)).status_code == 200
        except httpx2.TransportError:
            return False

    async def connect(self, folder: Path) -> None:
        """Learn how long a sequence may be, and drop the adapters from ``folder`` that an earlier, killed run left.

        Raises:
            Unreachable: no answer. EngineError: an answer that no vLLM server gives.
        """
        models = (await self._ask("GET", "/v1/models")).get("data", [])
        base = [model for model in models if not model.get("parent")]
        if not base or "max_model_len" not in base[0]:
            raise EngineError(f"{self.url} answers, but not as a vLLM server does")
        self.max_tokens = int(base[0]["max_model_len"])
        for model in models:
            if model.get("parent") and Path(model["root"]).is_relative_to(folder):
                await self.drop(model["id"])

    async def complete(
        self, adapter: Path, prompt: Sequence[int], sampling: Sampling, seed: int, end_ids: Sequence[int]
    ) -> Completion:
        """One completion by base + adapter, tried again after a pause where that may help.

        Raises:
            Unreachable: every attempt failed. TooSlow: the first one took too long.
            EngineError: it would fail everywhere.
        """
        async for attempt in attempts():
            with attempt:
                await self.use(adapter)
                try:
                    answer = await self._ask(
                        "POST", "/v1/completions", _request(adapter, prompt, sampling, seed, end_ids)
                    )
                except Unreachable:
                    self.adapter = None  # it may have been restarted
                    raise
        [choice] = answer["choices"]
        return _completion(choice, prompt, sampling, end_ids, self.url)

    async def use(self, adapter: Path) -> None:
        """Load an adapter under its folder's name, which was never used before, and drop the one that it replaces.

        vLLM keeps the cached prefixes of (name, path): a name or path that is used twice answers with what it
        remembers of the first (vLLM issue 42125).

        Raises:
            Unreachable: no answer. EngineError: it cannot be loaded there, with the flag or folder to mend.
        """
        if self.adapter == adapter:
            return
        async with self.loading:
            if self.adapter == adapter:
                return
            body = {"lora_name": adapter.name, "lora_path": str(adapter)}
            try:
                await self._ask("POST", "/v1/load_lora_adapter", body)
            except (Unreachable, EngineError) as error:
                if "already been loaded" not in str(error):
                    self._explain(error, adapter)
                    if "answered" in str(error) and await self.healthy():
                        raise EngineError(f"the adapter cannot be loaded: {error}") from error
                    raise
            if self.previous is not None and self.previous != adapter:
                await self.drop(self.previous.name)
            self.adapter = self.previous = adapter

    async def drop(self, name: str) -> None:
        """Unload an adapter; a server that does not know it, or does not answer, has nothing to unload."""
        with suppress(Unreachable, EngineError):
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def require_slots(self) -> None:
        """Refuse a server that has more adapters to serve than it holds at once: they would evict each other.

        Raises:
            EngineError: with the value that --max-loras needs. Unreachable: no answer.
        """
        models = (await self._ask("GET", "/v1/models")).get("data", [])
        loaded = sum(bool(model.get("parent")) for model in models)
        found = re.search(r'max_lora="(\d+)"', await self._text("/metrics"))
        if found and loaded > int(found[1]):
            raise EngineError(
                f"{self.url} serves {loaded} adapters and holds {found[1]} at once, so each would evict another; "
                f"start it with --max-loras {loaded}, or unload those of other runs"
            )

    async def sleep(self) -> None:
        """Give the GPU's memory back: weights to the CPU's memory, cached prefixes dropped. Raises as ``wake``."""
        await self._turn("/sleep?level=1")

    async def wake(self) -> None:
        """Take the GPU's memory again.

        Raises:
            Unreachable: no answer. EngineError: it was not started for this, with the flag to set.
        """
        await self._turn("/wake_up")

    async def close(self) -> None:
        """Close the connections, and end the process where it is ours."""
        await self.client.aclose()
        if self.process is not None:
            self.process.stop()

    async def _turn(self, path: str) -> None:
        try:
            await self._ask("POST", path)
        except EngineError as error:
            raise EngineError(
                f"{self.url} cannot sleep (rollout.sleep): start it with --enable-sleep-mode and with "
                f"VLLM_SERVER_DEV_MODE=1 in its environment ({error})"
            ) from error

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self.client.request(method, path, json=body)
        except httpx2.ReadTimeout as error:
            raise TooSlow(f"{self.url}{path}: no answer within {self.client.timeout.read:.0f} s") from error
        except httpx2.TransportError as error:
            raise Unreachable(f"{self.url}{path}: {type(error).__name__} {error}".rstrip()) from error
        if response.is_success:
            try:
                answer = response.json()
            except ValueError:
                return {}
            return answer if isinstance(answer, dict) else {}
        text = f"{self.url}{path} answered {response.status_code}: {_message(response.text)}"
        # 404 for a model: the server was started again and has no adapter yet.
        missing = response.status_code == 404 and "does not exist" in text
        if response.status_code >= 500 or response.status_code in (408, 429) or missing:
            raise Unreachable(text)
        raise EngineError(text)

    async def _text(self, path: str) -> str:
        try:
            return str((await self.client.get(path)).text)
        except httpx2.TransportError as error:
            raise Unreachable(f"{self.url}{path}: {error}") from error

    def _explain(self, error: Exception, adapter: Path) -> None:
        """Raise an EngineError that says what to mend, where the reason is known."""
        text = str(error)
        if found := re.search(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", text):
            rank, limit = int(found[1]), found[2]
            flag = next((r for r in RANKS if r >= rank), rank)
            raise EngineError(
                f"{self.url} takes adapters up to rank {limit}, this one has {rank} (model.lora_rank); "
                f"start it with --max-lora-rank {flag}"
            ) from error
        if "No adapter found" in text:
            raise EngineError(
                f"{self.url} cannot read {adapter}: the folder must be on a disk that trainer and server see "
                f"under the same path; choose one with --rollout.adapter-folder"
            ) from error
        if "answered 404" in text or "LoRA is not enabled" in text:
            raise EngineError(
                f"{self.url} does not take adapters: start it with --enable-lora and with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment ({text})"
            ) from error


class ServerProcess:
    """A vLLM server that this process owns: its command, its log, and that it does not outlive us.

    Attributes:
        log: where the server's output goes; a restart adds to it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = list(command)
        self.environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER} | dict(environment)
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C reaches the trainer only, which first ends its step."""
        self.stop()
        watched = [sys.executable, "-m", "paint.engines.watchdog", str(os.getpid()), *self.command]
        with self.log.open("ab") as log:
            log.write(f"\n$ {shlex.join(self.command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                watched,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def dead(self) -> bool:
        """It has ended, or was never started."""
        return self.process is None or self.process.poll() is not None

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def stop(self) -> None:
        """End it and all its children; returns when they are gone."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=STOP_SECONDS)
        with suppress(ProcessLookupError):  # the group is gone, as it should be
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # A killed process is there until its memory is freed, the longer the more it has.
        until = time.monotonic() + STOP_SECONDS
        while _lives(self.process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        self.process = None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _lives(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and waits to be collected does not."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def attempts() -> AsyncRetrying:
    """Three tries with a pause in between, for what may pass; the last failure is raised."""
    return AsyncRetrying(
        retry=retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TooSlow),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=0.25, max=5),
        reraise=True,
    )


def _request(
    adapter: Path, prompt: Sequence[int], sampling: Sampling, seed: int, end_ids: Sequence[int]
) -> dict[str, Any]:
    """Every setting that shapes the distribution is said: a server's or a model's defaults must not bend it."""
    return {
        "model": adapter.name,
        "prompt": list(prompt),
        "add_special_tokens": False,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "stop_token_ids": list(end_ids),
        "logprobs": 0,
        "return_token_ids": True,
    }


def _completion(
    choice: Mapping[str, Any], prompt: Sequence[int], sampling: Sampling, end_ids: Sequence[int], url: str
) -> Completion:
    """A server's answer, which must be to the ids that were sent and as long as it says."""
    ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if choice["prompt_token_ids"] != list(prompt):
        raise EngineError(f"{url} read other token ids than it was sent: {choice['prompt_token_ids'][:20]} ...")
    if not ids or len(ids) != len(log_probs):
        raise EngineError(f"{url} returned {len(ids)} token ids and {len(log_probs)} log-probs")
    ended = ids[-1] in end_ids
    if not ended and len(ids) != sampling.max_new_tokens:
        raise EngineError(
            f"{url} stopped after {len(ids)} of {sampling.max_new_tokens} tokens without an end token "
            f"({choice['finish_reason']}, {choice['stop_reason']}); look at its --max-model-len and stop settings"
        )
    if not all(math.isfinite(x) for x in log_probs):
        raise EngineError(f"{url} returned log-probs that are not finite")
    return Completion(tuple(ids), tuple(log_probs), truncated=not ended, source=url)


def _message(text: str) -> str:
    """What an error body says."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
