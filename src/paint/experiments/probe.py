"""``paint probe``: before any training, how much better does the teacher answer than the student?

Both are the same untrained model; the teacher also reads a part of the solution. They are asked the
same problems with the same seeds: the problems that training takes first, with its prompts and its
sampling. What training can gain follows the difference, so it is worth knowing first. Controls say
what it comes of: another problem's solution, no reference, the right answer alone, a wrong one
(``context.source``). Every sample is stored, and the same command goes on where it was stopped.

Left out on purpose: the overlap schedule (the hidden part does not depend on a completion here), a
teacher that writes a rationale first, and a choice of mask ratio: all ratios are shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from paint.algorithms.paint import MASKED_SOURCES, build_teacher_prompt
from paint.config.recipe import require_paths
from paint.config.schema import Config, ConfigError, ContextSource
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import format_value
from paint.data.gold_answer_checks import name_unparsed
from paint.data.problems import Problem, batch_indices, read_problems
from paint.evaluation.generate import (
    EvalTask,
    Prompts,
    SamplingProtocol,
    base_as_rank1_adapter,
    collect_samples,
    deployment_prompts,
    load_eval_policy,
)
from paint.evaluation.grade import grade
from paint.evaluation.intervals import Comparison, compare
from paint.evaluation.metrics import GradedSamples, avg_at_k
from paint.evaluation.store import write_summary
from paint.evaluation.tables import Sheet, markdown, print_sheets, summary_json
from paint.grading.math.compare import boxed
from paint.grading.registry import find_grader
from paint.inference.engine import derive_seed, sampling_from
from paint.models.policy import Policy
from paint.objective.anchors import contains, normalize
from paint.training.prompt_filter import filter_problems

STUDENT, PROBLEMS = "student", "problems"
COLUMNS = ("", "Avg@{k}", "less the student's", "tokens an answer", "truncated", "answer visible")
LABELS: dict[ContextSource, str] = {
    "own": "its own solution",
    "other": "another problem's solution",
    "none": "none",
    "answer": "the right answer",
    "wrong_answer": "a wrong answer",
}
"""What is shown, in the words of `paint ablate controls`."""


@dataclass(frozen=True)
class ProbeRole:
    """The untrained model in one role, student or teacher.

    Attributes:
        name: of its row and of its folder.
        shown: what it sees of the solutions, for the record; None is nothing.
        visible: share of the problems whose answer it sees (`answer_is_visible`).
        prompts: what it reads of each problem.
        own: of a control, the teachers with whom it is compared: those that see the problem's own
            solution, with as much hidden if it is masked, too.
    """

    name: str
    thinking: bool
    shown: str | None
    visible: float
    prompts: Prompts
    own: tuple[str, ...] = ()


def probe(
    config: Config,
    folder: Path,
    *,
    problems: int,
    samples: int,
    ratios: Sequence[float],
    shown: Sequence[ContextSource] = ("own",),
) -> dict[str, GradedSamples]:
    """Ask student and teacher, print and write one table, return the graded samples by reader.

    With controls beside "own", a second table says how much each falls short of it.

    Args:
        config: of the training in question; its rollout section also says how to sample here.
        problems: how many, in the order in which training takes them; all where there are fewer.
        samples: how many a problem, for the student and for each teacher.
        ratios: mask ratios rho of the teacher, each in [0, 1).
        shown: what teachers see, in the order of the rows. A solution, "own" or "other", is seen by
            a teacher at each ratio, the rest by one.

    Raises:
        ConfigError, DataError, EngineError, PolicyError, StoreError: the message says what is wrong
            and the way out.
        FolderInUse: another process works on the probe.
    """
    validate_probe(config, problems, samples, ratios, shown)
    require_one_process("paint probe")
    display = Display()
    config = replace(config, model=base_as_rank1_adapter(config.model))

    policy = load_eval_policy(config.model, config.rollout)
    longest: ContextSource = "other" if "other" in shown else "own"
    sized = replace(config, context=replace(config.context, source=longest))
    trained_on = filter_problems(policy, sized, read_problems(config.data), display)
    asked_problems = first_problems(trained_on, problems, config.train.seed)
    name_unparsed(config.data.path, asked_problems, display.note)

    own = {ratio: name_of("own", ratio) for ratio in ratios if "own" in shown}
    readers = [student(policy, asked_problems)]
    for what in shown:
        for ratio in ratios if what in MASKED_SOURCES else [None]:
            reader = teacher(policy, config, asked_problems, ratio, what, trained_on)
            peers = [own[r] for r in own if what != "own" and ratio in (None, r)]
            readers.append(replace(reader, own=tuple(peers)))

    graded = sample_roles(policy, config, folder, asked_problems, samples, readers, display)
    write_report(config, folder, readers, graded, display)
    return graded


def validate_probe(
    config: Config,
    problems: int,
    samples: int,
    ratios: Sequence[float],
    shown: Sequence[ContextSource] = ("own",),
) -> None:
    """Refuse what cannot be probed, before the model is loaded. Raises ConfigError."""
    require_paths(config)
    for name, value in (("problems", problems), ("samples", samples)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    names = {name_of("own", ratio) for ratio in ratios}
    if not all(0 <= ratio < 1 for ratio in ratios) or len(names) < max(len(ratios), 1):
        raise ConfigError(
            "ratios must be distinct mask ratios in [0, 1), at least one, got "
            f"{format_value(list(ratios))}"
        )
    if not shown or len(set(shown)) < len(shown) or not set(shown) <= set(get_args(ContextSource)):
        raise ConfigError(
            f"shown must be some of {', '.join(get_args(ContextSource))}, each once, got "
            f"{format_value(list(shown))}"
        )

    if not config.algorithm.needs_context:
        raise ConfigError(
            f"train.method {format_value(config.train.method)} has no teacher to probe; "
            f"pass --train.method distillation"
        )
    if config.context.source != "own":
        raise ConfigError(
            f"what the probe shows is not the recipe's choice, and context.source is "
            f"{format_value(config.context.source)}; pass --context.source own, and name "
            "controls with "
            f"--context own {config.context.source}"
        )


def first_problems(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """The first ``count`` problems in training's order; all where there are fewer."""
    indices = batch_indices(len(problems), min(count, len(problems)), 0, seed)
    return [problems[i] for i in indices]


def name_of(shown: ContextSource, ratio: float | None) -> str:
    """The teacher's name: ``teacher@0.3`` is shown the solution with 30 % hidden.

    A control says what it is shown: ``teacher-other@0.3``, ``teacher-answer``.
    """
    control = "" if shown == "own" else f"-{shown}"
    return f"teacher{control}" + ("" if ratio is None else f"@{ratio:g}")


def student(policy: Policy, problems: Sequence[Problem]) -> ProbeRole:
    """The deployment prompt, in the student's thinking mode."""
    thinking = policy.student_thinking
    prompts = deployment_prompts(policy, problems, thinking=thinking)
    return ProbeRole(STUDENT, thinking, shown=None, visible=0.0, prompts=prompts)


def teacher(
    policy: Policy,
    config: Config,
    problems: Sequence[Problem],
    ratio: float | None,
    shown: ContextSource = "own",
    candidates: Sequence[Problem] = (),
) -> ProbeRole:
    """The teacher's prompt as training writes it (``paint.algorithms.paint``), in its mode.

    Args:
        ratio: hidden share of a solution; None for what is shown whole.
        shown: what stands for the problem's solution.
        candidates: problems whose solutions and answers a control may show.

    Raises:
        DataError: a control asks for another problem, or another answer, and there is none.
    """
    options = replace(config.context, source=shown)
    views = {
        p.id: build_teacher_prompt(
            policy, options, candidates, p, ratio or 0.0, derive_seed(config.train.seed, p.id)
        )
        for p in problems
    }
    seen = [answer_is_visible(p, views[p.id].context or "") for p in problems]
    prompts = {name: view.prompt for name, view in views.items()}

    what = "solution" if shown == "own" else LABELS[shown]
    if ratio is not None:
        what += f", {ratio:g} hidden ({options.placement})"
    if shown != "none" and options.wording != "as_shown":
        what += f", announced as {options.wording}"
    visible = sum(seen) / len(problems)
    return ProbeRole(name_of(shown, ratio), policy.teacher_thinking, what, visible, prompts)


def answer_is_visible(problem: Problem, context: str) -> bool:
    """Whether a context holds the solution's boxed answer, or the gold one where nothing is boxed.

    In any spelling, as a whole number or word (`latex.contains`), and wherever it stands: a small
    number may be there by chance.
    """
    answer = normalize(boxed(problem.solution) or problem.answer)
    return answer != "" and contains(normalize(context), answer)


def sample_roles(
    policy: Policy,
    config: Config,
    folder: Path,
    problems: Sequence[Problem],
    samples: int,
    readers: Sequence[ProbeRole],
    display: Display,
) -> dict[str, GradedSamples]:
    """The graded samples of every reader; what is stored in ``folder`` is not asked again.

    Raises:
        StoreError: the folder holds a probe of another setting.
    """
    sampling, seed = sampling_from(config.rollout), config.train.seed
    tasks = [
        EvalTask(
            folder / reader.name / PROBLEMS,
            problems,
            reader.prompts,
            SamplingProtocol(samples, reader.thinking, sampling, seed, reader.shown),
        )
        for reader in readers
    ]
    with (
        collect_samples(policy, config.model, config.rollout, tasks, folder, display) as stores,
        find_grader(config.grading.grader, deadline=config.grading.deadline) as grader,
    ):
        return {
            reader.name: grade(store, grader, display)
            for reader, store in zip(readers, stores, strict=True)
        }


def write_report(
    config: Config,
    folder: Path,
    readers: Sequence[ProbeRole],
    graded: Mapping[str, GradedSamples],
    display: Display,
) -> None:
    """Write summary.json and summary.md to ``folder``, and print the table with how to read it."""
    pairs = list(control_differences(readers, graded))
    sheets, reading = [table(readers, graded)], legend(config)
    if pairs:
        sheets.append(control_difference_table(pairs))
        reading += (
            " What a control reaches, a teacher gains by other things than what the problem's "
            "solution says; with no reference it reads the student's prompt in its own thinking "
            "mode."
        )
    visible = {reader.name: reader.visible for reader in readers}
    figures: dict[str, Any] = summary_json(
        {name: {PROBLEMS: samples} for name, samples in graded.items()}
    )
    figures["answer_visible_frac"] = visible
    figures["beside_own"] = [
        {
            "policy": name,
            "less": own,
            "difference": found.difference.table(),
            "p_value": found.p_value,
            "detectable": found.detectable,
        }
        for name, own, found in pairs
    ]

    write_summary(folder, figures, f"{markdown(sheets)}\n{reading}\n")
    print_sheets(display.console, sheets)
    display.note(f"{reading}\nwritten to {folder}: summary.json, summary.md")


def table(readers: Sequence[ProbeRole], graded: Mapping[str, GradedSamples]) -> Sheet:
    """A row for each reader: score, paired difference, length, truncated share, visible answers."""
    base = graded[STUDENT]
    rows = []
    for reader in readers:
        samples, is_teacher = graded[reader.name], reader.name != STUDENT
        difference = compare([base.correct], [samples.correct]).difference
        rows.append(
            [
                reader.name,
                avg_at_k(samples.correct).points(),
                difference.points(sign=True) if is_teacher else "",
                f"{samples.tokens.mean():,.0f}",
                f"{100 * samples.truncated.mean():.1f}",
                f"{100 * reader.visible:.1f}" if is_teacher else "",
            ]
        )

    title = f"Before training: {len(base.problems)} training problems, in % with 95 % interval"
    return Sheet(title, [column.format(k=base.correct.shape[1]) for column in COLUMNS], rows)


def control_differences(
    readers: Sequence[ProbeRole], graded: Mapping[str, GradedSamples]
) -> Iterator[tuple[str, str, Comparison]]:
    """Each control, each teacher that it is held against, and the control's score less that one's.

    Problem by problem.
    """
    for reader in readers:
        for own in reader.own:
            yield (
                reader.name,
                own,
                compare([graded[own].correct], [graded[reader.name].correct]),
            )


def control_difference_table(pairs: Sequence[tuple[str, str, Comparison]]) -> Sheet:
    """A row for each control and teacher that sees the own solution."""
    rows = [
        [name, own, found.difference.points(sign=True), f"{found.p_value:.4f}"]
        for name, own, found in pairs
    ]
    title = "Controls less the problem's own solution, in points with 95 % interval"
    return Sheet(title, ["", "less", "difference", "p"], rows)


def legend(config: Config) -> str:
    """What the table says, and what would mislead."""
    options, thinking = config.rollout, {True: "on", False: "off"}
    return (
        "Training moves the student towards the teacher: where the teacher answers no better, "
        "there is little to gain. Where the answer is visible, it may be copied; that difference "
        "is no measure of what can be learnt. Answers are drawn as rollouts are (temperature "
        f"{options.temperature:g}, top-p {options.top_p:g}, top-k {options.top_k}); one that is "
        f"cut, at {options.max_new_tokens:,} tokens, is wrong: where many are cut, raise "
        "--rollout.max-new-tokens first. Thinking is "
        f"{thinking[config.model.student_thinking]} in the student's prompt and "
        f"{thinking[config.model.teacher_thinking]} in the teacher's."
    )
