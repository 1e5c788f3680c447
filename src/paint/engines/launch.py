"""What a vLLM server of ours is started with, and that it ends with us.

The process that ends our server even when the trainer is killed is paint.engines.watchdog, which
runs by itself. Left out on purpose: servers of somebody else, which are never started or stopped.
"""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from paint import config as cfg
from paint.errors import PaintError, explained, plain, reason
from paint.lab.files import model_path

STOP_SECONDS = 20.0
"""How long to wait for the watchdog to end, and then again for what it has killed."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for --max-lora-rank."""

WATCHDOG = Path(__file__).with_name("watchdog.py")

API_KEY = "VLLM_API_KEY"
"""The environment variable with a server's key, on its side and on ours."""

TAIL_BYTES = 20_000
"""What is read of a log for its last lines."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Set by a launcher of several training processes; the server would take them for its own."""


def server_command(
    model: cfg.Model,
    options: cfg.Rollout,
    port: int,
    *,
    max_tokens: int,
    positions: int | None,
) -> list[str]:
    """The command line of our server; ``rollout.server_args`` come last, so they win.

    Args:
        max_tokens: the longest prompt and completion together.
        positions: the longest sequence that the model takes; None where it has no limit.
    """
    path = model_path(model.path)
    start = shlex.split(options.server)
    # ``vllm serve MODEL``, but ``python -m vllm.entrypoints.openai.api_server --model MODEL``.
    model_arguments = [path] if start[-1] == "serve" else ["--model", path]

    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": model.dtype,
        "--max-model-len": min(max_tokens, positions or max_tokens),
        "--max-lora-rank": max_rank_flag(model.lora_rank),
        "--max-loras": 1,
    }
    if model.quantization == "nf4":  # in flight, vLLM's is nf4 with scales of 8 bits, as ours
        settings["--quantization"] = "bitsandbytes"
    flags = [str(part) for setting in settings.items() for part in setting]
    flags += ["--enable-lora", *(["--enable-sleep-mode"] if options.sleep else [])]
    return [*start, *model_arguments, *flags, *shlex.split(options.server_args)]


def server_environment(options: cfg.Rollout) -> dict[str, str]:
    """The variables that our server needs beside those of this process.

    One is a new key: everybody on this machine can reach the server, and who has no key can load
    no adapter. Command lines, unlike environments, are shown to all users.
    """
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", API_KEY: secrets.token_urlsafe(32)}
    if options.sleep:
        # A sleeping server is woken through an endpoint that vLLM has in development mode only.
        variables["VLLM_SERVER_DEV_MODE"] = "1"
    return variables


def max_rank_flag(rank: int) -> int:
    """The smallest value of --max-lora-rank that takes adapters of this rank."""
    return next((allowed for allowed in RANKS if allowed >= rank), rank)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A vLLM server that this process owns: its command, its log, and that it does not outlive us.

    Attributes:
        log: where the server's output goes; a restart adds to it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = list(command)
        inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        # ``python -m`` would import the server's modules from the working directory first.
        self.environment = inherited | {"PYTHONSAFEPATH": "1"} | dict(environment)
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own: Ctrl-C then reaches the trainer alone.

        Raises:
            PaintError: the log cannot be written, or no process be started.
        """
        self.stop()
        # Isolated, and by its path: what lies in the working directory is not imported.
        watchdog = [sys.executable, "-I", "-S", str(WATCHDOG), str(os.getpid())]
        advice = "free some space, or choose another folder"
        with explained(self.log, PaintError, advice), self.log.open("ab") as log:
            log.write(f"\n$ {shlex.join(self.command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [*watchdog, *self.command],
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
        """The end of its log, without colours."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
                text = log.read(TAIL_BYTES).decode(errors="replace")
        except OSError as error:
            return f"({reason(error)})"
        return plain("\n".join(_COLOUR.sub("", text).rstrip().splitlines()[-lines:]))

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

        # A killed process stays until its memory is freed: the longer, the more it has.
        deadline = time.monotonic() + STOP_SECONDS
        while _is_group_alive(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.process = None


def _is_group_alive(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and waits to be reaped does not."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
