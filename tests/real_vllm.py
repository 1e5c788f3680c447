"""A real vLLM for CPUs as tests start it, on the cores that it shares with the trainer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from paint.inference.vllm.process import OwnedProcess, free_port, inherited_environment
from processes import until

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-vllm/bin/python"
SERVER = f"env OMP_NUM_THREADS=1 {PYTHON} -m vllm.entrypoints.openai.api_server"

# One thread, a gigabyte of cached prefixes, and with LEAN two processes instead of three: each of
# them imports all of vLLM.
SMALL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
LEAN = "--enforce-eager --distributed-executor-backend uni"

needs_vllm = pytest.mark.skipif(
    not (ROOT / ".venv-vllm/ready").exists(), reason="no CPU engine here; `make vllm` installs it"
)


@contextmanager
def serving(model: Path, flags: Sequence[str], log: Path) -> Iterator[str]:
    """A server of a model in float32, which the test owns; its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*SERVER.split(), "--model", str(model), "--dtype", "float32", *LEAN.split()]
    command += ["--port", str(port), *flags]
    variables = SMALL | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    process = OwnedProcess(command, inherited_environment(command) | variables, log)
    client = httpx2.Client()  # one for all questions: each loads the system's certificates

    def is_healthy() -> bool:
        assert not process.dead, process.tail(40)
        try:
            return client.get(f"{url}/health").status_code == 200
        except httpx2.TransportError:
            return False

    process.start()
    try:
        with client:
            until(is_healthy, 180)
        yield url
    finally:
        process.stop()


def scored_by(url: str, model: str, prompt: list[int], ids: list[int]) -> list[float]:
    """The log-probs that a server's model has of a completion."""
    asked = {"model": model, "prompt": prompt + ids, "max_tokens": 1, "prompt_logprobs": 0}
    answer = httpx2.post(f"{url}/v1/completions", json=asked, timeout=120).json()
    rows = answer["choices"][0]["prompt_logprobs"][len(prompt) :]
    return [row[str(i)]["logprob"] for row, i in zip(rows, ids, strict=True)]
