"""Conversations in training: exact ids, the loss of the paper, resumed to the bit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from conftest import logits_alone, move
from paint.algorithms.paint import add_teacher_prompts, score_rollouts
from paint.config.schema import Config, ContextConfig
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.data.contexts import Attempt, Context, Contexts
from paint.data.problems import DataError, Problem, read_problems
from paint.data.readers import Number
from paint.grading.contract import Grade, GradingError
from paint.inference.conversations import open_conversations, written_conversation
from paint.inference.engine import (
    Completion,
    Engine,
    OnCompletion,
    Prompts,
    Sampling,
    derive_seed,
    sampling_from,
)
from paint.inference.local import LocalEngine
from paint.inference.rollout_grades import transcript_of
from paint.inference.rollouts import Rollout, rollout_of
from paint.models.model_errors import PromptError
from paint.models.policy import Policy, load_policy
from paint.models.prompts import tools_of_row
from paint.models.rows import joined_rows
from paint.objective.loss import paint_loss
from paint.resolve.algorithm import Algorithm
from paint.resolve.check import check_config
from paint.training.load_balancing import micro_batches, token_passes
from paint.training.prompt_filter import filter_problems
from paint.training.row_prompts import measure_longest
from paint.training.teacher_views import (
    count_teacher_tokens,
    view_with_context,
    with_teacher_prompt,
)
from paintvariants.contrast import Contrast
from paintvariants.reason_first import ReasonFirst
from paintvariants.u_opsd import UOpsd
from runs import (
    adapter,
    assert_same,
    assert_same_history,
    changed,
    opened_setup,
    small_run,
    stored,
    train,
    train_in_parts,
    variant,
    write_problems,
)

SMALL = small_run(48, steps=2, batch_size=4, micro_batch_size=4, checkpoint_every=1)
CHECK = {"role": "user", "content": "Check it."}


class CheckAgain:
    """Asks some rows once more, and grades."""

    def __init__(self) -> None:
        self.reward: float | None = None
        self.feedback = ""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        self.gold, self.asks = row["answer"], seed % 3

    def step(self, messages: Sequence[Any], completion: str) -> list[dict[str, str]] | None:
        if self.asks:
            self.asks -= 1
            return [CHECK]
        self.reward = float(self.gold in completion)
        self.feedback = f"It is {self.gold}."
        return None


@pytest.fixture
def short(problems: list[Problem]) -> list[Problem]:
    """Problems with short solutions, which the demo's model answers within its limit."""
    return sorted(problems, key=lambda problem: len(problem.solution))[:40]


def small(*sections: dict[str, Any], environment: Any = CheckAgain, **more: Any) -> Config:
    conversation = {"environment": spec_of(environment), **more}
    return changed("demo-paint", SMALL, {"conversation": conversation}, *sections)


def conversations(
    config: Config, problems: Sequence[Problem], *, thinking: bool
) -> tuple[Any, list[Any]]:
    """The policy, and its conversations about some problems."""
    policy = load_policy(replace(config.model, student_thinking=thinking), seed=0)
    move(policy, by=0.01)
    seeds = [derive_seed(3, row) for row in range(len(problems))]
    with open_conversations(policy, config.conversation, 2000) as opened:
        assert opened is not None
        engine = LocalEngine(policy, batch_size=8)
        sampling = sampling_from(config.rollout)
        return policy, opened.generate(engine, problems, sampling, seeds)


def rollouts_of(policy: Policy, problems: Sequence[Problem], found: list[Any]) -> list[Rollout]:
    """Conversations about the first problems as rollouts."""
    pairs = zip(problems, found, strict=False)
    return [rollout_of(policy.decode, row, p, [], c) for row, (p, c) in enumerate(pairs)]


@pytest.mark.parametrize("thinking", [True, False])
def test_conversation_turns_are_what_was_sampled_after_the_rendered_prompts(
    short: list[Problem], thinking: bool
) -> None:
    config = small()
    policy, found = conversations(config, short[:6], thinking=thinking)
    assert {len(c.conversation.turns) for c in found} > {1}
    for problem, completion in zip(short, found, strict=False):
        talk = completion.conversation
        texts: list[str] = []
        for turn, (prompt, ids) in zip(
            talk.turns, completion.after([t.prompt for t in talk.turns]), strict=True
        ):
            then = [m for text in texts for m in ({"role": "assistant", "content": text}, CHECK)]
            assert list(prompt) == policy.student_prompt(problem, then=then)
            assert turn.after == len(then)
            texts.append(policy.decode(ids))
            # As sampled alone after that prompt: the engine's own log-probs say so.
            logits = logits_alone(policy.model, prompt, ids)
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        last = torch.tensor(completion.log_probs[-len(ids) :])
        torch.testing.assert_close(chosen.detach(), last, rtol=1e-3, atol=1e-4)
        assert len(completion.ids) == sum(turn.length for turn in talk.turns)


@pytest.mark.parametrize("thinking", [True, False])
def test_conversation_loss_and_gradient_match_the_reference_in_float64(
    short: list[Problem], accelerator: Accelerator, thinking: bool
) -> None:
    config = small({"objective": {"impl": "reference"}})
    policy, found = conversations(config, short[:5], thinking=thinking)
    policy.model.double()
    with opened_setup(config, policy, accelerator, short) as setup:
        rollouts = add_teacher_prompts(setup, rollouts_of(policy, short, found), 0)
        value, _ = score_rollouts(setup, rollouts)
        value.backward()
    gradient = [p.grad.clone() for p in policy.trainable]

    # The same by the library's own logits of each turn alone.
    student, teacher = [], []
    tokens: list[int] = []
    for r in rollouts:
        assert len(r.student_parts) == len(r.teacher_parts)
        for (prompt, ids), (privileged, _) in zip(r.student_parts, r.teacher_parts, strict=True):
            student.append(logits_alone(policy.model, prompt, ids))
            with policy.model.disable_adapter(), torch.no_grad():
                teacher.append(logits_alone(policy.model, privileged, ids))
            tokens += ids
    for p in policy.trainable:
        p.grad = None
    lengths = [len(r.completion.ids) for r in rollouts]
    expected = paint_loss(
        torch.cat(student),
        torch.cat(teacher),
        lengths,
        setup.resolved.objective,
        tokens=torch.tensor(tokens),
    )
    expected.value.backward()
    assert value.item() == pytest.approx(expected.value.item(), rel=1e-9)
    for p, ours in zip(policy.trainable, gradient, strict=True):
        assert p.grad is not None
        largest = float(p.grad.abs().max())
        # Norms are computed in float32 whatever the weights are: of a joined row, after the sum.
        torch.testing.assert_close(ours, p.grad, rtol=1e-8, atol=1e-6 * largest)


def test_conversation_rows_are_joined_where_a_prompt_goes_on(short: list[Problem]) -> None:
    rows = {}
    for thinking in (True, False):
        config = small()
        policy, found = conversations(config, short[:6], thinking=thinking)
        rollouts = rollouts_of(policy, short, found)
        turns = sum(len(r.student_parts) for r in rollouts)
        parts = [part for r in rollouts for part in r.student_parts]
        joined = joined_rows([prompt for prompt, _ in parts], [ids for _, ids in parts])
        rows[thinking] = len(joined), turns
        # Cost and micro-batches count rows of a pass, not conversations.
        assert token_passes(rollouts) == 2 * len(joined) * max(len(row.ids) for row in joined)
        limits = replace(config.train, micro_batch_size=3)
        for micro in micro_batches(rollouts, limits):
            in_micro = [part for r in micro for part in r.student_parts]
            passes = joined_rows([prompt for prompt, _ in in_micro], [ids for _, ids in in_micro])
            assert len(passes) <= 3 or len(micro) == 1
    assert rows[True][0] == 6 < rows[True][1]  # the demo's template only appends
    assert rows[False][0] == rows[False][1]  # without thinking it rewrites earlier turns


def test_conversation_is_graded_by_its_environment_or_by_its_last_turn(
    short: list[Problem],
) -> None:
    class Silent(CheckAgain):
        def step(self, messages: Sequence[Any], completion: str) -> list[dict[str, str]] | None:
            return None if len(messages) > 2 else [CHECK]

    policy, found = conversations(small(), short[:3], thinking=True)
    grades: list[Any] = [rollout.grade for rollout in rollouts_of(policy, short, found)]
    assert [grade.feedback for grade in grades] == [f"It is {p.answer}." for p in short[:3]]
    policy, found = conversations(small(environment=Silent), short[:3], thinking=True)
    for rollout in rollouts_of(policy, short, found):
        assert rollout.grade is None
        first, last = (policy.decode(ids) for _, ids in rollout.student_parts)
        assert transcript_of(policy, rollout).startswith(last)
        assert rollout.text == f"{first}\n\n{last}"


class Endless:
    def step(self, messages: Sequence[Any], completion: str) -> list[dict[str, str]]:
        return [CHECK]


class SaysOne(Engine):
    """Says 1 to every prompt."""

    def __init__(self, policy: Policy) -> None:
        self.ids = tuple(policy.solution_ids("1"))

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        for index in range(len(prompts)):
            finished(index, Completion(self.ids, (), truncated=False))

    def sync_weights(self) -> None:
        pass


def test_conversation_ends_where_the_teachers_prompt_would_be_over_the_limit(
    short: list[Problem], policy: Policy
) -> None:
    config, contexts = small(environment=Endless, max_turns=40), Contexts(ContextConfig(), short)
    for teacher in (None, count_teacher_tokens(policy, contexts)):
        with open_conversations(policy, config.conversation, 300) as opened:
            assert opened is not None
            sampling = sampling_from(config.rollout)
            [found] = opened.generate(SaysOne(policy), short[:1], sampling, [3], teacher=teacher)
        talk: Any = found.conversation
        assert talk.ended == "prompt"
        context = Context(contexts.longest(short[0]), complete=False)
        view = view_with_context(policy, short[0], context, conversation=talk)
        assert max(len(turn.prompt) for turn in talk.turns) <= 300
        assert (len(view.later[-1]) <= 300) is (teacher is not None)


def test_feedback_that_makes_a_later_prompt_too_long_is_passed_over(
    short: list[Problem], policy: Policy
) -> None:
    context = {"source": ("feedback",)}
    config = small({"context": context, "data": {"max_prompt_tokens": 300}}, environment=Endless)
    with open_conversations(policy, config.conversation, 300) as opened:
        assert opened is not None
        sampling = sampling_from(config.rollout)
        [found] = opened.generate(SaysOne(policy), short[:1], sampling, [3])
    run, contexts = check_config(config), Contexts(config.context, short)
    for words, is_over in ((1, False), (80, True)):
        attempt = Attempt("1", Grade(0.0, "wrong", feedback="so " * words))
        rollout = rollout_of(policy.decode, 0, short[0], [], found)
        view: Any = with_teacher_prompt(policy, run, contexts, rollout, attempt, 0).teacher_prompt
        assert (view.context is None) is is_over
        assert (view.refused_tokens > 300) is is_over
        assert max(map(len, [view.prompt, *view.later])) <= 300


def test_conversation_that_its_environment_begins_over_the_limit_is_an_error(
    short: list[Problem],
) -> None:
    class Long(CheckAgain):
        def reset(self, row: Mapping[str, Any], seed: int) -> list[dict[str, str]]:  # type: ignore[override]
            super().reset(row, seed)
            return [{"role": "user", "content": "so " * 1000}]

    few = {"rollout": {"max_new_tokens": 8}}
    _, [found] = conversations(small(few, environment=Long), short[:1], thinking=True)
    talk = found.conversation
    assert (talk.ended, len(talk.turns)) == ("error", 1)
    assert talk.grade.failed
    # The demo's model has 1,024 positions.
    assert "a prompt of 3,007 tokens, over the limit of 1,016 (data.max_p" in talk.grade.reason


@pytest.mark.slow
def test_train_on_conversations_in_parts_is_bitwise_equal(tmp_path: Path) -> None:
    config = small()
    train(config, tmp_path / "whole")
    train_in_parts(config, tmp_path / "parts", 1)
    assert_same(adapter(tmp_path / "whole"), adapter(tmp_path / "parts"))
    assert_same_history(tmp_path / "whole", tmp_path / "parts")
    rows = stored(tmp_path / "whole")
    assert len({len(row["conversation"]["turns"]) for row in rows}) > 1
    for row in rows:
        turns = row["conversation"]["turns"]
        assert len(row["conversation"]["messages"]) == 2 * len(turns) - 1
        assert len(row.get("later_teacher_prompt_ids", [])) == len(turns) - 1
        assert sum(turn["length"] for turn in turns) == len(row["completion_ids"])


class Begins(CheckAgain):
    """Begins the conversation in its own words."""

    def reset(self, row: Mapping[str, Any], seed: int) -> list[dict[str, str]]:  # type: ignore[override]
        super().reset(row, seed)
        return [{"role": "user", "content": f"Problem: {row['problem']} Be quick."}]


@pytest.mark.parametrize("environment", [CheckAgain, Begins])
def test_train_on_stored_conversations_is_as_sampling_them(
    environment: Any, tmp_path: Path
) -> None:
    once = {"train": {"steps": 1, "checkpoint_every": 1}}
    train(small(once, environment=environment), tmp_path / "sampled")
    later = {"rollout": {"engine": "stored", "stored": str(tmp_path / "sampled")}}
    train(small(once, later, environment=environment), tmp_path / "stored")
    assert_same(adapter(tmp_path / "sampled"), adapter(tmp_path / "stored"))
    sampled, again = stored(tmp_path / "sampled"), stored(tmp_path / "stored")
    assert [row["conversation"] for row in again] == [row["conversation"] for row in sampled]
    assert [row["reward"] for row in again] == [row["reward"] for row in sampled]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ReasonFirst, UOpsd, Contrast])
def test_train_variant_on_conversations_has_a_teacher_prompt_for_every_turn(
    algorithm: type[Algorithm], tmp_path: Path
) -> None:
    few = {"rollout": {"samples_per_problem": 4}, "train": {"steps": 1, "batch_size": 8}}
    train(small(few, variant(algorithm)), tmp_path)
    rows = [row for row in stored(tmp_path) if "teacher_prompt_ids" in row]
    turns = [len(row["conversation"]["turns"]) for row in rows]
    assert max(turns) > 1
    later = [row.get("later_teacher_prompt_ids", []) for row in rows]
    assert [len(prompts) + 1 for prompts in later] == turns


# The first turn begins as the tag of a thought does.
CHAT = [
    {"role": "user", "content": "Add 2 and 3."},
    {"role": "assistant", "content": "<t> It is 6."},
    {"role": "user", "content": "Check it."},
    {"role": "assistant", "content": "It is 5."},
]


@pytest.mark.parametrize("learned", [(1, 3), (3,), (1,)])
def test_sft_on_conversations_learns_from_turns_that_are_not_marked_as_read_only(
    tmp_path: Path, policy: Policy, learned: tuple[int, ...]
) -> None:
    chat: list[dict[str, Any]] = list(CHAT)
    for place in {1, 3} - {*learned}:
        chat[place] = chat[place] | {"weight": 0}
    path = write_problems(tmp_path / "chats.jsonl", [{"id": "a", "messages": chat}])
    sections: dict[str, dict[str, Any]] = {
        "data": {"path": path, "turns": "all"},
        "train": {"steps": 1, "batch_size": 1},
    }
    train(changed("demo-sft", SMALL, sections), tmp_path / "run")
    [row] = stored(tmp_path / "run")
    # The loss of each turn alone, weighed by its tokens: the adapter is still the identity.
    expected, losses, prompts = list[int](), list[float](), []
    for place in learned:
        ids = [*policy.tokenizer.encode(CHAT[place]["content"]), *policy.end_ids[-1:]]
        prompts.append(
            policy.tokenizer.apply_chat_template(
                CHAT[:place], add_generation_prompt=True, enable_thinking=False, return_dict=False
            )
        )
        logits = logits_alone(policy.model, prompts[-1], ids)
        losses += (-logits.log_softmax(-1)[range(len(ids)), ids]).tolist()
        expected += ids
    assert (row["prompt_ids"], row["completion_ids"]) == (prompts[0], expected)
    assert row["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_teacher_of_a_conversation_reads_what_is_before_its_first_learned_turn(
    policy: Policy,
) -> None:
    problem, solved = Problem(CHAT[0]["content"], "5", "5", "a"), Context("It is 5.", complete=True)

    def view(first: dict[str, Any]) -> tuple[list[int], ...]:
        messages = [first, *CHAT[2:]]
        written = written_conversation(policy, problem, messages, "stored")
        teacher = view_with_context(policy, problem, solved, conversation=written.conversation)
        assert len(written.after([teacher.prompt, *teacher.later])) == 1 + len(teacher.later)
        return teacher.prompt, *teacher.later

    assert view(CHAT[1] | {"weight": 0}) == view(CHAT[1])[1:]


def test_written_turn_whose_thought_the_template_leaves_out_is_refused(policy: Policy) -> None:
    problem = Problem("Add 2 and 3.", "5", "5", "a")
    for name in ("reasoning_content", "reasoning", "thinking"):
        thought = {"role": "assistant", "content": "It is 5.", name: "They add up."}
        assert "They add up." not in policy.tokenizer.apply_chat_template([thought], tokenize=False)
        with pytest.raises(
            PromptError, match=f'a: the chat template leaves out "{name}" of a turn'
        ):
            written_conversation(policy, problem, [thought], "reference")
        # Of a turn that is only read, it is the template's to write.
        written_conversation(policy, problem, [thought | {"weight": 0}, *CHAT[2:]], "reference")


def test_schemas_of_a_row_have_its_numbers_and_no_null(policy: Policy) -> None:
    limit = {"type": "integer", "minimum": Number("1"), "default": Number("0.50"), "enum": None}
    parameters = {"type": "object", "properties": {"limit": limit, "city": None}}
    row = Problem("q", "5", "5", "a", fields={"tools": [{"name": "f", "parameters": parameters}]})
    [schema] = tools_of_row(replace(row, conversation=tuple(CHAT[1:])), ())
    kept = {"limit": {"type": "integer", "minimum": 1, "default": 0.5}}
    assert schema == {"name": "f", "parameters": {"type": "object", "properties": kept}}


def test_written_conversation_over_the_limit_is_refused_with_all_that_its_rows_hold(
    tmp_path: Path,
) -> None:
    asked = {"role": "user", "content": "Add 1 and 4."}
    long = [asked, CHAT[1], {"role": "user", "content": "so " * 40}, CHAT[3]]
    chats = {"a": CHAT, "b": long}
    rows = [{"id": name, "messages": chat, "answer": "5"} for name, chat in chats.items()]
    path = write_problems(tmp_path / "chats.jsonl", rows)
    data = {"path": path, "turns": "all", "max_prompt_tokens": 120}
    config = changed("demo-sft", SMALL, {"data": data})
    policy, run = load_policy(config.model, seed=0), check_config(config)
    rows_of_file = read_problems(config.data)
    with pytest.raises(DataError, match="problem b makes a prompt with its solution of 1"):
        filter_problems(policy, run, rows_of_file, Display())
    wider = run.changed("data", max_prompt_tokens=500)
    assert len(filter_problems(policy, wider, rows_of_file, Display())) == 2
    longest = measure_longest(wider, rows_of_file.problems, policy.tokenizer)
    written: Any = written_conversation(policy, rows_of_file.problems[1], long[1:], "reference")
    last = written.conversation.turns[-1]
    assert 0 <= longest.reference - (len(last.prompt) + last.length) <= 20
    assert (longest.turns, longest.keeps_turns) == (2, False)  # without thinking


class Broken:
    """Fails on every turn."""

    def step(self, messages: Sequence[Any], completion: str) -> None:
        raise TypeError("no turn can be answered")


def test_train_with_an_environment_that_always_fails_names_it(tmp_path: Path) -> None:
    config = small({"grading": {"grader": "none"}}, environment=Broken)
    with pytest.raises(
        GradingError, match=r"^step 1: the environment \S+:Broken failed on 4 of 4 "
    ):
        train(config, tmp_path)
