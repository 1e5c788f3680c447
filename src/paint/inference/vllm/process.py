"""Owned vLLM servers: command line, environment, start and stop."""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paint.config import schema as cfg
from paint.core.demo_files import model_path
from paint.core.errors import PaintError, reason, sanitize_for_terminal, wrap_errors
from paint.core.trust import Executable, require_trusted
from paint.resolve.plan import Machine, ServerFlags, dtype_on

STOP_SECONDS = 20.0  # how long to wait for the watchdog, which ends what it runs first
GRACE_SECONDS = 5.0  # how long a server that was ordered to end may take
NO_GPU = "cpu"  # what rollout.server_gpus calls a server that sees no GPU
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes for --max-lora-rank

WATCHDOG = Path(__file__).with_name("watchdog.py")

API_KEY = "VLLM_API_KEY"  # the environment variable with a server's key, on its side and on ours
TAIL_BYTES = 20_000  # what is read of a log for its last lines

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

TRAINER_VARIABLES = re.compile(
    # Of a launcher: with an agent's store, a server's own processes wait for one nobody opens.
    "((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    "|TORCHELASTIC_.*|TORCH_NCCL_.*"
    # A server has its own packages, and more threads than one of several ranks.
    "|PYTHONPATH|OMP_.*)"
)


def server_command(
    model: cfg.ModelConfig,
    options: cfg.RolloutConfig,
    port: int | str,
    *,
    max_model_len: int | str,  # the longest prompt and completion together
    gpus: str = "",  # an entry of ``rollout.server_gpus``; the server spreads over all of them
    sizes: ServerFlags | None = None,  # None: vLLM's default share, and the rows of ``options``
    host: str = "127.0.0.1",
) -> list[str]:
    """Return the command line of an owned server; ``rollout.server_args`` come last, and win.

    Raises UntrustedError for one that a record names, and nobody vouches for.
    """
    require_trusted(
        [
            Executable("rollout.server", options.server),
            Executable("rollout.server_args", options.server_args),
        ]
    )
    path = model_path(model.path)
    start = shlex.split(options.server)
    # ``vllm serve MODEL``, but ``python -m vllm.entrypoints.openai.api_server --model MODEL``.
    model_arguments = [path] if start[-1] == "serve" else ["--model", path]

    dtype = dtype_on(model, Machine(gpus=1))
    settings: dict[str, object] = {
        "--host": host,
        "--port": port,
        "--dtype": dtype,
        "--max-model-len": max_model_len,
        # The next size that vLLM takes.
        "--max-lora-rank": next((rank for rank in RANKS if rank >= model.lora_rank), RANKS[-1]),
        "--max-loras": 1 + options.off_policy_steps,
        # vLLM's default on a large GPU is 1,024, for which it captures graphs and keeps memory.
        "--max-num-seqs": options.batch_size * (1 + options.off_policy_steps),
    }
    if sizes is not None:
        settings["--max-num-seqs"] = sizes.sequences
        settings["--gpu-memory-utilization"] = sizes.utilization
    if dtype != "float32":  # logits rounded to 16 bits differ from the trainer's
        settings["--hf-overrides"] = '{"head_dtype": "float32"}'
    if "," in gpus:
        settings["--tensor-parallel-size"] = len(gpus.split(","))
    if model.quantization == "nf4":  # in flight, vLLM's is nf4 with scales of 8 bits, as ours
        settings["--quantization"] = "bitsandbytes"
    command = [*start, *model_arguments]
    for flag, value in settings.items():
        command += [flag, str(value)]
    command.append("--enable-lora")
    if options.colocate:
        command.append("--enable-sleep-mode")
    return command + shlex.split(options.server_args)


def server_environment(options: cfg.RolloutConfig) -> dict[str, str]:
    """Return the environment variables of an owned server, besides this process's."""
    # Every user of this machine can reach the server, but only with a key load an adapter. Command
    # lines, unlike environments, are visible to all users.
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", API_KEY: secrets.token_urlsafe(32)}
    if options.colocate:
        # A sleeping server is woken through an endpoint that vLLM has in development mode only.
        variables["VLLM_SERVER_DEV_MODE"] = "1"
    return variables


def inherited_environment(command: Sequence[str]) -> dict[str, str]:
    """Return this process's environment for a server, without what is the trainer's alone."""
    kept = {k: v for k, v in os.environ.items() if not TRAINER_VARIABLES.fullmatch(k)}
    if os.sep in command[0]:  # vLLM looks for tools of its environment, such as ninja, there
        own = [str(Path(command[0]).parent), kept.get("PATH", os.defpath)]
        kept["PATH"] = os.pathsep.join(own)
    # ``python -m`` would import the server's modules from the working directory first.
    return kept | {"PYTHONSAFEPATH": "1"}


def gpu_environment(gpus: str) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES of an entry of ``rollout.server_gpus``; "" is this process's."""
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": "" if gpus == NO_GPU else gpus}
    return {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        # Another process may take it first; then the server ends, and its start is reported.
        return int(probe.getsockname()[1])


class OwnedProcess:
    """A child process with a log, which does not outlive this process."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],  # complete
        log: Path | None,  # its output is appended to it; None: it is shown as this process's own
        *,
        grace: float = GRACE_SECONDS,  # between SIGTERM and SIGKILL
    ) -> None:
        self.command, self.environment = list(command), dict(environment)
        self.log, self.is_shown, self.grace = log or Path(os.devnull), log is None, grace
        self.process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None  # its exit status, once it has ended

    def start(self) -> None:
        """Start it in a new session, so that Ctrl-C reaches this process only."""
        self.stop()
        # Isolated, and by its path: what lies in the working directory is not imported.
        watchdog = [sys.executable, "-I", str(WATCHDOG), str(os.getpid()), str(self.grace)]
        hint = "free some space, or choose another folder"
        with wrap_errors(self.log, PaintError, hint), self.log.open("ab") as log:
            log.write(f"\n$ {shlex.join(self.command)}\n".encode())
            log.flush()
            output = None if self.is_shown else log
            self.process = subprocess.Popen(
                [*watchdog, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def dead(self) -> bool:
        """Whether it has ended, or was never started."""
        if self.process is None:
            return True
        self.status = self.process.poll()
        return self.status is not None

    def tell(self, number: int) -> None:
        """Forward a signal; a second one ends the process at once."""
        if not self.dead:
            assert self.process is not None
            self.process.send_signal(number)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its log, without colors."""
        try:
            text = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return f"({reason(error)})"
        last = "\n".join(text.rstrip().splitlines()[-lines:])
        return sanitize_for_terminal(_COLOUR.sub("", last))

    def stop(self) -> None:
        """Stop it and all its children, and wait for their end."""
        if self.process is None:
            return

        for _ in range(2):  # the second time, the watchdog waits no longer
            if self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=STOP_SECONDS)
        with suppress(ProcessLookupError):  # the group is gone, as it should be
            os.killpg(self.process.pid, signal.SIGKILL)
        self.status = self.process.wait()
        self.process = None
