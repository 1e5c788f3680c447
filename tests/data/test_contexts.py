"""Contexts: what each source shows, and what of it is masked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.config.context_sources import SOURCES, context_source
from paint.config.schema import Config, ConfigError, ContextConfig, GradingConfig
from paint.core.extensions import spec_of
from paint.data.contexts import (
    NO_ATTEMPT,
    READERS,
    Attempt,
    Context,
    Contexts,
    with_others,
    with_source,
)
from paint.data.problems import DataError, Problem
from paint.grading.contract import Grade
from paint.objective.masking import anchors
from paint.resolve.check import check_config

GUIDE = "Be kind within 14 days. Name the depot. Never promise a refund"
ASKED = ["Add $2$ and $3$ apples.", "Add $2$ and $3$ pears now.", "How are you?", "How are they?"]
PROBLEMS = [
    Problem(text, f"We get ${i}+{i}={2 * i}$, so {i}.", str(i), str(i), fields={"guide": GUIDE})
    for i, text in enumerate(ASKED)
]


def contexts(*source: str, **options: Any) -> Contexts:
    return Contexts(ContextConfig(source=source, **options), PROBLEMS)


def shown(
    these: Contexts, problem: Problem, completion: str = "", attempt: Attempt = NO_ATTEMPT
) -> Context:
    references = these.references(problem, 0, attempt)
    ratio = these.measure(completion, problem, references)["mask_ratio"]
    return these.context(references, ratio, 0, attempt)


def test_every_source_has_a_record_and_a_reader() -> None:
    assert set(READERS) == set(SOURCES)
    assert {source.control for source in SOURCES.values()} <= set(SOURCES)


@pytest.fixture(params=SOURCES)
def built_in(request: pytest.FixtureRequest, tmp_path: Path) -> Contexts:
    """The contexts of one source, half of which is masked where it can be."""
    path = tmp_path / "guide.md"
    path.write_text(GUIDE)
    needs_text = request.param == "text" or SOURCES[request.param].bounded_by == "setting"
    return contexts(
        request.param,
        text=GUIDE if needs_text else "",
        file=str(path) if request.param == "file" else "",
        alignment="fixed",
        mask_ratio_wrong=0.5,
        mask_ratio_correct=0.5,
    )


ATTEMPT = Attempt("mine", Grade(0.0, "no"), peers=["It is $7$."], comments=[("q", "Not $8$.")])


def test_sources_are_masked_as_the_solution_is_but_for_texts_and_answers() -> None:
    in_full = {name for name, source in SOURCES.items() if not source.masked}
    placebos = {"placebo", "placebo_text"}
    texts = {"text", "file", "other_text"}
    assert in_full == {"none", "answer", "wrong_answer"} | texts | placebos
    controls = {name for name, source in SOURCES.items() if source.is_control}
    of_others = {"other", "other_text", "other_feedback", "wrong_answer"}
    assert controls == {"none", "answer"} | of_others | placebos


def test_record_says_what_the_text_of_a_source_depends_on(built_in: Contexts) -> None:
    [name] = built_in.options.source
    start = built_in.references(PROBLEMS[0], 0, ATTEMPT)
    others = [replace(p, problem="New", solution=f"New {p.id}", answer="99") for p in PROBLEMS[1:]]
    changed = {
        "rows": (Contexts(built_in.options, [PROBLEMS[0], *others]), ATTEMPT),
        "completion": (built_in, replace(ATTEMPT, text="other", grade=Grade(0.0, "wrong"))),
        "step": (built_in, replace(ATTEMPT, peers=["By $9$."], comments=[("q", "Not $9$.")])),
    }
    for origin, (these, attempt) in changed.items():
        depends = these.references(PROBLEMS[0], 0, attempt) != start
        assert depends == (SOURCES[name].origin == origin)


def test_record_says_what_is_masked_aligned_and_bounded(built_in: Contexts) -> None:
    [name] = built_in.options.source
    source, problem = SOURCES[name], PROBLEMS[0]
    references = built_in.references(problem, 0, ATTEMPT)
    text = built_in.context(references, 0.5, 0, ATTEMPT).text
    assert source.masked == (text != references.get(name))
    aligned = references[name] if source.is_aligned else problem.solution
    assert built_in.aligned(problem, references) == aligned
    if source.bounded_by == "setting":
        assert len(references[name]) == len(GUIDE)
        assert built_in.longest(problem).count(references[name]) == 1
    elif source.bounded_by == "solution":
        alone = built_in.references(problem, 0)[name]
        assert alone in [p.solution for p in PROBLEMS]
    assert built_in.reads_feedback == (not built_in.references(problem, 0) and text is not None)


def test_other_text_is_of_other_problems_and_as_long_as_the_text() -> None:
    these = contexts("other_text", text=GUIDE * 3)
    for seed in range(4):
        text = these.references(PROBLEMS[0], seed)["other_text"]
        assert len(text) == 3 * len(GUIDE)
        assert GUIDE not in text
        assert PROBLEMS[0].problem not in text
        assert any(text.startswith(problem.problem) for problem in PROBLEMS[1:])
    assert shown(these, PROBLEMS[0]).text == these.references(PROBLEMS[0], 0)["other_text"]
    with pytest.raises(ConfigError, match=r"other_text without context\.text"):
        contexts("other_text")


def test_placebo_is_as_long_as_what_it_replaces_and_says_nothing_of_it() -> None:
    for problem in PROBLEMS:
        text = contexts("placebo").references(problem, 0)["placebo"]
        assert len(text) == len(problem.solution)
        assert not anchors(text)
    these = contexts("placebo_text", text=GUIDE * 9)
    assert len(these.references(PROBLEMS[0], 0)["placebo_text"]) == 9 * len(GUIDE)
    assert contexts("placebo").references(replace(PROBLEMS[0], solution=""), 0) == {}


def test_with_source_keeps_text_and_file_where_they_are_used() -> None:
    options = ContextConfig(source=("file",), file="guide.md")
    assert with_source(options, "none").file == ""
    assert (
        with_source(options, "other_text").file == with_source(options, "file").file == "guide.md"
    )
    changed = with_source(
        ContextConfig(source=("text",), text=GUIDE), "solution", placement="prefix"
    )
    assert (changed.source, changed.text, changed.placement) == (("solution",), "", "prefix")


def test_context_of_all_rows_reaches_teacher_in_full(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE + "\n")
    assert shown(contexts("text", text=GUIDE), PROBLEMS[0]) == Context(GUIDE, True)
    assert shown(contexts("file", file=str(path)), PROBLEMS[0]) == Context(GUIDE, True)
    fixed = contexts("text", text=GUIDE, alignment="fixed")
    assert shown(fixed, PROBLEMS[0]) == Context(GUIDE, True)
    with pytest.raises(ConfigError, match=r"context\.file .*nowhere.*: No such file"):
        _ = contexts("file", file="nowhere").shared


def test_context_without_anchors_is_masked_only_where_asked() -> None:
    guide = "Be kind. Never promise a refund"
    problem = Problem("Hi", "", "", "9", fields={"guide": guide})
    assert shown(contexts("guide"), problem) == Context(guide, True)
    masked = Context("Be kind. Never promise ...(omitted)...", False)
    assert shown(contexts("guide", alignment="fixed"), problem) == masked
    assert shown(contexts("guide", alignment="words"), problem) == masked
    solved = replace(problem, solution="$1+1=2$", answer="2")
    both = shown(contexts("guide", "solution"), solved)
    assert both == Context(f"{guide}\n\n$1+1= ...(omitted)...", False)


def test_measure_compares_what_alignment_names() -> None:
    problem = Problem("Hi", "", "", "9", fields={"guide": "one two three four five"})
    by_words = contexts("guide", alignment="words")
    measured = by_words.measure("Two, three four!", problem, by_words.references(problem, 0))
    assert measured == {"overlap": 1 / 3, "mask_ratio": pytest.approx(0.3 + 0.1 / 3)}
    fixed = contexts("solution", alignment="fixed", mask_ratio_wrong=0.2)
    references = fixed.references(PROBLEMS[1], 0)
    assert fixed.measure(PROBLEMS[1].solution, PROBLEMS[1], references)["overlap"] == 1
    assert fixed.measure(PROBLEMS[1].solution, PROBLEMS[1], references)["mask_ratio"] == 0.2
    other = contexts("other")  # a control: as the problem's own solution
    assert other.measure(PROBLEMS[1].solution, PROBLEMS[1], {"other": "$9$"})["mask_ratio"] == 0.4


def test_neighbour_is_the_most_similar_other_problem() -> None:
    nearest = [contexts("neighbour").references(p, 0)["neighbour"] for p in PROBLEMS]
    assert nearest == [PROBLEMS[i].solution for i in (1, 0, 3, 2)]
    by_words = contexts("neighbour", alignment="words")
    unsolved = Problem("How are they?", "", "", "new")
    assert by_words.references(unsolved, 0) == {"neighbour": PROBLEMS[3].solution}
    alone = Contexts(ContextConfig(source=("neighbour",)), PROBLEMS[:1])
    with pytest.raises(DataError, match="neighbour needs a second problem with a solution"):
        alone.references(PROBLEMS[0], 0)


def test_rollout_is_a_verified_peer_and_else_the_solution() -> None:
    these = contexts("rollout", mask_ratio_wrong=0.0, mask_ratio_correct=0.0)
    assert shown(these, PROBLEMS[0], attempt=Attempt(peers=["it is $5$"])) == Context(
        "it is $5$", True
    )
    assert shown(these, PROBLEMS[0]) == Context(PROBLEMS[0].solution, True)
    assert shown(these, Problem("p", "", "5", "9")) == Context(None, True)


def test_rollout_next_to_feedback_without_a_peer_is_nothing() -> None:
    attempt = Attempt("it is $6$", Grade(0.0, "off by one"))
    context = shown(contexts("rollout", "feedback"), PROBLEMS[0], attempt=attempt)
    assert context == Context("off by one", True)
    names = {"completion": "it is $6$", "feedback": "off by one", "reference": ""}
    assert context.names == names


def test_feedback_is_masked_as_a_field_is() -> None:
    said = "Step one is $1+1=3$. Step two is $3+1=4$."
    feedback = contexts("feedback", mask_ratio_wrong=0.5, mask_ratio_correct=0.5)
    attempt = Attempt("", Grade(0.0, feedback=said))
    context = shown(feedback, PROBLEMS[0], attempt=attempt)
    assert context.text is not None
    assert context.text.endswith("...(omitted)...")
    assert context.names["feedback"] == context.text
    whole = replace(feedback.options, mask_ratio_wrong=0.0, mask_ratio_correct=0.0)
    assert shown(Contexts(whole, PROBLEMS), PROBLEMS[0], attempt=attempt).text == said


def test_attempts_hold_what_was_said_of_others() -> None:
    wrong, same, good = Grade(0.0, "a"), Grade(0.0, feedback="a"), Grade(1.0, "right")
    failed, ungraded = Grade(0.0, "no answer of the judge", failed=True), Grade(None, "no answer")
    rows = [("p", wrong), ("p", same), ("p", Grade(0.5, "b")), ("p", good), ("q", Grade(0.0, "c"))]
    rows += [("q", failed), ("r", ungraded), ("s", Grade(0.0, "d"))]
    completions = [Attempt(str(i), g, i, id_) for i, (id_, g) in enumerate(rows)]
    found = with_others(completions)
    assert [found[i].comment for i in found] == ["a", "a", "b", "", "c", "", "", "d"]
    assert [found[i].peers for i in found] == [["3"], ["3"], ["3"], [], [], [], [], []]
    assert found[0].other_comments == ["b"]  # "a" is what was said of it, too
    assert found[2].other_comments == ["a", "a"]
    assert found[7].other_comments == ["a", "a", "b", "c"]  # of a single completion: other problems


def test_other_feedback_is_shown_where_there_is_feedback() -> None:
    these = contexts("other_feedback", mask_ratio_wrong=0.0, mask_ratio_correct=0.0)
    attempt = Attempt("", Grade(0.0, "mine"), comments=[("q", "yours")])
    context = shown(these, PROBLEMS[0], attempt=attempt)
    assert (context.text, context.names["feedback"]) == ("yours", "yours")
    for empty in (replace(attempt, grade=Grade(1.0, "right")), replace(attempt, comments=[])):
        assert these.references(PROBLEMS[0], 0, empty) == {}


def test_function_may_take_completion_and_grade() -> None:
    def context(
        row: dict[str, Any], rows: list[Any], seed: int, completion: str, grade: Grade | None
    ) -> str:
        return f"{row['id']} {completion} {grade.reason if grade else ''}"

    these = contexts(spec_of(context))
    assert these.reads_feedback
    assert these.of_own_row(PROBLEMS[1]) == {}  # prompts are measured before there is a completion
    [text] = these.references(PROBLEMS[1], 0, Attempt("mine", Grade(0.0, "wrong"))).values()
    assert text == "1 mine wrong"
    assert not contexts("guide", "rollout").reads_feedback


def test_function_gets_row_rows_and_seed_and_must_return_text() -> None:
    def context(row: dict[str, Any], rows: list[dict[str, Any]], seed: int) -> Any:
        return f"{row['guide'][:2]} {rows[1]['solution']} {seed}" if row["answer"] != "2" else 5

    these = contexts(spec_of(context))
    [text] = these.references(PROBLEMS[0], 7).values()
    assert text == f"Be {PROBLEMS[1].solution} 7"
    with pytest.raises(
        DataError, match="problem 2: it returned an object of type int, and a context is a text"
    ):
        these.references(PROBLEMS[2], 7)


def test_needed_fields_are_those_of_the_sources() -> None:
    def needed(*source: str, **sections: Any) -> set[str]:
        context = ContextConfig(source=source, text="x" * ("text" in source))
        return set(check_config(Config(context=context, **sections)).needed_fields)

    assert context_source("module:hint").needs == ()
    assert needed("text", "neighbour", "extensions.earlier_context:earlier") == set()
    assert needed("guide", "other") == {"guide", "solution"}
    assert needed("solution") == {"solution"}
    assert needed("none") == set()
    assert needed("wrong_answer") == {"answer"}
    assert needed("rollout") == needed("answer") == {"answer"}
    grading = GradingConfig(grader=("extensions.length_grader:grade",))
    assert needed("rollout", grading=grading) == set()
    assert needed("feedback") == {"answer"}  # of the mathematics grader
    assert needed("feedback", grading=grading) == set()


@pytest.mark.parametrize("source", ["feedback", "other_feedback"])
def test_feedback_without_grader_or_passing_over_is_refused(source: str) -> None:
    config = Config(context=ContextConfig(source=(source,)))
    with pytest.raises(ConfigError, match=rf"other than .none. with context.source .{source}"):
        check_config(config.changed("grading", grader=("none",)))
    with pytest.raises(ConfigError, match=rf"context.source must be without {source} with train"):
        check_config(config.changed("train", method="paintvariants.anchored:Anchored"))


def test_several_sources_are_joined_in_their_order() -> None:
    context = shown(contexts("text", "answer", text="Rules"), PROBLEMS[3])
    assert context == Context("Rules\n\nThe answer is $\\boxed{3}$.", True)
