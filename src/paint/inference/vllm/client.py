"""HTTP client of one vLLM server, with checks of its responses.

A completion is used only if it fits the request: ids of the model's vocabulary, as many finite
log-probs, and an end where one is due. Another one counts as a failure of the server.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from paint.core.errors import reason, sanitize_for_terminal, wrap_errors
from paint.inference.engine import Completion, EngineError, Sampling, completion_error
from paint.inference.vllm.process import API_KEY, OwnedProcess, max_rank_flag

ATTEMPTS = 3
PAUSE_SECONDS = 0.25
"""The pause before the second attempt; the one before the third is twice as long."""

HEALTH_SECONDS = 10.0

SHOWN_CHARACTERS = 600  # how much of a response is passed on in messages

T = TypeVar("T")


class Unreachable(Exception):
    """No usable response; the request may succeed later or on another server."""


class TooSlow(Unreachable):
    """No response within the time limit of a completion."""


@dataclass(frozen=True)
class TokenLimits:
    """The token ids that a completion may hold: from 0 to below ``size``; some end it."""

    size: int
    end_ids: Sequence[int]


class VllmServer:
    """A server at ``url``, with its loaded adapter and its state.

    Methods raise Unreachable where there is no usable response, and EngineError, with the flag,
    setting or folder to fix, where the server refuses a request or would fail for good.
    """

    def __init__(self, url: str, *, timeout: float, process: OwnedProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout  # of a response, in seconds
        self.process = process
        # The folder of the adapter that is loaded, under the folder's name; None when unknown.
        self.adapter: Path | None = None
        self.previous: Path | None = None  # loaded before, unloaded after the next
        self.evicted = asyncio.Event()  # set while no requests are sent to it
        self.reason = ""  # why it is evicted
        self.failures = 0  # how often it was evicted since it last completed something
        self.requests: set[asyncio.Task[Completion]] = set()  # in flight
        self.max_tokens = 0  # the longest prompt and completion together, from ``connect`` on
        self.loading = asyncio.Lock()

        self.key = (process.environment if process else os.environ).get(API_KEY, "")
        if not re.fullmatch("[!-~]*", self.key):
            raise EngineError(
                f"the environment variable {API_KEY} holds blanks, line ends or characters that "
                f"are not ASCII, which no key of a server can; set it again"
            )
        with wrap_errors(self.url, EngineError, "name servers as in http://node1:8000"):
            self.client = httpx2.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
                timeout=httpx2.Timeout(10.0, read=None, pool=None),
                # The server closes connections that are idle for 5 s. We close them first, or a
                # request would meet a closed one.
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=2.0),
                trust_env=False,  # a proxy for the outside world does not know a cluster's machines
            )

    def fork(self) -> "VllmServer":
        """The same server for another client, which loads a separate adapter."""
        server = VllmServer(self.url, timeout=self.timeout, process=self.process)
        server.max_tokens = self.max_tokens
        return server

    @property
    def live(self) -> bool:
        """Whether requests may be sent to it."""
        return not self.evicted.is_set()

    async def healthy(self) -> bool:
        """Whether it responds and its engine runs."""
        try:
            return (await self._fetch("GET", "/health", None, HEALTH_SECONDS)).status_code == 200
        except Unreachable:
            return False

    async def connect(self, folder: Path) -> None:
        """Read the server's longest sequence, and unload a killed run's adapters of ``folder``."""
        self.max_tokens, adapters = await self._ask("GET", "/v1/models", None, read_models)
        for name, path in adapters.items():
            if path.is_relative_to(folder):
                await self.unload(name)

    async def complete(
        self,
        adapter: Path,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        vocabulary: TokenLimits,
    ) -> Completion:
        """Sample one completion from base + adapter, with retries of transient failures."""
        longest, end_ids = sampling.max_new_tokens, vocabulary.end_ids
        # Every sampling setting: defaults of the server or the model must not change the
        # distribution.
        request = {
            "model": adapter.name,
            "prompt": list(prompt),
            "add_special_tokens": False,
            "max_tokens": longest,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "stop_token_ids": list(end_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        async for attempt in attempts():
            with attempt:
                await self.load(adapter)
                try:
                    ids, log_probs = await self._ask(
                        "POST",
                        "/v1/completions",
                        request,
                        lambda content: read_completion(content, prompt, longest, vocabulary),
                    )
                except Unreachable:
                    self.adapter = None  # the server may have been restarted, without the adapter
                    raise
        return Completion(ids, log_probs, ids[-1] not in end_ids, self.url)

    async def load(self, adapter: Path) -> None:
        """Load an adapter under its folder's name, which must be new, and unload the one before."""
        async with self.loading:
            if self.adapter == adapter:
                return

            body = {"lora_name": adapter.name, "lora_path": str(adapter)}
            try:
                await self._ask("POST", "/v1/load_lora_adapter", body, bytes)
            except (Unreachable, EngineError) as error:
                if "already been loaded" not in (text := str(error)):
                    message = self._explain_refusal(text, adapter)
                    if not message and "answered" in text and await self.healthy():
                        message = f"the adapter cannot be loaded: {text}"
                    if message:
                        raise EngineError(message) from error
                    raise

            if self.previous is not None and self.previous != adapter:
                await self.unload(self.previous.name)
            self.adapter = self.previous = adapter

    async def unload(self, name: str) -> None:
        """Unload an adapter; an unknown adapter or an unreachable server is ignored."""
        with suppress(Unreachable, EngineError):
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, bytes)

    async def require_slots(self, ahead: int) -> None:
        """Refuse a server that, with ``ahead`` further adapters, has more than slots."""
        _, adapters = await self._ask("GET", "/v1/models", None, read_models)
        loaded = len(adapters) + ahead
        metrics = await self._ask("GET", "/metrics", None, bytes)
        slots = re.search(rb'max_lora="(\d{1,9})"', metrics)
        if slots and loaded > int(slots[1]):
            raise EngineError(
                f"{self.url} serves {loaded} adapters and holds {int(slots[1])} at once, so each "
                f"would evict another; start it with --max-loras {loaded}, or unload those of "
                f"other runs" + (", or lower rollout.off_policy_steps" if ahead else "")
            )

    async def sleep(self) -> None:
        """Free the GPU's memory: move the weights to CPU memory, drop cached prefixes."""
        await self._ask_sleep_mode("/sleep?level=1")

    async def wake(self) -> None:
        """Load the weights on the GPU again."""
        await self._ask_sleep_mode("/wake_up")

    async def close(self) -> None:
        """Close the connections, and end the process if it is owned."""
        await self.client.aclose()
        if self.process is not None:
            self.process.stop()

    async def _ask_sleep_mode(self, path: str) -> None:
        try:
            await self._ask("POST", path, None, bytes)
        except EngineError as error:
            raise EngineError(
                f"{self.url} cannot sleep (rollout.colocate): start it with --enable-sleep-mode "
                f"and with VLLM_SERVER_DEV_MODE=1 in its environment ({error})"
            ) from error

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, read: Callable[[bytes], T]
    ) -> T:
        """What ``read`` makes of a successful response; one of another kind is as good as none."""
        response = await self._fetch(method, path, body, self.timeout)
        if response.is_success:
            try:
                return read(response.content)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
                found = sanitize_for_terminal(reason(fault))  # it may quote what was sent
                raise Unreachable(
                    f"{self.url}{path} answers, but not as a vLLM server does: {found} (it sent "
                    f"{self._error_body(response.content)}); look at what listens there, and at "
                    f"its version"
                ) from None

        status = response.status_code
        text = f"{self.url}{path} answered {status}: {self._error_body(response.content)}"
        # 404 for a model: the server was started again and has no adapter yet.
        is_adapter_missing = status == 404 and "does not exist" in text
        if not 400 <= status < 500 or status in (408, 429) or is_adapter_missing:
            raise Unreachable(text)
        if status in (401, 403):
            text += f"; the environment variable {API_KEY} must hold the server's key"
        raise EngineError(text)

    async def _fetch(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> httpx2.Response:
        """A response of any status. Raises Unreachable, TooSlow: there is none."""
        try:
            async with asyncio.timeout(seconds):
                return await self.client.request(method, path, json=body)
        except TimeoutError as error:
            raise TooSlow(f"{self.url}{path}: no complete answer within {seconds:g} s") from error
        except Exception as error:  # whatever the library raises at what a server sends
            text = self._error_body(reason(error).encode())
            raise Unreachable(f"{self.url}{path}: {type(error).__name__} {text}") from error

    def _error_body(self, content: bytes) -> str:
        """The message in the body of a response, in one plain line and without our key."""
        content = content.replace(self.key.encode(), b"***") if self.key else content
        try:
            text = json.loads(content)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            text = content.decode("utf-8", "replace")
        return sanitize_for_terminal(" ".join(str(text).split())[:SHOWN_CHARACTERS])

    def _explain_refusal(self, text: str, adapter: Path) -> str:
        """The fix for a refusal to load an adapter; "" where its reason is not known."""
        ranks = re.search(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", text)
        if ranks:
            rank, limit = int(ranks[1]), ranks[2]
            return (
                f"{self.url} takes adapters up to rank {limit}, this one has {rank} "
                f"(model.lora_rank); start it with --max-lora-rank {max_rank_flag(rank)}"
            )
        if "No adapter found" in text:
            return (
                f"{self.url} cannot read {adapter}: the folder must be on a disk that trainer and "
                f"server see under the same path; choose one with --log.folder"
            )
        if "answered 404" in text or "LoRA is not enabled" in text:
            return (
                f"{self.url} does not take adapters: start it with --enable-lora and with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment ({text})"
            )
        return ""


def attempts() -> AsyncRetrying:
    """Three attempts with a pause in between; the last failure is raised."""
    return AsyncRetrying(
        retry=retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TooSlow),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=PAUSE_SECONDS, max=5),
        reraise=True,
    )


def read_completion(
    content: bytes, prompt: Sequence[int], longest: int, vocabulary: TokenLimits
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The sampled token ids of a response, at most ``longest``, and their log-probs."""
    [choice] = json.loads(content)["choices"]
    read = choice["prompt_token_ids"]
    if read != list(prompt):
        raise ValueError(f"it read other token ids than it was sent: {_show(read)}")

    ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if len(ids) != len(log_probs):
        raise ValueError(f"{len(ids)} token ids and {len(log_probs)} log-probs")
    error = completion_error(ids, log_probs, False, vocabulary.size)
    if error:
        raise ValueError(f"a completion {error}")

    # A completion ends with its first end token, or where it is as long as it may be.
    first_end = next((n for n, token in enumerate(ids, 1) if token in vocabulary.end_ids), None)
    finish = choice["finish_reason"]
    has_ended = finish == "stop" and first_end == len(ids) <= longest
    is_cut = finish == "length" and first_end in (None, len(ids)) and len(ids) == longest
    if not (has_ended or is_cut):
        raise ValueError(
            f"it stopped after {len(ids)} of {longest} tokens, with its first end token at "
            f"{first_end} ({_show(finish)}, {_show(choice.get('stop_reason'))}); look at its "
            f"--max-model-len and stop settings"
        )
    return tuple(ids), tuple(map(float, log_probs))


def read_models(content: bytes) -> tuple[int, dict[str, Path]]:
    """The base model's longest sequence, and the folders of adapters by name, of a response."""
    max_tokens, adapters = 0, {}
    for model in json.loads(content)["data"]:
        if type(model["id"]) is not str:
            raise ValueError(f"a model {_show(model)}")
        if model.get("parent"):
            adapters[model["id"]] = Path(model["root"])
        else:
            max_tokens = max(max_tokens, int(model["max_model_len"]))
    if max_tokens <= 0:
        raise ValueError("no base model with its max_model_len")
    return max_tokens, adapters


def _show(value: object) -> str:
    """A value of a response as short plain text."""
    return sanitize_for_terminal(json.dumps(value)[:80])
