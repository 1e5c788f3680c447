"""A real vLLM for CPUs as tests start it, on the cores that it shares with the trainer."""

from pathlib import Path

import pytest

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
