"""What a rented machine without a network shall show: packed here, done there by importance.

    python benchmarks/rented.py pack --model FOLDER --data FOLDER     here
    python3 call-00/rented.py run --minutes N --out FOLDER            there

``pack`` writes a folder for each call to the machine, runs/rented/call-00 and so on, each smaller
than a call may be: this script, the manifest with digests, and a piece. The first pieces hold the
wheels that the machine lacks, the code and the rows, the others the model.

1. Send nothing before everything is packed and all commands are written down: a machine that waits
   for a call goes back, with all that was sent to it. The calls follow without a pause.
2. call-00, with a command that measures generation while the model travels:
   ``setsid python3 call-00/rented.py run --parts decode --minutes 4 > decode.txt 2>&1 &``
3. call-01 and so on, one call each, in any order, with the command ``true``.
4. With the last of them: ``python3 call-00/rented.py run --minutes 9.5 --out $OUT``. It waits for
   what runs, goes on with what was not tried, and ends 30 s before its time.
5. While there is time: the same again, with --minutes for what is left. A part that --parts names
   is tried again; trainings continue where they were.

Every figure is printed and appended to figures.txt the moment it exists; details.jsonl has all
digits, and the verdict on each test problem. A part that fails or is stopped costs what it had not
measured yet. A part whose pieces are missing waits behind the others. ``run --rehearse`` makes
everything tiny, for a machine without a GPU.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

LACKED = (
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "dill",
    "multiprocess",
    "filelock",
    "docstring-parser",
    "httpx2",
    "httpcore2",
    "truststore",
    "tenacity",
    "tyro",
    "typeguard",
    "trl",
    "liger-kernel",
)
"""Packages that a machine with PyTorch has not, or has in a version other than the tested one."""
INSTALL = "python3 -m pip install --quiet --no-index --no-deps --no-compile --target site"
CODE = ("src", "packages", "benchmarks", "examples", "pyproject.toml")
ROWS = ("gsm8k_train", "gsm8k_test", "math500", "mbpp_train", "mbpp_test", "humaneval")
"""Files of rows that examples/qwen/run.py reads."""

SPARE = 30.0
"""Seconds that are left at the end, in which results are copied."""
FEWEST = 10.0
"""Seconds below which no part is started."""
SHOWN = 11_000
"""Characters of figures.txt that are printed at the end: a call shows the end of its output."""

ARMS = (
    "paint-bounded",
    "opsd-bounded",
    "paint-bounded-x3",
    "opsd-bounded-x3",
    "paint",
    "paint-without-clip",
    "paint-other-bounded",
    "sft",
    "grpo",
)
"""Runs of examples/qwen/run.py by importance; -x3 has three times the rate, paint the paper's
pointwise clip."""
RATE = "1.5e-5"  # with which the pointwise clip collapsed on an H200
STEPS = (1, 2, 5, 10, 20, 30, 40)
"""Steps of a training whose metrics are figures."""
METRICS = ("loss", "kl", "clip_frac", "student_entropy", "accuracy")


# --- packing --------------------------------------------------------------------------------------


class Pieces:
    """A file that is written as pieces of at most ``size`` bytes, each in the folder of a call."""

    def __init__(self, folder: Path, first: int, size: int) -> None:
        self.folder, self.number, self.size = folder, first, size
        self.buffer = bytearray()
        self.written: list[dict[str, Any]] = []

    def write(self, data: bytes) -> int:
        self.buffer += data
        while len(self.buffer) >= self.size:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write what there is of a piece, if anything."""
        data = bytes(self.buffer[: self.size])
        if not data:
            return
        del self.buffer[: self.size]
        name = f"call-{self.number:02}/piece"
        (self.folder / name).parent.mkdir()
        (self.folder / name).write_bytes(data)
        self.written.append({"name": name, "sha256": hashlib.sha256(data).hexdigest()})
        self.number += 1


def pack(
    folder: Path, model: Path, data: Path, wheels: Path, piece_mib: float, build: str = ""
) -> list[Path]:
    """Write the folders of all calls, and return them.

    ``build`` is a command that makes the folder ``model`` there from the folder ``parts`` beside
    it, which then has the content of ``model``. Without it, that is the model itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("call-*"):
        shutil.rmtree(old)
    root = Path(__file__).resolve().parents[1]
    base = [(root / name, f"code/{name}") for name in git(root, "ls-files", *CODE)]
    base += [(data / f"{name}.jsonl", f"data/{name}.jsonl") for name in ROWS]
    base += [(path, f"wheels/{path.name}") for path in sorted(wheels.glob("*.whl"))]
    where = "parts" if build else "model"
    weights = [(path, f"{where}/{path.name}") for path in sorted(model.iterdir()) if path.is_file()]
    if missing := [str(path) for path, _ in base + weights if not path.exists()]:
        sys.exit(f"missing: {', '.join(missing)}")
    groups: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for group, files, mode in (("base", base, "w|gz"), ("model", weights, "w|")):
        pieces = Pieces(folder, number, int(piece_mib * 2**20))
        # Files of a hub's cache are links.
        with tarfile.open(fileobj=pieces, mode=mode, dereference=True) as archive:  # type: ignore[call-overload]
            for path, name in files:
                archive.add(path, name)
        pieces.flush()
        groups[group], number = pieces.written, pieces.number
    # Together, which is fast; one by one where the machine refuses one of them.
    install = f"{INSTALL} wheels/*.whl || for one in wheels/*.whl; do {INSTALL} $one; done"
    install = install if [*wheels.glob("*.whl")] else "true"
    [commit] = git(root, "describe", "--always", "--dirty", "--abbrev=12")
    commands = {"base": install, "model": build or "true"}
    manifest = json.dumps({"commit": commit, "commands": commands, "groups": groups}, indent=1)
    calls = sorted(folder.glob("call-*"))
    for call in calls:
        (call / "manifest.json").write_text(manifest)
        shutil.copy(__file__, call / "rented.py")
    return calls


def git(root: Path, *arguments: str) -> list[str]:
    """The lines that a command of git writes."""
    return subprocess.check_output(["git", "-C", str(root), *arguments], text=True).splitlines()


def download(names: Sequence[str], folder: Path) -> None:
    """Download wheels for Python 3.12 on Linux, in the versions that are installed here."""
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["pip"]
    command = [*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--dest", str(folder)]
    for platform in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        command += ["--platform", f"{platform}_x86_64"]
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    subprocess.run([*command, *versions], check=True)


# --- what arrived ---------------------------------------------------------------------------------


class Arrived:
    """The pieces in the folders of calls, and what was unpacked of them into ``work``."""

    def __init__(self, calls: Path, work: Path) -> None:
        self.calls, self.work = calls, work
        found = [path.read_text() for path in calls.glob("call-*/manifest.json")]
        if not found:
            sys.exit(f"{calls} has no call-*/manifest.json: nothing has arrived")
        # A folder of an earlier pack may lie there, too: its piece then counts as damaged.
        self.manifest = json.loads(Counter(found).most_common(1)[0][0])

    def unpack(self, group: str, seconds: float, say: Callable[[str], None]) -> list[str]:
        """Unpack a group if it is there; return what is missing or damaged, [] for nothing.

        What its command says against it is told, and the parts may try.
        """
        done, joined = self.work / f"{group}.unpacked", self.work / f"{group}.tar"
        if done.exists():
            return []
        pieces = self.manifest["groups"][group]
        names = [piece["name"] for piece in pieces]
        if missing := [name for name in names if not (self.calls / name).exists()]:
            return [f"{name} is missing" for name in missing]
        with joined.open("wb") as out:
            for piece in pieces:
                data = (self.calls / piece["name"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != piece["sha256"]:
                    return [f"{piece['name']} is damaged"]
                out.write(data)
        with tarfile.open(joined) as archive:
            archive.extractall(self.work, filter="data")
        joined.unlink()
        command, env = self.manifest["commands"][group], environment(self.work)
        try:
            subprocess.run(
                ["sh", "-c", command], cwd=self.work, env=env, timeout=seconds, check=True
            )
        except subprocess.SubprocessError as error:
            say(f"unpacking {group}: {error}"[:300])
        done.touch()
        return []


def environment(work: Path) -> dict[str, str]:
    """The packages and the code that were unpacked, and no network."""
    code = work / "code"
    paths = [work / "site", code / "src", code / "benchmarks", *code.glob("packages/*/src")]
    found = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": found, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the work, in a process of its own.

    Attributes:
        name: of the part.
        seconds: after which it is ended.
        needs: groups of pieces.
        command: to which the order is added as the last argument; (): this script.
    """

    name: str
    seconds: float
    needs: tuple[str, ...] = ("base",)
    command: tuple[str, ...] = ()


PARTS = (
    Part("decode", 75),
    Part("gsm8k", 400, ("base", "model")),
    Part("peers", 200),
    Part("long", 65),
    Part("seeds", 600, ("base", "model")),
)
"""By importance: the last ones may get no time."""


@dataclass
class Report:
    """figures.txt and details.jsonl, which are copied to ``out`` with every line."""

    work: Path
    out: Path | None
    began: float = field(default_factory=time.monotonic)

    def line(self, text: str, **details: Any) -> None:
        """Print a line, append it to figures.txt, and its details to details.jsonl."""
        seconds = time.monotonic() - self.began
        row = json.dumps({"seconds": round(seconds, 1), **(details or {"line": text})})
        if text:
            text = f"{seconds:4.0f} s  {text[:400]}"
            print(text, flush=True)
        for name, added in (("figures.txt", text), ("details.jsonl", row)):
            with (self.work / name).open("a") as file:
                file.write(f"{added}\n" if added else "")
            if self.out:
                shutil.copyfile(self.work / name, self.out / name)

    def figure(self, part: str, cells: Mapping[str, Any]) -> None:
        """A line of the cells, but for those whose name begins with _, which are details."""
        shown = []
        for name, cell in cells.items():
            if not name.startswith("_"):
                shown.append(f"{name} {cell:.4g}" if isinstance(cell, float) else f"{name} {cell}")
        text = f"{part}: {', '.join(shown)}"[:400]
        path = self.work / "figures.txt"
        # A part that continues tells again what it had told.
        if path.exists() and f"s  {text}\n" in path.read_text():
            return
        self.line(text if shown else "", part=part, **cells)


def run(
    calls: Path,
    work: Path,
    out: Path | None,
    minutes: float,
    names: Sequence[str] = (),
    rehearse: bool = False,
    parts: Sequence[Part] = PARTS,
) -> None:
    """Do the parts that are named, or those that were not tried yet, until the time is over."""
    for folder in (work, work / "tried", *([out] if out else [])):
        folder.mkdir(parents=True, exist_ok=True)
    report, arrived = Report(work, out), Arrived(calls, work)
    ends = report.began + 60 * minutes - SPARE

    def left() -> float:
        return ends - time.monotonic()

    def faults(part: Part) -> list[str]:
        seconds = max(left(), 1)
        return [f for group in part.needs for f in arrived.unpack(group, seconds, report.line)]

    with (work / ".lock").open("w") as lock:
        wait_for_others(lock, left)
        report.line(f"commit {arrived.manifest['commit']}, {minutes:g} minutes, {gpu_name()}")
        wanted = [part for part in parts if part.name in names]
        if not names:
            wanted = [part for part in parts if not (work / "tried" / part.name).exists()]
        while left() >= FEWEST:
            ready = next((part for part in wanted if not faults(part)), None)
            if ready is None or left() < FEWEST:
                break
            wanted.remove(ready)
            (work / "tried" / ready.name).touch()
            run_part(ready, min(ready.seconds, left()), rehearse, report)
        for part in wanted:
            reason = "; ".join(faults(part)) if left() >= FEWEST else "no time was left"
            report.line(f"{part.name}: not run: {reason}")
        report.line("end")
    print((work / "figures.txt").read_text()[-SHOWN:], flush=True)


def wait_for_others(lock: TextIO, left: Callable[[], float]) -> None:
    """Wait until no other call works in the folder, as long as there is time."""
    while left() >= FEWEST:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.2)


def gpu_name() -> str:
    """The GPU, its driver, and how much of its memory is in use."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, text=True, timeout=20).strip()
    return "no GPU"


def run_part(part: Part, limit: float, rehearse: bool, report: Report) -> None:
    """Run a part until its limit, write its figures as they come, and say how it ended."""
    work, began = report.work, time.monotonic()
    script = str(work / "code" / "benchmarks" / "rented.py")
    order = {"work": str(work), "ends": time.time() + limit, "rehearse": rehearse}
    command = [*(part.command or (sys.executable, script, "part", part.name)), json.dumps(order)]
    last = "without a word"

    def read(output: Any) -> None:
        nonlocal last
        with output, (work / f"{part.name}.log").open("a", buffering=1) as log:
            for line in output:
                log.write(line)
                if line.startswith("figure "):
                    with suppress(ValueError):  # a line that a kill cut short
                        report.figure(part.name, json.loads(line.removeprefix("figure ")))
                elif line.strip():
                    last = line.strip()[:200]

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(work),
        start_new_session=True,
    )
    # A process that has left the group may hold the pipe open: the reader is not waited for.
    reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        code = process.wait(limit)
        status = "done"
    except subprocess.TimeoutExpired:
        code, status = 0, "stopped"
    end(process)
    reader.join(2)
    status = f"failed with {code} ({last})" if code else status
    report.line(f"{part.name}: {status} after {time.monotonic() - began:.0f} s")


def end(process: "subprocess.Popen[str]") -> None:
    """End a process and all that it has started. Trainings save what they have when asked to."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 0)):
        until = time.monotonic() + patience
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
    process.wait()


# --- the parts, each in its own process -----------------------------------------------------------


def say(**cells: Any) -> None:
    """Hand a figure over to the runner."""
    print("figure", json.dumps(cells, default=str), flush=True)


def gpu_part(name: str, order: dict[str, Any]) -> None:
    """A part of benchmarks/gpu.py."""
    import gpu

    def told(table: str = "", **cells: Any) -> None:
        say(**cells)

    scale = gpu.REHEARSAL if order["rehearse"] else gpu.FULL
    place = gpu.Place(Path(order["work"]), order["ends"], "")
    gpu.PARTS[name].run(scale, gpu.once(told), place)


def gsm8k(order: dict[str, Any], seeds: int = 1) -> None:
    """The trainings of examples/qwen/run.py and their answers, several processes at once."""
    work, said = Path(order["work"]), set()
    folder, tiny = work / "qwen", order["rehearse"]
    command = [sys.executable, "run.py", "--parts", "gsm8k", "--methods", *ARMS]
    command += ["--model", str(work / "model"), "--data", str(work / "data")]
    command += ["--seeds", str(seeds), "--steps", "40", "--wording", "explain", "--rate", RATE]
    command += ["--processes", "1" if tiny else "5", "--folder", str(folder)]
    command += ["--rehearse"] if tiny else []
    # Processes share a GPU well by MPS, where that is installed; other parts do not use it.
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(work), "CUDA_MPS_LOG_DIRECTORY": str(work)}
    env = {**os.environ, **mps}
    subprocess.run(["sh", "-c", "nvidia-cuda-mps-control -d"], env=env, timeout=20, check=False)
    process = subprocess.Popen(command, cwd=work / "code" / "examples" / "qwen", env=env)
    has_ended = False
    while not has_ended:
        time.sleep(1)
        has_ended = process.poll() is not None
        for name, cells in new_figures(folder):
            if name not in said:
                said.add(name)
                say(**cells)
    sys.exit(process.returncode)


def new_figures(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What trainings and evaluations have written so far, each with a name."""
    for path in sorted(folder.glob("gsm8k/*/seed-*/metrics.jsonl")):
        arm = f"{path.parts[-3]} {path.parts[-2]}"
        for row in whole_rows(path):
            cells = {name: row[name] for name in METRICS if name in row}
            if row["step"] in STEPS:
                yield f"{arm} {row['step']}", {"run": arm, "step": row["step"], **cells}
    for row in whole_rows(folder / "gsm8k" / "results.jsonl"):
        arm, right = f"{row['run']} seed-{row['seed']}", row["right"]
        cells = {"run": arm, "right": sum(right), "of": len(right)}
        cells |= {"percent": 100 * sum(right) / len(right), "tokens": row["answer_tokens"]}
        yield arm, {**cells, "seconds": row["seconds"], "_right": "".join(map(str, right))}
    for path in sorted(folder.glob("tasks/*.failed")):
        yield path.name, {"failed": path.stem, "error": path.read_text().strip().splitlines()[-1]}


def whole_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that another process appends to, but for the one that it is writing."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


WORK: dict[str, Callable[[dict[str, Any]], None]] = {
    **{name: partial(gpu_part, name) for name in ("decode", "peers", "long")},
    "gsm8k": gsm8k,
    "seeds": partial(gsm8k, seeds=3),
}


def main() -> None:
    """Pack, or run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("pack", help="write the folders of all calls").add_argument
    add("--model", type=Path, required=True, help="folder of the model")
    add("--data", type=Path, required=True, help=f"folder of {', '.join(ROWS)}, each .jsonl")
    add("--folder", type=Path, default=Path("runs/rented"), help="where the calls are written")
    add("--wheels", type=Path, default=Path("runs/wheels"), help="downloaded where it is missing")
    add("--more", nargs="*", default=[], help="further packages to download")
    add("--piece-mib", type=float, default=48.0, help="most MiB of a piece")
    add("--build", default="", help="command that makes the folder model there, from parts")
    add = commands.add_parser("run", help="do the work").add_argument
    add(
        "--calls",
        type=Path,
        default=Path(__file__).resolve().parents[1],
        help="where the calls arrived",
    )
    add("--work", type=Path, default=Path(tempfile.gettempdir()) / "rented", help="all else")
    add("--out", type=Path, help="folder for a copy of figures.txt and details.jsonl")
    add("--minutes", type=float, required=True, help="of this call")
    add("--parts", nargs="*", choices=list(WORK), default=[], help="these alone")
    add("--rehearse", action="store_true", help="everything tiny")
    given = parser.parse_args()
    if given.command == "run":
        run(given.calls, given.work, given.out, given.minutes, given.parts, given.rehearse)
        return
    if not given.wheels.exists():
        download([*LACKED, *given.more], given.wheels)
    for call in pack(
        given.folder, given.model, given.data, given.wheels, given.piece_mib, given.build
    ):
        print(f"{call}: {sum(path.stat().st_size for path in call.iterdir()) / 2**20:.1f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:
        WORK[sys.argv[2]](json.loads(sys.argv[3]))
    else:
        main()
