"""HTTP client of one vLLM server."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx2
from tenacity import retry, retry_if_exception_type, retry_if_not_exception_type, stop_after_attempt

from paint.core.errors import reason, sanitize_for_terminal, wrap_errors
from paint.core.nesting import parse_json
from paint.inference.engine import Completion, EngineError, Sampling
from paint.inference.vllm.process import API_KEY, OwnedProcess

PAUSE_SECONDS = 0.25  # before the second attempt; before the third, twice as long
HEALTH_SECONDS = 10.0
SHOWN_CHARACTERS = 600  # how much of a response is passed on in messages

NEEDS = (
    f"a server of yours needs --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, the run folder "
    f"under the same path (--log.folder), its key in {API_KEY} here, too, and, with "
    f"rollout.colocate, --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1 (docs/how-to/vllm.md)"
)


class Unreachable(EngineError):
    """No usable response; the request may succeed later or on another server."""


class TooSlow(Unreachable):
    """No complete response in time."""


# What was too slow is not repeated: it would take as long again.
retried = retry(
    retry=retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TooSlow),
    stop=stop_after_attempt(3),
    wait=lambda state: PAUSE_SECONDS * state.attempt_number,
    reraise=True,
)


class VllmServer:
    """A server at ``url``, with its loaded adapter.

    Methods raise Unreachable where there is no usable response, and another EngineError where the
    server refuses a request.
    """

    def __init__(self, url: str, *, timeout: float, process: OwnedProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout  # of a response, in seconds
        self.process = process
        self.adapter: Path | None = None  # that is loaded; None where the server may have lost it
        # Many rows are requested at once, and the first one loads the adapter for all.
        self.loading = asyncio.Lock()
        self.max_tokens = 0  # the longest prompt and completion together, from ``connect`` on
        self.failures = 0  # since it last completed something
        self.key = (process.environment if process else os.environ).get(API_KEY, "")
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
        """Return the same server for another client, which loads a separate adapter."""
        server = VllmServer(self.url, timeout=self.timeout, process=self.process)
        server.max_tokens = self.max_tokens
        return server

    async def healthy(self) -> bool:
        try:
            await self._ask("GET", "/health", seconds=HEALTH_SECONDS)
        except EngineError:
            return False
        return True

    async def connect(self) -> None:
        content = await self._ask("GET", "/v1/models")
        with self._reading("/v1/models"):
            for model in parse_json(content)["data"]:
                if not model.get("parent"):  # adapters have one, and no length
                    self.max_tokens = int(model["max_model_len"])

    @retried
    async def complete(
        self,
        adapter: Path,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        end_ids: Sequence[int],
    ) -> Completion:
        """Sample one completion from base + adapter, which is loaded first."""
        # Every sampling setting: defaults of the server or the model must not change the
        # distribution.
        request = {
            "model": adapter.name,
            "prompt": list(prompt),
            "add_special_tokens": False,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # vLLM calls 0 what is -1 here: off.
            "top_k": max(sampling.top_k, 0),
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "stop_token_ids": list(end_ids),
            # The log-prob of the sampled token alone.
            "logprobs": 0,
            "return_token_ids": True,
        }
        await self.load(adapter)
        path = "/v1/completions"
        try:
            content = await self._ask("POST", path, request)
        except Unreachable:
            self.adapter = None  # the server may have been restarted, without the adapter
            raise
        with self._reading(path):
            ids, log_probs = read_completion(content, prompt, sampling.max_new_tokens, end_ids)
        return Completion(ids, log_probs, ids[-1] not in end_ids, self.url)

    async def load(self, adapter: Path) -> None:
        """Load an adapter under its folder's name, which must be new, and unload the one before."""
        async with self.loading:
            if self.adapter == adapter:
                return

            body = {"lora_name": adapter.name, "lora_path": str(adapter)}
            try:
                await self._ask("POST", "/v1/load_lora_adapter", body)
            except EngineError as error:
                # An earlier attempt may have loaded it, and its response was lost.
                if "already been loaded" not in str(error):
                    raise
            if self.adapter is not None:
                await self.unload(self.adapter.name)
            self.adapter = adapter

    async def unload(self, name: str) -> None:
        """Unload an adapter; an unknown adapter or an unreachable server is ignored."""
        path, body = "/v1/unload_lora_adapter", {"lora_name": name}
        with suppress(EngineError):
            await self._ask("POST", path, body, seconds=HEALTH_SECONDS)

    @retried
    async def sleep(self) -> None:
        """Free the GPU's memory: move the weights to CPU memory, drop cached prefixes."""
        await self._ask("POST", "/sleep?level=1")

    @retried
    async def wake(self) -> None:
        await self._ask("POST", "/wake_up")

    async def close(self) -> None:
        await self.client.aclose()
        if self.process is not None:
            self.process.stop()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = None,  # None: ``timeout``
    ) -> bytes:
        limit = seconds or self.timeout
        try:
            # For the complete response: the client's own read timeout starts anew with every byte.
            async with asyncio.timeout(limit):
                response = await self.client.request(method, path, json=body)
        except TimeoutError as error:
            raise TooSlow(
                f"{self.url}{path}: no complete answer within {limit:g} s (rollout.timeout)"
            ) from error
        except Exception as error:  # whatever the library raises at what a server sends
            raise Unreachable(f"{self.url}{path}: {self._plain(reason(error))}") from error
        if response.is_success:
            return response.content

        status, text = response.status_code, self._plain(response.text)
        message = f"{self.url}{path} answered {status}: {text}"
        # 404 for a model: the server was started again and has no adapter yet.
        is_adapter_missing = status == 404 and "does not exist" in text
        if status >= 500 or status in (408, 429) or is_adapter_missing:
            raise Unreachable(message)
        raise EngineError(f"{message}; {NEEDS}")

    def _plain(self, text: str) -> str:
        """Return what a server sent in one short line, without control characters and our key."""
        if self.key:
            text = text.replace(self.key, "***")
        return sanitize_for_terminal(" ".join(text.split())[:SHOWN_CHARACTERS])

    def _reading(self, path: str) -> AbstractContextManager[None]:
        place = f"{self.url}{path} does not answer as a vLLM server does"
        return wrap_errors(place, EngineError, "look at what listens there, and at its version")


def read_completion(
    content: bytes, prompt: Sequence[int], longest: int, end_ids: Sequence[int]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sampled token ids of a response, and their log-probs. Raises ValueError."""
    [choice] = parse_json(content)["choices"]
    if choice["prompt_token_ids"] != list(prompt):
        raise ValueError("it read other token ids than it was sent")
    ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    # vLLM shortens a completion without an error where its own settings end it.
    if len(ids) != longest and ids[-1] not in end_ids:
        raise ValueError(
            f"it stopped after {len(ids)} of {longest} tokens, and not at an end token; look at "
            f"its --max-model-len and stop settings"
        )
    return tuple(ids), tuple(map(float, log_probs))
