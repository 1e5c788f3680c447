"""Stored engine: completions that a run, an evaluation or a file already holds; none is generated.

A prompt gets the completion that was stored for the same prompt and seed, if there is one.
Otherwise its seed chooses among those of the prompt, and the rows of a problem in a step get
different ones as long as there are any. Token ids are used as they are stored, and texts are
tokenized once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paint.config.run_folder import read_run, step_of, step_paths
from paint.core.distributed import all_gather_slice
from paint.core.errors import wrap_errors
from paint.core.storage import SUMS, read_jsonl, verify_checksums
from paint.data.chats import is_chat, read_conversation_messages
from paint.data.problems import DataError, Problem
from paint.inference.conversations import written_conversation
from paint.inference.engine import (
    LOG_PROB_ROUNDING,
    STORED,
    Completion,
    Engine,
    EngineError,
    OnCompletion,
    Prompts,
    Sampling,
    TeacherTop,
    completion_fault,
    row_seed,
)
from paint.inference.factory import EngineSetup
from paint.inference.rollouts import read_conversation
from paint.models.policy import Policy, PolicyError

HINT = "name a run, an evaluation of one policy on one benchmark, or a JSONL file"
MOST_NAMED = 5


@dataclass(frozen=True)
class StoredRow:
    place: str
    values: dict[str, Any]  # completion_ids or text, and further columns where known
    seed: int | None = None  # that it was sampled with; None if unknown


Prompt = tuple[int, ...]
Stored = tuple[int | None, Completion]
"""A completion, with the seed that it was sampled with, if that is known."""


class StoredEngine(Engine):
    """Returns stored completions, of the prompts of ``by_prompt``."""

    def __init__(self, by_prompt: Mapping[Prompt, Sequence[Stored]]) -> None:
        self.by_prompt = by_prompt

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "StoredEngine":
        """Find the completions of all problems of the setup; refuse those of other prompts."""
        policy, source = setup.policy, Path(setup.rollout.stored)
        by_key: dict[str, list[StoredRow]] = {}
        for problem in setup.problems:
            by_key[problem.problem] = []
            by_key[problem.id] = []
        for row in stored_rows(source):
            key = row.values.get("problem") or row.values.get("problem_id")
            if not isinstance(key, str):
                raise DataError(f'{row.place} has no text in "problem" or "problem_id"; add one')
            if key not in by_key:  # of a conversation that its environment began otherwise
                key = row.values.get("problem_id")
            if key in by_key:
                by_key[key].append(row)
        by_prompt: dict[Prompt, list[Stored]] = {}
        missing, used = [], []
        for problem in setup.problems:
            prompt = policy.student_prompt(problem)
            stored: list[Stored] = []
            by_prompt[tuple(prompt)] = stored
            rows = by_key[problem.problem] or by_key[problem.id]
            if not rows:
                missing.append(problem.id)
            for row in rows:
                limit = setup.rollout.max_new_tokens
                completion = _completion(policy, row, problem, prompt, limit)
                _require_room(completion, row, problem, setup.max_tokens)
                stored.append((row.seed, completion))
                used.append(row.values)
        if missing:
            raise DataError(
                f"{source} holds no rollout of {len(missing)} of the {len(by_prompt)} problems "
                f"that this run draws: {', '.join(missing[:MOST_NAMED])}; lower train.steps or "
                f"data.limit, use the data and the seed that the rollouts were made with, or "
                f"generate more"
            )
        texts = sum("completion_ids" not in values for values in used)
        unknown = sum(not values.get("engine_log_probs") for values in used)
        setup.display.note(
            f"engine: {len(used)} stored rollouts of {len(by_prompt)} problems, from {source}"
            + (f"; {texts} are texts, which were tokenized again" if texts else "")
            + (f"; {unknown} have no log-probs, and off_policy_* are without" if unknown else "")
            + _describe_teacher([c for rows in by_prompt.values() for _, c in rows], source)
        )
        return cls(by_prompt)

    def sync_weights(self) -> None:
        """Do nothing: the completions are there."""

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        # The rows of a problem may lie on several ranks, and get different completions.
        rows, mine = all_gather_slice(list(zip(map(tuple, prompts), seeds, strict=True)))
        places: dict[Prompt, int] = {}
        chosen = []
        for prompt, seed in rows:
            stored = self.by_prompt[prompt]
            places[prompt] = places.get(prompt, seed - 1) + 1
            same_seed = [completion for known, completion in stored if known == seed]
            chosen.append(same_seed[0] if same_seed else stored[places[prompt] % len(stored)][1])
        for index, completion in enumerate(chosen[mine]):
            finished(index, completion)


def stored_rows(source: Path) -> Iterator[StoredRow]:
    """Iterate over the rollouts of a run, the samples of an evaluation or the rows of a file."""
    if (source / "run.json").exists():
        seed = read_run(source).train.seed
        for path in step_paths(source / "rollouts", ".jsonl"):
            for row, values in enumerate(read_jsonl(path, HINT)):
                # Files count steps from 1, seeds from 0.
                sampled_with = row_seed(seed, step_of(path) - 1, row)
                yield StoredRow(f"{path} line {row + 1}", values, sampled_with)
    elif (source / "completions.jsonl").exists():
        if (source / SUMS).exists():
            verify_checksums(source, HINT)
        texts = {row["id"]: row["problem"] for row in read_jsonl(source / "problems.jsonl", HINT)}
        path = source / "completions.jsonl"
        for number, sample in enumerate(read_jsonl(path, HINT), start=1):
            problem = texts[sample["problem_id"]]
            yield StoredRow(f"{path} line {number}", {**sample, "problem": problem})
    elif source.is_file():
        for number, values in enumerate(read_jsonl(source, HINT), start=1):
            yield StoredRow(f"{source} row {number}", values)
    else:
        raise EngineError(f"rollout.stored is {source}, which holds no rollouts; {HINT}")


@contextmanager
def _of_row(row: StoredRow) -> Iterator[None]:
    try:
        with wrap_errors(row.place, DataError, "correct the row, or leave it out"):
            yield
    except PolicyError as error:  # such as text that the chat format takes for control
        raise DataError(f"{row.place}: {error}") from None


def _completion(
    policy: Policy, row: StoredRow, problem: Problem, prompt: list[int], limit: int
) -> Completion:
    values = row.values
    record = values.get("conversation")
    with _of_row(row):
        conversation = read_conversation(record, problem) if record else None
    if conversation and conversation.problem is not problem:  # its environment began it otherwise
        prompt = policy.student_prompt(conversation.problem)
    if values.get("prompt_ids", prompt) != prompt:
        raise DataError(
            f"{row.place}: the completion of problem {problem.name} follows another prompt than "
            f"the student's; use the model, the wording and the thinking mode that it was sampled "
            f"with (model.student_thinking)"
        )

    truncated, vocabulary = bool(values.get("truncated")), policy.lm_head.out_features
    with _of_row(row):
        if "messages" in values:
            return _written(policy, problem, values["messages"])
        if "completion_ids" in values:
            ids = tuple(values["completion_ids"])
        elif isinstance(values.get("text"), str):
            ids = _tokens(policy, values["text"], prompt, truncated)
        else:
            raise ValueError('it has no "completion_ids" and no text in "text"')
        log_probs = tuple(values.get("engine_log_probs") or ())
        teacher = _teacher_top(values, len(ids), vocabulary)
        completion = Completion(ids, log_probs, truncated, STORED, conversation, teacher)
        if conversation:
            limit *= len(conversation.turns)
        fault = completion_fault(completion, vocabulary)
        if not fault and len(ids) > limit:
            fault = f"has {len(ids)} tokens, and rollout.max_new_tokens is {limit}"
        if fault:
            raise ValueError(f"the completion of problem {problem.name} {fault}")
    return completion


def _require_room(completion: Completion, row: StoredRow, problem: Problem, limit: int) -> None:
    turns = completion.conversation.turns if completion.conversation else ()
    longest = max((len(turn.prompt) + turn.length for turn in turns), default=0)
    if longest > limit:
        raise DataError(
            f"{row.place}: a turn of problem {problem.name} has {longest:,} tokens with its "
            f"prompt, over {limit:,} (data.max_prompt_tokens and rollout.max_new_tokens together); "
            f"raise one of them, or leave the row out"
        )


def _teacher_top(values: Mapping[str, Any], tokens: int, vocabulary: int) -> TeacherTop | None:
    """Return what a row holds of a teacher, if anything. Raises ValueError for no distribution."""
    given = [values.get("teacher_ids"), values.get("teacher_log_probs")]
    if given == [None, None]:
        return None
    ids, log_probs = map(np.array, given)  # raises ValueError for lists of several lengths
    if ids.ndim != 2 or len(ids) != tokens or ids.size == 0 or log_probs.shape != ids.shape:
        raise ValueError(
            f"teacher_ids and teacher_log_probs must hold a list for each of {tokens} tokens, all "
            f"of one length"
        )
    is_repeated = (np.diff(np.sort(ids)) == 0).any() if ids.dtype.kind == "i" else True
    if is_repeated or not 0 <= ids.min() <= ids.max() < vocabulary:
        raise ValueError(f"teacher_ids must be distinct token ids in [0, {vocabulary:,})")
    if not (np.exp(log_probs.astype(float)).sum(axis=1) <= math.exp(LOG_PROB_ROUNDING)).all():
        raise ValueError("teacher_log_probs must be log-probs whose probabilities sum to 1 at most")
    temperature = values.get("teacher_temperature", 1.0)
    if type(temperature) not in (int, float) or not 0 < temperature < math.inf:
        raise ValueError(f"teacher_temperature must be above 0, got {temperature!r}")
    return TeacherTop(ids.astype(np.int32), log_probs.astype(np.float32), float(temperature))


def _describe_teacher(completions: Sequence[Completion], source: Path) -> str:
    """Return a clause on what is stored of a teacher. Raises DataError for several k."""
    tops = [completion.teacher_top for completion in completions]
    sizes = {0 if top is None else top.ids.shape[1] for top in tops}
    if len(sizes) > 1:
        found = ", ".join(map(str, sorted(sizes)))
        raise DataError(
            f"{source}: its rollouts have different numbers of a teacher's entries at a token "
            f"({found}); score all of them with one k"
        )
    return f"; with {max(sizes)} entries of a teacher at each token" if any(sizes) else ""


def _written(policy: Policy, problem: Problem, messages: Any) -> Completion:
    """Return a row of messages as a conversation, without those before the first reply."""
    if not is_chat(messages) or messages[-1].get("role") != "assistant":
        raise ValueError("messages is no chat that ends with the assistant")
    first = [message.get("role") for message in messages].index("assistant")
    later = read_conversation_messages(messages[first:], "messages", first)
    return written_conversation(policy, problem, later, STORED)


def _tokens(policy: Policy, text: str, prompt: list[int], truncated: bool) -> tuple[int, ...]:
    # An evaluation's text begins with the tag that its prompt opened.
    ids = policy.solution_ids(text.removeprefix(policy.transcript(prompt, [])))
    # The end of the turn, which solution_ids appends, was never sampled.
    if truncated:
        ids = ids[: len(ids) - len(policy.solution_ids(""))]
    return tuple(ids)
