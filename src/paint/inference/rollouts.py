"""A rollout: one completion of a problem, with all that is known of it.

Training, validation, evaluations and advice sample, grade and store rollouts; a page reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from paint.data.contexts import Attempt
from paint.data.problems import Problem, row_of
from paint.grading.contract import Grade, Grader, Item
from paint.grading.graders import grade_items
from paint.inference.engine import Completion, Conversation, Turn, TurnPart
from strictgrade.thoughts import ThoughtTags

if TYPE_CHECKING:  # files are read without torch
    from paint.models.policy import Policy


class Draws(NamedTuple):
    """What came of drawing a problem several times."""

    tokens: tuple[int, ...]  # of the row's completion in each attempt
    solved: bool  # whether one of the problem's completions is right


@dataclass(frozen=True)
class TeacherPrompt:
    """The teacher's prompt and the context in it."""

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
    draws: Draws | None = None  # None with rollout.max_attempts 1
    # The loss's values at every token, by name; none before it, and if it is not learned from.
    tokens: dict[str, list[float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it among the samples of a store."""
        return self.problem.id, self.row

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled for the row, those of other attempts included."""
        return sum(self.draws.tokens) if self.draws else len(self.completion.ids)

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
        """Whether the grader accepts the completion; False without a grade."""
        return self.grade is not None and self.grade.correct


def rollout_of(
    policy: "Policy",
    row: int,
    problem: Problem,
    prompt: list[int],
    completion: Completion,
    *,
    behavior_log_probs: tuple[float, ...] | None = None,
) -> Rollout:
    """The rollout of a completion; of a conversation with its environment's grade, if it gave one.

    The text of a conversation is that of all turns of the student.
    """
    rollout = Rollout(
        row,
        problem,
        prompt,
        completion,
        policy.decode(completion.ids),
        behavior_log_probs=behavior_log_probs,
    )
    conversation = completion.conversation
    if conversation is None:
        return rollout
    texts = [policy.decode(ids) for _, ids in rollout.student_parts]
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


def transcript_of(policy: "Policy", rollout: Rollout) -> str:
    """What a grader reads of a completion: the text, with the thought that its prompt opened.

    Of a conversation it is the last turn.
    """
    return policy.transcript(*rollout.student_parts[-1])


def is_gradable(rollout: Rollout, *, needs_answer: bool) -> bool:
    """Whether a rollout is graded: it has what the grader needs, or its environment's grade."""
    return bool(rollout.problem.answers or rollout.grade or not needs_answer)


def name_of_grader(graders: Sequence[str], environment: str, *, is_given: bool) -> str:
    """Who grades, for messages: the graders, or the environment of conversations that it graded."""
    if is_given:
        return f"the environment {environment}"
    return f"the grader {', '.join(graders)}"


def grade_rollouts(
    grader: Grader,
    rollouts: Sequence[Rollout],
    texts: Sequence[str],
    *,
    tags: Sequence[ThoughtTags],
    needs_answer: bool,
) -> list[Grade]:
    """The grades of the rollouts; those that an environment graded before keep theirs.

    Args:
        texts: what the grader reads of each (``transcript_of``).
        tags: of the thoughts of the model that sampled.
        needs_answer: rows without an answer are not graded.
    """
    items = []
    for rollout, text in zip(rollouts, texts, strict=True):
        if rollout.grade is None:
            problem, truncated = rollout.problem, rollout.completion.truncated
            items.append(Item(text, problem.answers, truncated, row_of(problem), tags))
    grades = iter(grade_items(grader, items, needs_answer=needs_answer))
    return [rollout.grade or next(grades) for rollout in rollouts]


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """A rollout as files hold it: what runs and evaluations have in common."""
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
    """The rollout of a row of a run or an evaluation, with its grade, if the row has one.

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
        grade = Grade(
            row["reward"],
            row["reason"],
            row["failed"],
            row.get("feedback", ""),
            {name: Grade(reward) for name, reward in row.get("rewards", {}).items()},
            row.get("given_answer"),
            row.get("metrics", {}),
        )
    return Rollout(place, problem, row["prompt_ids"], completion, row["text"], grade=grade)


def conversation_record(conversation: Conversation) -> dict[str, Any]:
    """A conversation as files hold it, without its problem; ``read_conversation`` reads it."""
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
    """The conversation of ``conversation_record``. Raises ValueError for what is none."""
    try:
        turns = tuple(Turn(**turn) for turn in record["turns"])
        messages = tuple(record["messages"])
        opening = tuple((role, text) for role, text in record.get("opening", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its conversation is none: {error}") from error
    given = record.get("grade")
    if opening:
        problem = replace(problem, problem=opening[-1][1], turns=opening)
    return Conversation(
        turns,
        messages,
        record.get("ended", "end"),
        problem,
        Grade(**given) if given else None,
        record.get("calls", 0),
        record.get("failed_calls", 0),
    )
