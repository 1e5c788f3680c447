"""One vLLM server as its user sees it: what may be asked of it over HTTP.

Token ids go in, token ids and log-probs come out. A response is read up to a number of bytes and a
time that follow from the request, and believed once paint.engines.answers has checked it. Left out:
every endpoint that takes or returns text; redirects; compressed responses. Where the server is
ours, paint.engines.launch has its process.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from paint.engines.answers import (
    Served,
    Unusable,
    Vocabulary,
    most_bytes,
    read_completion,
    read_models,
    said,
)
from paint.engines.launch import API_KEY, ServerProcess, max_rank_flag
from paint.engines.protocol import Completion, EngineError, Sampling
from paint.errors import explained, reason

ATTEMPTS = 3
PAUSE_SECONDS = 0.25
"""The pause before the second attempt; the one before the third is twice as long."""

HEALTH_SECONDS = 10.0

LIST_BYTES = 2**22
"""The longest list of models, or page of metrics, that is read."""

MESSAGE_BYTES = 2**14
"""The most that is read of a response that is not used but for what it says."""

T = TypeVar("T")


class Unreachable(Exception):
    """No usable response now; the same request may succeed later, or elsewhere."""


class TooSlow(Unreachable):
    """No response within the time that a completion may take."""


class Server:
    """A server at ``url``; the adapter that it is known to have, and how it is doing.

    Args:
        timeout: seconds that a whole response may take.

    Attributes:
        adapter: folder of the adapter that is loaded, under the folder's name; None when unknown.
        previous: the last one that was loaded, to be unloaded after the next.
        left_out: set while it gets no requests.
        requests: those under way.
        strikes: how often it was left out since it last completed something.
        reason: why it was left out the last time.
        max_tokens: the longest prompt and completion together; 0 before ``connect``.

    Raises:
        EngineError: VLLM_API_KEY holds what no header can.
    """

    def __init__(self, url: str, *, timeout: float, process: ServerProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.process = process
        self.adapter: Path | None = None
        self.previous: Path | None = None
        self.left_out = asyncio.Event()
        self.requests: set[asyncio.Task[Completion]] = set()
        self.strikes = 0
        self.reason = ""
        self.max_tokens = 0
        self.loading = asyncio.Lock()

        self.key = (process.environment if process else os.environ).get(API_KEY, "")
        if not re.fullmatch("[!-~]*", self.key):
            raise EngineError(
                f"the environment variable {API_KEY} holds blanks, line ends or characters that "
                f"are not ASCII, which no key of a server can; set it again"
            )
        with explained(self.url, EngineError, "name servers as in http://node1:8000"):
            self.client = httpx2.AsyncClient(
                base_url=self.url,
                headers={"Accept-Encoding": "identity"}
                | ({"Authorization": f"Bearer {self.key}"} if self.key else {}),
                timeout=httpx2.Timeout(10.0, read=None, pool=None),
                # The server closes connections that are idle for 5 s. We close them first, or a
                # request would meet a closed one.
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=2.0),
                trust_env=False,  # a proxy for the outside world does not know a cluster's machines
            )

    def beside(self) -> "Server":
        """The same server for another client, which loads an adapter of its own."""
        server = Server(self.url, timeout=self.timeout, process=self.process)
        server.max_tokens = self.max_tokens
        return server

    @property
    def live(self) -> bool:
        """Requests may be sent to it."""
        return not self.left_out.is_set()

    async def healthy(self) -> bool:
        """It responds, and its engine lives."""
        try:
            status, _ = await self._fetch("GET", "/health", None, MESSAGE_BYTES, HEALTH_SECONDS)
            return status == 200
        except Unreachable:
            return False

    async def connect(self, folder: Path) -> None:
        """Learn the server's longest sequence, and unload what a killed run left of ``folder``.

        Raises:
            Unreachable: no response, or one that no vLLM server gives.
        """
        models = await self._models()
        self.max_tokens = max(model.max_tokens for model in models)
        for model in models:
            if model.adapter is not None and model.adapter.is_relative_to(folder):
                await self.unload(model.name)

    async def complete(
        self,
        adapter: Path,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        vocabulary: Vocabulary,
    ) -> Completion:
        """One completion by base + adapter, tried again after a pause where that may help.

        Raises:
            Unreachable: every attempt failed, or was answered with something else.
            TooSlow: the first attempt took too long.
            EngineError: it would fail everywhere.
        """
        request = _request(adapter, prompt, sampling, seed, vocabulary.end_ids)
        new = sampling.max_new_tokens
        async for attempt in attempts():
            with attempt:
                await self.load(adapter)
                try:
                    ids, log_probs = await self._read(
                        ("POST", "/v1/completions", request),
                        f"a completion of at most {new} tokens to a prompt of {len(prompt)}",
                        most_bytes(len(prompt), new),
                        lambda content: read_completion(content, prompt, new, vocabulary),
                    )
                except Unreachable:
                    self.adapter = None  # the server may have been restarted, without the adapter
                    raise
        return Completion(ids, log_probs, ids[-1] not in vocabulary.end_ids, self.url)

    async def load(self, adapter: Path) -> None:
        """Load an adapter under its folder's name, and unload the one that it replaces.

        The name must never have been used before: paint.engines.adapters says why.

        Raises:
            Unreachable: no response.
            EngineError: it cannot be loaded there; the message has the flag or folder to mend.
        """
        if self.adapter == adapter:
            return
        async with self.loading:
            if self.adapter == adapter:  # another request has loaded it while this one waited
                return

            body = {"lora_name": adapter.name, "lora_path": str(adapter)}
            try:
                await self._ask("POST", "/v1/load_lora_adapter", body)
            except (Unreachable, EngineError) as error:
                if "already been loaded" not in str(error):
                    self._explain_refusal(error, adapter)
                    if "answered" in str(error) and await self.healthy():
                        raise EngineError(f"the adapter cannot be loaded: {error}") from error
                    raise

            if self.previous is not None and self.previous != adapter:
                await self.unload(self.previous.name)
            self.adapter = self.previous = adapter

    async def unload(self, name: str) -> None:
        """Unload an adapter; a server that does not know it or does not respond has none."""
        with suppress(Unreachable, EngineError):
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def require_slots(self, ahead: int) -> None:
        """Refuse a server with more adapters than it holds at once: they would evict each other.

        Args:
            ahead: adapters that will be loaded beside those that are.

        Raises:
            EngineError: with the value that --max-loras needs.
            Unreachable: no response.
        """
        loaded = sum(model.adapter is not None for model in await self._models()) + ahead
        metrics = await self._ask("GET", "/metrics", most=LIST_BYTES)
        slots = re.search(rb'max_lora="(\d{1,9})"', metrics)
        if slots and loaded > int(slots[1]):
            raise EngineError(
                f"{self.url} serves {loaded} adapters and holds {int(slots[1])} at once, so each "
                f"would evict another; start it with --max-loras {loaded}, or unload those of "
                f"other runs" + (", or lower rollout.ahead" if ahead else "")
            )

    async def sleep(self) -> None:
        """Give the GPU's memory back: weights to the CPU's memory, cached prefixes dropped.

        Raises:
            Unreachable: no response.
            EngineError: it was not started for this; the message has the flag to set.
        """
        await self._ask_sleep_mode("/sleep?level=1")

    async def wake(self) -> None:
        """Take the GPU's memory again. Raises as ``sleep``."""
        await self._ask_sleep_mode("/wake_up")

    async def close(self) -> None:
        """Close the connections, and end the process where it is ours."""
        await self.client.aclose()
        if self.process is not None:
            self.process.stop()

    async def _ask_sleep_mode(self, path: str) -> None:
        try:
            await self._ask("POST", path)
        except EngineError as error:
            raise EngineError(
                f"{self.url} cannot sleep (rollout.sleep): start it with --enable-sleep-mode and "
                f"with VLLM_SERVER_DEV_MODE=1 in its environment ({error})"
            ) from error

    async def _models(self) -> list[Served]:
        """The base model and the adapters that are loaded."""
        return await self._read(("GET", "/v1/models", None), "its models", LIST_BYTES, read_models)

    async def _read(
        self,
        request: tuple[str, str, Mapping[str, Any] | None],
        wanted: str,
        most: int,
        read: Callable[[bytes], T],
    ) -> T:
        """What ``read`` makes of the response.

        Args:
            wanted: what is asked for, in words.
            most: bytes that the response can have.

        Raises:
            Unreachable, TooSlow, EngineError: as ``_ask``; a server that answers something else is
                as good as none.
        """
        method, path, body = request
        content = await self._ask(method, path, body, most=most)
        try:
            return read(content)
        except (Unusable, RecursionError) as fault:
            start = self._said(content[:MESSAGE_BYTES])
            raise self._lies(path, f"{fault} (asked for {wanted}, it sent {start})") from None

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        most: int = MESSAGE_BYTES,
    ) -> bytes:
        """The body of a response that says that all went well.

        Raises:
            Unreachable, TooSlow: it failed, and may not fail again.
            EngineError: the server refuses it.
        """
        status, content = await self._fetch(method, path, body, most, self.timeout)
        if 200 <= status < 300:
            return content

        text = f"{self.url}{path} answered {status}: {self._said(content)}"
        # 404 for a model: the server was started again and has no adapter yet.
        is_adapter_missing = status == 404 and "does not exist" in text
        if not 400 <= status < 500 or status in (408, 429) or is_adapter_missing:
            raise Unreachable(text)
        if status in (401, 403):
            text += f"; the environment variable {API_KEY} must hold the server's key"
        raise EngineError(text)

    async def _fetch(
        self, method: str, path: str, body: Mapping[str, Any] | None, most: int, seconds: float
    ) -> tuple[int, bytes]:
        """Status and body of a response.

        Raises:
            Unreachable, TooSlow: none, or a longer or slower one; no more than ``most`` bytes are
                read, and for no more than ``seconds``.
        """
        content = bytearray()
        try:
            async with (
                asyncio.timeout(seconds),
                self.client.stream(method, path, json=body) as response,
            ):
                encoding = response.headers.get("Content-Encoding", "identity")
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > most:
                        break
        except TimeoutError as error:
            raise TooSlow(f"{self.url}{path}: no whole answer within {seconds:g} s") from error
        except Exception as error:  # whatever the library raises at what a server sends
            said = self._said(reason(error).encode())
            raise Unreachable(f"{self.url}{path}: {type(error).__name__} {said}") from error

        if response.is_success and len(content) > most:
            raise self._lies(path, f"more than {most:,} bytes")
        if response.is_success and encoding != "identity":
            raise self._lies(path, f"a compressed response ({self._said(encoding.encode())})")
        return response.status_code, bytes(content[:most])

    def _lies(self, path: str, fault: str) -> Unreachable:
        return Unreachable(
            f"{self.url}{path} answers, but not as a vLLM server does: {fault}; look at what "
            f"listens there, and at its version"
        )

    def _said(self, content: bytes) -> str:
        """What a response says, as plain text and without our key."""
        return said(content.replace(self.key.encode(), b"***") if self.key else content)

    def _explain_refusal(self, error: Exception, adapter: Path) -> None:
        """Raise an EngineError that says what to mend, where the reason for a refusal is known."""
        text = str(error)
        if ranks := re.search(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", text):
            rank, limit = int(ranks[1]), ranks[2]
            raise EngineError(
                f"{self.url} takes adapters up to rank {limit}, this one has {rank} "
                f"(model.lora_rank); start it with --max-lora-rank {max_rank_flag(rank)}"
            ) from error
        if "No adapter found" in text:
            raise EngineError(
                f"{self.url} cannot read {adapter}: the folder must be on a disk that trainer and "
                f"server see under the same path; choose one with --rollout.adapter-folder"
            ) from error
        if "answered 404" in text or "LoRA is not enabled" in text:
            raise EngineError(
                f"{self.url} does not take adapters: start it with --enable-lora and with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment ({text})"
            ) from error


def attempts() -> AsyncRetrying:
    """Three tries with a pause in between, for failures that may pass; the last one is raised."""
    return AsyncRetrying(
        retry=retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TooSlow),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=PAUSE_SECONDS, max=5),
        reraise=True,
    )


def _request(
    adapter: Path, prompt: Sequence[int], sampling: Sampling, seed: int, end_ids: Sequence[int]
) -> dict[str, Any]:
    """The body of a request, with every setting that shapes the distribution.

    A server's or a model's defaults must not bend it.
    """
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
