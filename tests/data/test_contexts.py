"""Contexts: what each source shows, and what of it is masked."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import Config, ConfigError, ContextConfig, GradingConfig
from paint.core.plugins import spec_of
from paint.data.contexts import FILE_BYTES, Context, Contexts
from paint.data.problems import DataError, Problem
from paint.training.check import check_config

GUIDE = "Be kind within 14 days. Name the depot. Never promise a refund"
ASKED = ["Add $2$ and $3$ apples.", "Add $2$ and $3$ pears now.", "How are you?", "How are they?"]
PROBLEMS = [
    Problem(text, f"We get ${i}+{i}={2 * i}$, so {i}.", str(i), str(i), fields={"guide": GUIDE})
    for i, text in enumerate(ASKED)
]


def contexts(*source: str, **options: Any) -> Contexts:
    return Contexts(ContextConfig(source=source, **options), PROBLEMS)


def shown(these: Contexts, problem: Problem, completion: str = "", **given: Any) -> Context:
    references = these.references(problem, 0, **given)
    ratio = these.measure(completion, problem, references)["mask_ratio"]
    return these.context(references, ratio, 0)


def test_context_of_all_rows_reaches_teacher_in_full(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE + "\n")
    assert shown(contexts("text", text=GUIDE), PROBLEMS[0]) == Context(GUIDE, True)
    assert shown(contexts("file", file=str(path)), PROBLEMS[0]) == Context(GUIDE, True)
    fixed = contexts("text", text=GUIDE, alignment="fixed")
    assert shown(fixed, PROBLEMS[0]) == Context(GUIDE, True)
    with pytest.raises(ConfigError, match=r"context\.file .*nowhere.*: No such file"):
        _ = contexts("file", file="nowhere").shared


def test_context_file_is_read_once_and_without_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE, "utf-8-sig")
    these = contexts("file", file=str(path))
    assert these.shared == GUIDE
    path.write_text("Promise a refund")
    assert shown(these, PROBLEMS[0]) == shown(these, PROBLEMS[1]) == Context(GUIDE, True)
    assert Contexts(these.options, PROBLEMS[:1], these.file_content).shared == GUIDE


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "blank", "long"])
def test_context_file_without_readable_text_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/null") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "device":
        path.write_text(" \n" if kind == "blank" else "a" * (FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=rf"context\.file {path}: it (is a|is longer|holds no)"):
        _ = contexts("file", file=str(path)).shared


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
    assert shown(these, PROBLEMS[0], peers=["it is $5$"]) == Context("it is $5$", True)
    assert shown(these, PROBLEMS[0]) == Context(PROBLEMS[0].solution, True)
    assert shown(these, Problem("p", "", "5", "9")) == Context(None, True)


def test_several_sources_are_joined_in_their_order() -> None:
    context = shown(contexts("text", "answer", text="Rules"), PROBLEMS[3])
    assert context == Context("Rules\n\nThe answer is $\\boxed{3}$.", True)


def test_function_gets_row_rows_and_seed_and_must_return_text() -> None:
    def context(row: dict[str, Any], rows: list[dict[str, Any]], seed: int) -> Any:
        return f"{row['guide'][:2]} {rows[1]['solution']} {seed}" if row["answer"] != "2" else 5

    these = contexts(spec_of(context))
    [text] = these.references(PROBLEMS[0], 7).values()
    assert text == f"Be {PROBLEMS[1].solution} 7"
    with pytest.raises(DataError, match="problem 2: it returned 5, and a context is a text"):
        these.references(PROBLEMS[2], 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": ()}, "distinct sources"),
        ({"source": ("none", "text"), "text": "x"}, "none alone"),
        ({"source": ("text", "text"), "text": "x"}, "distinct sources"),
        ({"source": ("text",)}, r"context\.text must be set exactly where context\.source names"),
        ({"text": "x"}, r"context\.text must be set exactly"),
        ({"source": ("file",)}, r"context\.file must be set exactly"),
    ],
)
def test_context_config_contradiction_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ContextConfig(**options)


def test_needed_fields_are_those_of_the_sources() -> None:
    def needed(*source: str, **sections: Any) -> set[str]:
        context = ContextConfig(source=source, text="x" * ("text" in source))
        return set(check_config(Config(context=context, **sections)).needed_fields)

    assert needed("text", "neighbour", "extensions.earlier_context:earlier") == set()
    assert needed("guide", "other") == {"guide", "solution"}
    assert needed("rollout") == needed("answer") == {"answer"}
    grading = GradingConfig(grader=("extensions.length_grader:grade",))
    assert needed("rollout", grading=grading) == set()


def test_context_function_returning_half_a_character_is_refused_by_name() -> None:
    spec = spec_of(lambda *_: "\ud800", "half", module="contexts_of_mine")
    with pytest.raises(DataError, match=rf"context.source {spec}, problem 0: .*surrogates"):
        contexts(spec).references(PROBLEMS[0], 0)
