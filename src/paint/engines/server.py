"""One vLLM server as its user sees it: what may be asked of it over HTTP.

Token ids go in, token ids and log-probs come out. Left out: every endpoint that takes or returns
text. Where the server is ours, paint.engines.launch has its process.
"""

import asyncio
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from paint.engines.launch import ServerProcess, max_rank_flag
from paint.engines.protocol import Completion, EngineError, Sampling

ATTEMPTS = 3
PAUSE_SECONDS = 0.25
"""The pause before the second attempt; the one before the third is twice as long."""

HEALTH_SECONDS = 10.0


class Unreachable(Exception):
    """No usable response now; the same request may succeed later, or elsewhere."""


class TooSlow(Unreachable):
    """No response within the time that a completion may take."""


class Server:
    """A server at ``url``; the adapter that it is known to have, and how it is doing.

    Attributes:
        adapter: folder of the adapter that is loaded, under the folder's name; None when unknown.
        previous: the last one that was loaded, to be unloaded after the next.
        left_out: set while it gets no requests.
        requests: those under way.
        strikes: how often it was left out since it last completed something.
        reason: why it was left out the last time.
        max_tokens: the longest prompt and completion together; 0 before ``connect``.
    """

    def __init__(self, url: str, *, timeout: float, process: ServerProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.process = process
        self.adapter: Path | None = None
        self.previous: Path | None = None
        self.left_out = asyncio.Event()
        self.requests: set[asyncio.Task[Completion]] = set()
        self.strikes = 0
        self.reason = ""
        self.max_tokens = 0
        self.loading = asyncio.Lock()

        key = os.environ.get("VLLM_API_KEY")
        self.client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(10.0, read=timeout, pool=None),
            # The server closes connections that are idle for 5 s. We close them first, or a request
            # would meet a closed one.
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=2.0),
            trust_env=False,  # a proxy for the outside world does not know a cluster's machines
        )

    @property
    def live(self) -> bool:
        """Requests may be sent to it."""
        return not self.left_out.is_set()

    async def healthy(self) -> bool:
        """It responds, and its engine lives."""
        try:
            response = await self.client.get("/health", timeout=HEALTH_SECONDS)
            return response.status_code == 200
        except httpx2.TransportError:
            return False

    async def connect(self, folder: Path) -> None:
        """Learn the server's longest sequence, and unload what a killed run left of ``folder``.

        Raises:
            Unreachable: no response.
            EngineError: a response that no vLLM server gives.
        """
        models = await self._models()
        base = [model for model in models if not model.get("parent")]
        if not base or "max_model_len" not in base[0]:
            raise EngineError(f"{self.url} answers, but not as a vLLM server does")

        self.max_tokens = int(base[0]["max_model_len"])
        for model in models:
            if model.get("parent") and Path(model["root"]).is_relative_to(folder):
                await self.unload(model["id"])

    async def complete(
        self,
        adapter: Path,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        end_ids: Sequence[int],
    ) -> Completion:
        """One completion by base + adapter, tried again after a pause where that may help.

        Raises:
            Unreachable: every attempt failed.
            TooSlow: the first attempt took too long.
            EngineError: it would fail everywhere.
        """
        request = _request(adapter, prompt, sampling, seed, end_ids)
        async for attempt in attempts():
            with attempt:
                await self.load(adapter)
                try:
                    response = await self._ask("POST", "/v1/completions", request)
                except Unreachable:
                    self.adapter = None  # the server may have been restarted, without the adapter
                    raise

        [choice] = response["choices"]
        return _completion(choice, prompt, sampling, end_ids, self.url)

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

    async def require_slots(self) -> None:
        """Refuse a server with more adapters than it holds at once: they would evict each other.

        Raises:
            EngineError: with the value that --max-loras needs.
            Unreachable: no response.
        """
        loaded = sum(bool(model.get("parent")) for model in await self._models())
        slots = re.search(r'max_lora="(\d+)"', await self._text("/metrics"))
        if slots and loaded > int(slots[1]):
            raise EngineError(
                f"{self.url} serves {loaded} adapters and holds {slots[1]} at once, so each would "
                f"evict another; start it with --max-loras {loaded}, or unload those of other runs"
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

    async def _models(self) -> list[dict[str, Any]]:
        """The base model and the adapters that are loaded, which have a parent."""
        models: list[dict[str, Any]] = (await self._ask("GET", "/v1/models")).get("data", [])
        return models

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The response's JSON object; an empty one where the response is none.

        Raises:
            Unreachable, TooSlow: it failed, and may not fail again.
            EngineError: the server refuses it.
        """
        try:
            response = await self.client.request(method, path, json=body)
        except httpx2.ReadTimeout as error:
            seconds = self.client.timeout.read
            raise TooSlow(f"{self.url}{path}: no answer within {seconds:.0f} s") from error
        except httpx2.TransportError as error:
            text = f"{self.url}{path}: {type(error).__name__} {error}".rstrip()
            raise Unreachable(text) from error

        if response.is_success:
            try:
                content = response.json()
            except ValueError:
                return {}
            return content if isinstance(content, dict) else {}

        status = response.status_code
        text = f"{self.url}{path} answered {status}: {_message(response.text)}"
        # 404 for a model: the server was started again and has no adapter yet.
        is_adapter_missing = status == 404 and "does not exist" in text
        if status >= 500 or status in (408, 429) or is_adapter_missing:
            raise Unreachable(text)
        raise EngineError(text)

    async def _text(self, path: str) -> str:
        try:
            return str((await self.client.get(path)).text)
        except httpx2.TransportError as error:
            raise Unreachable(f"{self.url}{path}: {error}") from error

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


def _completion(
    choice: Mapping[str, Any],
    prompt: Sequence[int],
    sampling: Sampling,
    end_ids: Sequence[int],
    url: str,
) -> Completion:
    """What a server returned, which must be to the ids that were sent and as long as it says.

    Raises:
        EngineError: it is not.
    """
    ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    read = choice["prompt_token_ids"]
    if read != list(prompt):
        raise EngineError(f"{url} read other token ids than it was sent: {read[:20]} ...")
    if not ids or len(ids) != len(log_probs):
        raise EngineError(f"{url} returned {len(ids)} token ids and {len(log_probs)} log-probs")

    ended = ids[-1] in end_ids
    if not ended and len(ids) != sampling.max_new_tokens:
        raise EngineError(
            f"{url} stopped after {len(ids)} of {sampling.max_new_tokens} tokens without an end "
            f"token ({choice['finish_reason']}, {choice['stop_reason']}); look at its "
            f"--max-model-len and stop settings"
        )
    if not all(math.isfinite(log_prob) for log_prob in log_probs):
        raise EngineError(f"{url} returned log-probs that are not finite")
    return Completion(tuple(ids), tuple(log_probs), truncated=not ended, source=url)


def _message(text: str) -> str:
    """What the body of an error response says."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
