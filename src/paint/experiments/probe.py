"""``paint advise --answers``: accuracy of teacher and student before training.

Both are the same untrained model; the teacher's prompt also has a part of the solution. Both get
the same problems and seeds: the first problems of the training, with its prompts and sampling. The
difference limits what training can gain. Controls (``context.source``) separate its causes: another
problem's solution, no reference, the right answer alone, a wrong answer. Every sample is stored,
and the same command resumes an interrupted probe.

Not supported: the overlap schedule (mask ratios are fixed here), rationales of the teacher, and the
choice of a mask ratio; all ratios are shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paint.config.recipe import require_paths
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import format_value
from paint.data.contexts import IN_FULL, Contexts
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
from paint.evaluation.intervals import compare
from paint.evaluation.metrics import GradedSamples, avg_at_k
from paint.evaluation.store import write_summary
from paint.evaluation.tables import Sheet, markdown, print_sheets, summary_json
from paint.experiments.ablations import CONTROLS
from paint.grading.math.compare import boxed
from paint.grading.registry import find_grader
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.resolve import resolve_evaluation
from paint.models.policy import Policy
from paint.objective.anchors import contains, normalize
from paint.training.prompt_filter import filter_problems

STUDENT, PROBLEMS = "student", "problems"
COLUMNS = ("", "Avg@{k}", "less the student's", "tokens an answer", "truncated", "answer visible")


@dataclass(frozen=True)
class ProbeRole:
    """The untrained model as student, teacher or control.

    Attributes:
        name: name of its row and folder.
        shown: description of its context, for the record; None for the student.
        visible: share of the problems whose answer its context contains (`answer_is_visible`).
        prompts: the prompt of each problem.
        beside: for a control, names of the teachers that it is compared with: those with the
            problem's own solution and, if the control is masked, the same mask ratio.
    """

    name: str
    thinking: bool
    shown: str | None
    visible: float
    prompts: Prompts
    beside: tuple[str, ...] = ()


def probe(
    config: Config,
    folder: Path,
    *,
    problems: int,
    samples: int,
    ratios: Sequence[float],
    shown: Sequence[str] = ("solution",),
) -> dict[str, GradedSamples]:
    """Sample student and teachers, print and write the table, return graded samples by role.

    With controls in addition to "solution", a second table has their differences to it.

    Args:
        config: config of the training; its rollout section is also the sampling of the probe.
        problems: number of problems, in the order of training; all if there are fewer.
        samples: samples per problem, for the student and each teacher.
        ratios: mask ratios rho of the teacher, each in [0, 1).
        shown: context sources, in the order of the rows. Sources that are masked have one teacher
            per ratio, the others one teacher.

    Raises:
        ConfigError, DataError, EngineError, PolicyError, StoreError: the message has the cause and
            a hint.
        FolderInUse: another process uses the probe's folder.
    """
    validate_probe(config, problems, samples, ratios, shown)
    require_one_process("paint advise")
    display = Display()
    rollout = resolve_evaluation(config.rollout, display, is_full=False)
    config = replace(config, model=base_as_rank1_adapter(config.model), rollout=rollout)

    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    longest = "other" if "other" in shown else "solution"
    sized = replace(config, context=replace(config.context, source=(longest,)))
    trained_on = filter_problems(policy, sized, read_problems(config.data), display)
    first = first_problems(trained_on, problems, config.train.seed)
    name_unparsed(config.data.path, first, display.note)

    prompts = deployment_prompts(policy, first, thinking=policy.student_thinking)
    roles = [ProbeRole(STUDENT, policy.student_thinking, None, 0.0, prompts)]
    for what in shown:
        for ratio in [None] if what in (*IN_FULL, "none") else ratios:
            role = teacher(policy, config, first, ratio, what, trained_on)
            is_control = what != "solution" and "solution" in shown
            beside = [name_of("solution", r) for r in ratios if is_control and ratio in (None, r)]
            roles.append(replace(role, beside=tuple(beside)))

    sampling, seed = sampling_from(config.rollout), config.train.seed
    tasks = [
        EvalTask(
            folder / role.name / PROBLEMS,
            first,
            role.prompts,
            SamplingProtocol(samples, role.thinking, sampling, seed, role.shown),
        )
        for role in roles
    ]
    with (
        collect_samples(policy, config.model, config.rollout, tasks, folder, display) as stores,
        find_grader(config.grading.grader, deadline=config.grading.deadline) as grader,
    ):
        graded = {
            role.name: grade(store, grader, display)
            for role, store in zip(roles, stores, strict=True)
        }
    write_report(config, folder, roles, graded, display)
    return graded


def validate_probe(
    config: Config,
    problems: int,
    samples: int,
    ratios: Sequence[float],
    shown: Sequence[str] = ("solution",),
) -> None:
    """Reject invalid arguments before the model is loaded. Raises ConfigError."""
    validate_arguments(config, problems, samples, ratios, shown)
    if "rollout" in shown:
        raise ConfigError("context rollout needs the rollouts of a training; leave it out here")
    if config.context.source != ("solution",):
        named = " ".join(config.context.source)
        raise ConfigError(
            f"the teacher's answers are sampled with the contexts of --context, and context.source "
            f"is {named}; pass --context.source solution, and --context solution {named}"
        )


def validate_arguments(
    config: Config, problems: int, samples: int, ratios: Sequence[float], sources: Sequence[str]
) -> None:
    """Reject a config without a teacher, and invalid counts, ratios and sources.

    Raises:
        ConfigError: naming the argument.
    """
    require_paths(config)
    for name, value in (("problems", problems), ("samples", samples)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    names = {name_of("solution", ratio) for ratio in ratios}
    if not all(0 <= ratio < 1 for ratio in ratios) or len(names) < max(len(ratios), 1):
        raise ConfigError(
            "ratios must be distinct mask ratios in [0, 1), at least one, got "
            f"{format_value(list(ratios))}"
        )
    if not sources or len(set(sources)) < len(sources):
        raise ConfigError(
            f"context must name context sources, each once, got {format_value(list(sources))}"
        )
    if not config.algorithm.needs_context:
        raise ConfigError(
            f"train.method {format_value(config.train.method)} has no teacher; pass "
            f"--train.method distillation"
        )


def first_problems(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """The first ``count`` problems in training order; all if there are fewer."""
    indices = batch_indices(len(problems), min(count, len(problems)), 0, seed)
    return [problems[i] for i in indices]


def name_of(shown: str, ratio: float | None) -> str:
    """The teacher's name: ``teacher@0.3`` has the solution with 30 % masked.

    A control's name has its context: ``teacher-other@0.3``, ``teacher-answer``.
    """
    control = "" if shown == "solution" else f"-{shown}"
    return f"teacher{control}" + ("" if ratio is None else f"@{ratio:g}")


def teacher(
    policy: Policy,
    config: Config,
    problems: Sequence[Problem],
    ratio: float | None,
    shown: str = "solution",
    candidates: Sequence[Problem] = (),
) -> ProbeRole:
    """A teacher: the prompt of training (``paint.algorithms.paint``), in its thinking mode.

    Args:
        ratio: mask ratio of a solution; None for a context that is not masked.
        shown: the context source.
        candidates: problems whose solutions and answers controls may use.

    Raises:
        DataError: a control needs another problem, or another answer, and there is none.
    """
    options = replace(config.context, source=(shown,))
    contexts, prompts, visible = Contexts(options, candidates), {}, []
    for p in problems:
        seed = derive_seed(config.train.seed, p.id)
        context = contexts.context(contexts.references(p, seed), ratio or 0.0, seed)
        prompts[p.id] = policy.teacher_prompt(p, context.text, complete=context.complete)
        visible.append(answer_is_visible(p, context.text or ""))

    what = "solution" if shown == "solution" else CONTROLS.get(shown, shown)
    if ratio is not None:
        what += f", {ratio:g} hidden ({options.placement})"
    if shown != "none" and options.wording != "as_shown":
        what += f", announced as {options.wording}"
    share = sum(visible) / len(problems)
    return ProbeRole(name_of(shown, ratio), policy.teacher_thinking, what, share, prompts)


def answer_is_visible(problem: Problem, context: str) -> bool:
    """Whether a context contains the solution's boxed answer, or the gold answer without a box.

    The search ignores spelling and matches complete numbers and words (`anchors.contains`) at any
    position, so a small number may match by chance.
    """
    answer = normalize(boxed(problem.solution) or problem.answer)
    return answer != "" and contains(normalize(context), answer)


def write_report(
    config: Config,
    folder: Path,
    roles: Sequence[ProbeRole],
    graded: Mapping[str, GradedSamples],
    display: Display,
) -> None:
    """Write summary.json and summary.md to ``folder``, and print the tables with a legend."""
    pairs = [
        (role.name, beside, compare([graded[beside].correct], [graded[role.name].correct]))
        for role in roles
        for beside in role.beside
    ]
    sheets, text = [table(roles, graded)], legend(config)
    if pairs:
        rows = [
            [name, beside, found.difference.points(sign=True), f"{found.p_value:.4f}"]
            for name, beside, found in pairs
        ]
        title = "Controls less the problem's own solution, in points with 95 % interval"
        sheets.append(Sheet(title, ["", "less", "difference", "p"], rows))
        text += (
            " The score of a control is what a teacher reaches without the content of the "
            "problem's solution; without a reference it reads the student's prompt in its own "
            "thinking mode."
        )
    summary: dict[str, Any] = summary_json(
        {name: {PROBLEMS: samples} for name, samples in graded.items()}
    )
    summary["answer_visible_frac"] = {role.name: role.visible for role in roles}
    summary["beside_solution"] = [
        {
            "policy": name,
            "less": beside,
            "difference": found.difference.table(),
            "p_value": found.p_value,
            "detectable": found.detectable,
        }
        for name, beside, found in pairs
    ]

    write_summary(folder, summary, f"{markdown(sheets)}\n{text}\n")
    print_sheets(display.console, sheets)
    display.note(f"{text}\nwritten to {folder}: summary.json, summary.md")


def table(roles: Sequence[ProbeRole], graded: Mapping[str, GradedSamples]) -> Sheet:
    """One row per role: score, paired difference, length, truncated share, visible answers."""
    base, rows = graded[STUDENT], []
    for role in roles:
        samples, is_teacher = graded[role.name], role.name != STUDENT
        difference = compare([base.correct], [samples.correct]).difference
        rows.append(
            [
                role.name,
                avg_at_k(samples.correct).points(),
                difference.points(sign=True) if is_teacher else "",
                f"{samples.tokens.mean():,.0f}",
                f"{100 * samples.truncated.mean():.1f}",
                f"{100 * role.visible:.1f}" if is_teacher else "",
            ]
        )
    title = f"Before training: {len(base.problems)} training problems, in % with 95 % interval"
    return Sheet(title, [column.format(k=base.correct.shape[1]) for column in COLUMNS], rows)


def legend(config: Config) -> str:
    """Explanation of the table, with its caveats."""
    options, thinking = config.rollout, {True: "on", False: "off"}
    return (
        "Training moves the student towards the teacher: if the teacher answers no better, "
        "there is little to gain. A visible answer may be copied; that difference does not "
        "measure what can be learnt. Samples are drawn as rollouts are (temperature "
        f"{options.temperature:g}, top-p {options.top_p:g}, top-k {options.top_k}); one that is "
        f"truncated, at {options.max_new_tokens:,} tokens, is wrong: if many are truncated, raise "
        "--rollout.max-new-tokens first. Thinking is "
        f"{thinking[config.model.student_thinking]} in the student's prompt and "
        f"{thinking[config.model.teacher_thinking]} in the teacher's."
    )
