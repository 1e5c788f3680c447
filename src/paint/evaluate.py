"""The stages of an evaluation: generate, grade, summarise. Each can be stopped and repeated by itself.

Generation is the slow one: every answer is stored as soon as it is there, and what is stored is not generated again.
Grading reads what is stored, so it can be repeated when a gold answer or the grader changes. Who is evaluated on what
is ``paint.contest`` and, in training, ``paint.validation``; the figures are ``paint.figures``.

Left out on purpose: figures of half-finished evaluations. Short answers come first, and are more often right.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paint.config import ConfigError
from paint.data import Problem
from paint.display import Display
from paint.figures import Answers
from paint.grading import Grade, Grader, Item
from paint.latex import normalize
from paint.policy import Policy
from paint.rollout import Completion, Engine, Sampling, seed_of
from paint.store import Answer, Store, StoreError, digest, find_stores, open_store, reopen_store, write
from paint.summary import markdown, print_sheets, sheets, summary_json

LOOP_TAIL, LOOP_WINDOW = 4_000, 40
GRADED_AT_ONCE = 256  # answers in memory
WEIGHTS_READ = 1_000  # numbers of each parameter, at least
READ_AT_ONCE = 2**24  # bytes of a file
PAPER_SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=38_912)


@dataclass(frozen=True)
class Protocol:
    """How answers are drawn; the defaults are the paper's (section 'Experimental Details').

    Attributes:
        shown: what the prompts show beside the problem, for the record; None is nothing, the deployment prompt.
    """

    samples: int = 12
    thinking: bool = True
    sampling: Sampling = PAPER_SAMPLING
    seed: int = 0
    shown: str | None = None


Prompts = Mapping[str, list[int]]
"""Token ids to be answered, by problem."""


def generate(
    policy: Policy,
    engine: Engine,
    store: Store,
    protocol: Protocol,
    display: Display,
    title: str = "answers",
    prompts: Prompts | None = None,
) -> None:
    """Stage 1: ask for every answer that is missing, and store each as soon as it is there.

    ``prompts`` are those that the store was opened with; by default the deployment prompts.
    """
    missing = store.missing
    prompts = prompts or deployment_prompts(policy, [problem for problem, _ in missing], protocol)
    with display.counting(title, len(store.rows), len(store.rows) - len(missing)) as count:

        def finished(number: int, completion: Completion) -> None:
            problem, sample = missing[number]
            store.add(answer_of(policy, problem.id, sample, prompts[problem.id], completion))
            count.add(len(completion.ids))

        engine.stream(
            [prompts[problem.id] for problem, _ in missing],
            protocol.sampling,
            [seed_of(protocol.seed, sample, problem.id) for problem, sample in missing],
            finished,
        )


def deployment_prompts(policy: Policy, problems: Sequence[Problem], protocol: Protocol) -> Prompts:
    """What the student reads, in the protocol's thinking mode."""
    return {p.id: policy.student_prompt(p.problem, thinking=protocol.thinking) for p in problems}


def answer_of(policy: Policy, problem: str, sample: int, prompt: Sequence[int], completion: Completion) -> Answer:
    """What is stored of a completion."""
    text = policy.transcript(prompt, completion.ids)
    return Answer(problem, sample, digest(prompt), text, len(completion.ids), completion.truncated, completion.source)


@dataclass(frozen=True)
class Graded:
    """What is counted of an answer; its text stays on disk."""

    grade: Grade
    tokens: int
    truncated: bool
    looping: bool


def grade(store: Store, grader: Grader, display: Display) -> Answers:
    """Stage 2: verdicts and votes of every stored answer, written to grades.jsonl.

    Raises:
        StoreError: answers are missing.
    """
    rows, k = [(problem.id, sample) for problem, sample in store.rows], store.asked["samples"]
    if store.missing:
        raise StoreError(
            f"{store.folder}: {len(store.missing)} of {len(rows)} answers are missing; the same `paint eval` "
            f"command goes on where it stopped"
        )
    golds = {problem.id: problem.answer for problem in store.problems}
    found: dict[tuple[str, int], Graded] = {}
    answers = store.answers()
    with display.counting(f"grading {store.folder.name}", len(rows), 0) as count:
        while chunk := list(islice(answers, GRADED_AT_ONCE)):
            grades = grader.grade([Item(a.text, golds[a.problem], a.truncated) for a in chunk])
            for a, verdicts in zip(chunk, grades, strict=True):
                found[a.problem, a.sample] = Graded(verdicts, a.tokens, a.truncated, loops(a.text))
            count.to(len(found))
    ordered = [found[row] for row in rows]
    votes = cast_votes([one.grade for one in ordered], k, grader)
    lines = [
        {"problem": problem, "sample": sample, **asdict(one.grade), "vote": vote, "looping": one.looping}
        for (problem, sample), one, vote in zip(rows, ordered, votes, strict=True)
    ]
    write(store.folder / "grades.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def table(values: Sequence[Any]) -> Any:
        return np.array(values).reshape(-1, k)

    return Answers(
        problems=[_identity(problem) for problem in store.problems],
        correct=table([one.grade.strict.correct for one in ordered]),
        lenient=table([one.grade.lenient.correct for one in ordered]),
        votes=table(votes),
        tokens=table([one.tokens for one in ordered]),
        truncated=table([one.truncated for one in ordered]),
        unboxed=table([one.grade.strict.answer is None for one in ordered]),
        looping=table([one.looping for one in ordered]),
    )


def summarise(stores: Sequence[Store], folder: Path, display: Display, *, deadline: float = 5.0) -> None:
    """Stage 3: grade what is stored, write summary.json and summary.md to ``folder``, and print them.

    Args:
        stores: the first one's policy is what the others are compared with.
        deadline: processor seconds that the comparison of two answers may take.

    Raises:
        StoreError: answers are missing, or two policies got different problems under one name.
    """
    policies = list(dict.fromkeys(store.folder.parent for store in stores))
    names = [path.name for path in policies]
    found: dict[str, dict[str, Answers]] = {}
    with Grader(deadline=deadline) as grader:
        for store in stores:
            policy = store.folder.parent
            name = policy.name if names.count(policy.name) == 1 else str(policy)
            found.setdefault(name, {})[store.folder.name] = grade(store, grader, display)
    write(folder / "summary.json", json.dumps(summary_json(found), indent=2) + "\n")
    tables = sheets(found)
    write(folder / "summary.md", markdown(tables))
    print_sheets(display.console, tables)
    display.note(f"written to {folder}: summary.json, summary.md")


def summarise_again(folders: Sequence[Path], out: Path, display: Display, *, deadline: float = 5.0) -> None:
    """The same for all that is stored in some folders.

    Raises:
        StoreError: a folder without an evaluation, or another process is at work there.
    """
    with ExitStack() as stack:
        stores = [stack.enter_context(reopen_store(path)) for path in stored_in(folders)]
        summarise(stores, out, display, deadline=deadline)


def stored_in(folders: Sequence[Path]) -> list[Path]:
    """The evaluations in some folders, at any depth, the base model's first.

    Raises:
        StoreError: a folder without one.
    """
    stores = []
    for folder in folders:
        found = find_stores(folder)
        if not found:
            raise StoreError(f"{folder} holds no evaluation; `paint eval` makes one")
        stores += sorted(found, key=lambda path: path.parent.name != "base")
    return list(dict.fromkeys(stores))


def cast_votes(grades: Sequence[Grade], k: int, grader: Grader) -> list[int]:
    """The vote of each answer: equal numbers are verified equal within a problem's k; -1 is no answer.

    Right answers are equal to each other, because each is equal to the gold answer. A wrong one votes with the first
    wrong one that it is verified equal to.
    """
    pairs = {
        (grades[i].strict.answer, grades[j].strict.answer)
        for start in range(0, len(grades), k)
        for j in range(start, start + k)
        for i in range(start, j)
        if not (grades[i].strict.correct or grades[j].strict.correct)
    }
    ordered = sorted((a, b) for a, b in pairs if a is not None and b is not None and normalize(a) != normalize(b))
    equal = {pair for pair, same in zip(ordered, grader.equal(ordered), strict=True) if same}
    votes: list[int] = []
    for start in range(0, len(grades), k):
        leaders: list[tuple[int, str]] = []
        for place, grade in enumerate(grades[start : start + k], start=1):
            answer = grade.strict.answer
            if answer is None:
                votes.append(-1)
            elif grade.strict.correct:
                votes.append(0)
            else:
                same = [n for n, a in leaders if normalize(a) == normalize(answer) or (a, answer) in equal]
                votes.append(same[0] if same else place)
                if not same:
                    leaders.append((place, answer))
    return votes


def loops(text: str) -> bool:
    """Whether a text repeats itself at its end: of the last 4,000 characters' runs of 40, less than half are different.

    Mathematics of real models has 0.9 and more; a paragraph said three times over has 0.33. (Ours.)
    """
    tail = text[-LOOP_TAIL:]
    runs = [tail[i : i + LOOP_WINDOW] for i in range(len(tail) - LOOP_WINDOW + 1)]
    return len(runs) >= 10 * LOOP_WINDOW and 2 * len(set(runs)) < len(runs)


def open_evaluation(
    policy: Policy,
    folder: Path,
    model: str,
    trained: Path | None,
    problems: Sequence[Problem],
    protocol: Protocol,
    engine: str,
    prompts: Prompts | None = None,
) -> AbstractContextManager[Store]:
    """The store of one policy's answers to these problems: what an earlier, interrupted call left counts.

    Args:
        model, trained: what the policy is, for the record: the base model, and the folder of an adapter or, where every
            weight was trained, of a model. Both are known by their weights, not by their path.
        engine: kind of the engine (local, vllm, merged): their answers to one seed may differ.
        prompts: what is answered, and what ``protocol.shown`` names; by default the deployment prompts.

    Raises:
        StoreError: the folder holds an evaluation in another setting.
    """
    asked = {
        "model": model,
        "weights": _files_digest(trained) if trained and policy.tuning == "full" else _weights_digest(policy),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "adapter": _files_digest(trained) if trained and policy.tuning == "lora" else None,
        "end_ids": policy.end_ids,
        "thinking": protocol.thinking,
        "shown": protocol.shown,
        **asdict(protocol.sampling),
        "seed": protocol.seed,
        "engine": engine,
        "samples": protocol.samples,
        "versions": {name: version(name) for name in ("paint", "torch", "transformers", "math-verify")},
    }
    prompts = prompts or deployment_prompts(policy, problems, protocol)
    return open_store(folder, asked, problems, [prompts[problem.id] for problem in problems])


def require_room(policy: Policy, problems: Sequence[Problem], protocol: Protocol) -> int:
    """The length of the longest prompt, in tokens.

    Raises:
        ConfigError: prompt and answer do not fit in the model's positions; nothing is ever cut.
    """
    longest = max(len(policy.student_prompt(p.problem, thinking=protocol.thinking)) for p in problems)
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    if positions is not None and longest + protocol.sampling.max_new_tokens > positions:
        raise ConfigError(
            f"a prompt of {longest} tokens and max_new_tokens {protocol.sampling.max_new_tokens} do not fit in the "
            f"model's {positions} positions; max_new_tokens can be at most {positions - longest}"
        )
    return longest


def _identity(problem: Problem) -> str:
    """What tells a problem of an evaluation set from another: its name, its text, its gold answer."""
    return hashlib.sha256(
        "\0".join((problem.id, problem.problem, problem.answer)).encode("utf-8", "replace")
    ).hexdigest()


def _weights_digest(policy: Policy) -> str:
    """What tells the base model from others under its path: some numbers of every parameter."""
    found = hashlib.sha256()
    for name, value in policy.base.named_parameters():
        if "lora_" not in name:
            flat = value.detach().flatten()
            sample = flat[:: max(1, len(flat) // WEIGHTS_READ)].cpu().contiguous().view(torch.uint8)
            found.update(name.replace(".base_layer", "").encode() + sample.numpy().tobytes())
    return found.hexdigest()[:16]


def _files_digest(folder: Path) -> str:
    """What tells an adapter or a model from another: its weights, and an adapter's shape."""
    found = hashlib.sha256()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise StoreError(f"{folder} holds no weights (no *.safetensors)")
    for path in (*weights, *folder.glob("adapter_config.json")):
        try:
            with path.open("rb") as file:
                while part := file.read(READ_AT_ONCE):
                    found.update(part)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    return found.hexdigest()[:16]
