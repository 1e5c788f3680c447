"""A rollout: one completion of a problem, with all that is known of it.

Training, validation, evaluations and advice sample, grade and store rollouts; a page reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paint.data.contexts import Attempt
from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.inference.engine import Completion, Conversation, Turn, TurnPart


@dataclass(frozen=True)
class TeacherPrompt:
    context: str | None  # the (masked) reference in the prompt; None if there is none
    complete: bool  # whether the prompt announces the context as a complete solution
    prompt: list[int]  # token ids of the privileged prompt
    rationale: str | None = None  # the teacher's own text about the context, if it writes one
    refused_tokens: int = 0  # of a prompt over the limit, in whose place this one has no context
    later: tuple[list[int], ...] = ()  # prompts of a conversation's later turns, with all before
    shared: int = 0  # first tokens that the step's prompts have alike, and that are read once


@dataclass(frozen=True)
class Rollout:
    """A problem, one completion, and what a method computes from them."""

    row: int  # index in the minibatch; in a store, the number among its problem's samples
    problem: Problem
    prompt: list[int]  # token ids of the student's prompt
    completion: Completion
    text: str  # the decoded completion; in a store, what a grader reads (``transcript_of``)
    teacher_prompt: TeacherPrompt | None = None  # the teacher's prompt, in distillation
    metrics: Mapping[str, float] = field(default_factory=dict)  # overlap, mask_ratio, ...
    behavior_log_probs: tuple[float, ...] | None = None  # in nats; None: on-policy, (): unknown
    grade: Grade | None = None  # None before grading, and with grading.grader "none"
    # The loss's values at every token, by name; none before it, and if it is not learned from.
    tokens: dict[str, list[float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it among the samples of a store."""
        return self.problem.id, self.row

    @property
    def student_parts(self) -> list[TurnPart]:
        """What was sampled after each of the student's prompts: one, or one for each turn."""
        conversation = self.completion.conversation
        prompts = [t.prompt for t in conversation.turns] if conversation else [self.prompt]
        return self.completion.after(prompts)

    @property
    def teacher_parts(self) -> list[TurnPart]:
        """The same after the teacher's prompts; [] without a teacher."""
        view = self.teacher_prompt
        return self.completion.after([view.prompt, *view.later]) if view else []

    @property
    def attempt(self) -> Attempt:
        """What the teacher's context may depend on, without what other completions add."""
        return Attempt(self.text, self.grade, self.row, self.problem.id)

    @property
    def is_correct(self) -> bool:
        return self.grade is not None and self.grade.correct


def rollout_of(
    decode: Callable[[Sequence[int]], str],
    row: int,
    problem: Problem,
    prompt: list[int],
    completion: Completion,
    *,
    behavior_log_probs: tuple[float, ...] | None = None,
) -> Rollout:
    """Return the rollout of a completion; of a conversation with its environment's grade.

    The text of a conversation is that of all turns of the student. ``decode`` is the policy's.
    """
    rollout = Rollout(
        row,
        problem,
        prompt,
        completion,
        decode(completion.ids),
        behavior_log_probs=behavior_log_probs,
    )
    conversation = completion.conversation
    if conversation is None:
        return rollout
    texts = [decode(ids) for _, ids in rollout.student_parts]
    return replace(
        rollout,
        problem=conversation.problem,
        prompt=conversation.turns[0].prompt,
        text="\n\n".join(texts),
        metrics={
            "turns": len(conversation.turns),
            "tool_calls": conversation.calls,
            "tool_errors": conversation.failed_calls,
        },
        grade=conversation.grade,
    )


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as files hold it: what runs and evaluations have in common."""
    completion = rollout.completion
    row = {
        "problem_id": rollout.problem.id,
        "text": rollout.text,
        "truncated": completion.truncated,
        "source": completion.source,
        "prompt_ids": rollout.prompt,
        "completion_ids": completion.ids,
    }
    if completion.conversation is not None:
        row["conversation"] = conversation_record(completion.conversation)
    return row


def read_rollout(row: Mapping[str, Any], problem: Problem, place: int) -> Rollout:
    """Return the rollout of a row of a run or an evaluation, with its grade, if the row has one.

    Rows of an evaluation have that of an environment alone; the others are in grades.jsonl.
    Raises KeyError, TypeError or ValueError for a row that is none.
    """
    record = row.get("conversation")
    completion = Completion(
        tuple(row["completion_ids"]),
        tuple(row.get("engine_log_probs", ())),
        row["truncated"],
        row["source"],
        read_conversation(record, problem) if record else None,
    )
    grade = completion.conversation_grade
    if grade is None and "reason" in row:
        grade = Grade.stored(row, row["reward"], row.get("given_answer"))
    return Rollout(place, problem, row["prompt_ids"], completion, row["text"], grade=grade)


def conversation_record(conversation: Conversation) -> dict[str, Any]:
    """Return a conversation as files hold it, without its problem; see ``read_conversation``."""
    record: dict[str, Any] = {
        "turns": [asdict(turn) for turn in conversation.turns],
        "messages": list(conversation.messages),
        "ended": conversation.ended,
        "calls": conversation.calls,
        "failed_calls": conversation.failed_calls,
    }
    if conversation.problem.turns:  # its environment may have begun it
        record["opening"] = [list(turn) for turn in conversation.problem.turns]
    if conversation.grade is not None:
        record["grade"] = asdict(conversation.grade)
    return record


def read_conversation(record: Mapping[str, Any], problem: Problem) -> Conversation:
    """Read the conversation of ``conversation_record``. Raises as ``read_rollout``."""
    opening = tuple((role, text) for role, text in record.get("opening", ()))
    given = record.get("grade")
    if opening:
        problem = replace(problem, problem=opening[-1][1], turns=opening)
    return Conversation(
        tuple(Turn(**turn) for turn in record["turns"]),
        tuple(record["messages"]),
        record.get("ended", "end"),
        problem,
        Grade(**given) if given else None,
        record.get("calls", 0),
        record.get("failed_calls", 0),
    )
