"""Processes in tests: the training command, waiting for a condition, liveness."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paint.config.recipe import to_table
from paint.config.schema import Config
from paint.inference.vllm.process import free_port

TESTS = Path(__file__).parent
MODULES = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
# A server is not given the trainer's PYTHONPATH.
MODEL_SERVER = f"env PYTHONPATH={MODULES} {sys.executable} -P {TESTS / 'model_server.py'}"


def write_recipe(path: Path, config: Config) -> str:
    """Write a config as TOML; return the path as the command line takes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for section, values in to_table(config).items():
        lines += [f"[{section}]"]
        given = {key: value for key, value in values.items() if value is not None}
        lines += [f"{key} = {_toml(value)}" for key, value in given.items()]
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


def _toml(value: Any) -> str:
    if isinstance(value, dict):  # options of an extension
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def train_command(config: Config, folder: Path) -> list[str]:
    """The command line that trains ``config``, which is written to a recipe beside the run."""
    recipe = write_recipe(folder.with_suffix(".toml"), config)
    flags = ["--log.folder", str(folder.parent), "--log.name", folder.name]
    return [sys.executable, "-m", "paint.cli", "train", recipe, *flags]


def started(line: list[str], **variables: str) -> "subprocess.Popen[str]":
    """A command whose output is read."""
    pipe, env = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(line, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env)


def on_full_disk(line: list[str], kilobytes: int) -> "subprocess.CompletedProcess[str]":
    """A command whose files cannot grow further: a write fails as on a full disk."""
    # Bytecode, too, would be cut short, and break every process that imports it later.
    shell = f'export PYTHONDONTWRITEBYTECODE=1; ulimit -f {kilobytes}; exec "$@"'
    return subprocess.run(["bash", "-c", shell, "paint", *line], capture_output=True, text=True)


def in_two_processes(line: list[str]) -> list[str]:
    """The same command on two ranks."""
    # ``accelerate launch --cpu --num_processes 2`` starts one process, and says nothing.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--master-port", str(free_port())]
    return ["env", "ACCELERATE_USE_CPU=true", *launch, *line[1:]]


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for something to become true, and return it."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    children = [child for child, parent in parents.items() if parent == pid]
    return children + [below for child in children for below in descendants(child)]


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
