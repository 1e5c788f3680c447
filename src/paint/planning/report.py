"""A plan as a person reads it: the whole, what a run says as it starts, and a row of a table."""

from collections.abc import Iterator
from dataclasses import replace

from paint.config import Rollout
from paint.plan import Plan, Split, divided, longest_rows, server_share, ways_out, worst
from paint.planning.memory import Server
from paint.planning.units import duration, gb
from paint.planning.work import BANDWIDTH_SHARE, FLOP_SHARE, MEMORY_SHARE


def start_lines(plan: Plan) -> list[str]:
    """What a run says of its plan as it starts, in short."""
    memory = plan.memory
    parts = {
        "base": memory.layers + memory.ends + memory.gathered,
        "what is trained": memory.adapters + memory.gradients + memory.optimizer,
        "the teacher's own": memory.copy,
    }
    said = ", ".join(f"{name} {gb(value)}" for name, value in parts.items() if value)
    where = f" on each of {plan.split.trainers} ranks" if plan.split.trainers > 1 else ""
    return [
        f"plan, an estimate: at most {gb(memory.peak)} of {gb(plan.machine.memory)} GB to train"
        f"{where} ({said}; {worst(memory)}); fits: {_fit_words(plan)}",
        f"plan: a step about {duration(plan.step)} (" + phases_words(plan) + ")",
    ]


def phases_words(plan: Plan) -> str:
    """Seconds by phase; what takes less than a thousandth is left out."""
    least = plan.step / 1000
    shown = {phase: value for phase, value in plan.seconds.items() if value > least}
    return ", ".join(f"{phase} {duration(value)}" for phase, value in shown.items())


def resident_parts(plan: Plan) -> list[tuple[str, float]]:
    """What lies on a training GPU all the time."""
    memory = plan.memory
    layers = f"layers, 1 of {plan.shards} parts" if plan.shards > 1 else "layers"
    return [
        (f"base: {layers}", memory.layers),
        ("base: embedding and head", memory.ends),
        ("two layers, gathered", memory.gathered),
        ("adapters", memory.adapters),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
        ("the teacher's own weights", memory.copy),
    ]


def lines(plan: Plan) -> list[str]:
    """The plan as text."""
    config, shape, split = plan.config, plan.shape, plan.split
    rows = plan.longest
    checkpointed, plain = (
        replace(
            plan, config=replace(config, model=replace(config.model, gradient_checkpointing=on))
        )
        for on in (True, False)
    )
    is_on = config.model.gradient_checkpointing
    text = [
        f"{config.model.path} on {_machine_words(plan)}: an estimate, nothing was loaded",
        "",
        f"model    {shape.layers} layers, {shape.hidden:,} wide, {shape.parameters / 1e9:,.3g} B "
        f"weights in {config.model.dtype}; {trained_words(plan)}",
        f"GPUs     {_split_words(split)}: {split.reason}",
        f"rows     micro-batches of {rows.rows}; prompts of {rows.prompt:,} tokens (student, "
        f"assumed) and {rows.teacher_prompt:,} (teacher, at most), completions of at most "
        f"{rows.completion:,}",
        "",
        f"{'GB on each training GPU, gradient checkpointing':50}{'on' + ' *' * is_on:>8}"
        f"{'off' + ' *' * (not is_on):>8}",
    ]
    for (name, on), (_, off) in zip(
        resident_parts(checkpointed), resident_parts(plain), strict=True
    ):
        if on or off:
            text.append(f"  {name:48}{gb(on):>8}{gb(off):>8}")
    names = {
        "rollout": "rollout: cache of the local engine",
        "teacher forward": "teacher's pass",
        "loss": "saved by the student's pass, and a chunk's logits",
        "backward": "saved, and the backward pass",
        "update": "sums and the optimizer's step",
    }
    for phase, name in names.items():
        on, off = checkpointed.memory.phases[phase], plain.memory.phases[phase]
        if on or off:
            text.append(f"  + {name:46}{gb(on):>8}{gb(off):>8}")
    text += [
        f"  {'peak':48}{gb(checkpointed.memory.peak):>8}{gb(plain.memory.peak):>8}",
        f"  {'room for it':48}{gb(plan.room):>8}{gb(plan.room):>8}",
        f"  {'longest completion that fits, tokens':48}"
        f"{checkpointed.longest_completion:>8,}{plain.longest_completion:>8,}",
        f"  {'longest prompt of the teacher that fits, tokens':48}"
        f"{checkpointed.longest_prompt:>8,}{plain.longest_prompt:>8,}",
        f"  of a chunk's logits: {gb(plan.memory.logits)}",
    ]
    if not plan.sharded and config.model.tuning == "lora" and plan.gpus > 1:
        shared_out = replace(plan, sharded=True)
        text.append(
            f"  with layers divided over the GPUs of a machine (model.shard): peak "
            f"{gb(shared_out.memory.peak)}, longest completion "
            f"{shared_out.longest_completion:,}"
        )
    if server := plan.server:
        text += ["", server_words(plan, server)]

    text += ["", f"fits     {_fit_words(plan)}"]
    if not plan.fits:
        text += [f"         or {way}" for way in ways_out(plan, longest_rows)]
    text += ["", *time_lines(plan), "", *assumptions(plan)]
    return text


def time_lines(plan: Plan) -> list[str]:
    """Seconds of a step by phase, as configured and with the engine elsewhere."""
    text = [f"a step   about {duration(plan.step)}, every completion at its limit: "]
    text[0] += phases_words(plan)
    for title, rollout in engine_variants(plan):
        config = replace(plan.config, rollout=rollout)
        other = replace(plan, config=config)
        other = replace(other, split=divided(other))
        if (other.split.servers, other.split.shared) != (plan.split.servers, plan.split.shared):
            fits = "" if other.fits else ", which does not fit"
            text.append(
                f"         {title} ({_split_words(other.split)}){fits}: {duration(other.step)}, of "
                f"which rollout {duration(other.seconds['rollout'])}; peak "
                f"{gb(other.memory.peak)} of {gb(other.room)} GB"
            )
    return text


def engine_variants(plan: Plan) -> Iterator[tuple[str, Rollout]]:
    """The other places that completions can come from on the same GPUs."""
    rollout = plan.config.rollout
    if not plan.gpus or plan.config.train.method == "sft" or rollout.urls:
        return
    if plan.config.model.tuning == "full":
        return  # servers take adapters
    yield "with the local engine", replace(rollout, engine="local", sleep=False)
    yield "with servers on the same GPUs", replace(rollout, engine="vllm", sleep=True)
    if plan.gpus * plan.nodes > 1:
        yield "with servers on GPUs of their own", replace(rollout, engine="vllm", sleep=False)


def assumptions(plan: Plan) -> list[str]:
    """What the estimate rests on."""
    machine = plan.machine
    speed = (
        f"{machine.flops / 1e12:,.3g} TFLOP/s and {machine.bandwidth / 1e12:,.3g} TB/s a "
        f"{'GPU' if plan.gpus else 'CPU'}, of which {FLOP_SHARE:.0%} and {BANDWIDTH_SHARE:.0%}"
    )
    return [
        f"assumed  {speed}; {MEMORY_SHARE:.0%} of the memory is usable; times leave out launches, "
        f"sampling,",
        "         waiting for the longest completion, padding and grading: floors (docs/plan.md)",
    ]


COLUMNS = ("model", "machine", "completion", "whole", "layers divided", "a step")
"""Of the row that a plan is in Markdown."""


def markdown_row(plan: Plan) -> str:
    """The plan as a row of a table with COLUMNS."""
    name, tokens = plan.config.model.path.split("/")[-1], f"{plan.longest.completion:,}"
    cells = [name, _machine_words(plan), tokens, _cell(plan)]
    chosen, sharded = plan, replace(plan, sharded=True)
    sharded = replace(sharded, split=divided(sharded))
    if sharded.shards > 1:
        cells.append(_cell(sharded))
        chosen = plan if plan.fits else sharded
    else:
        cells.append("-")
    cells.append(duration(chosen.step) if chosen.fits else "-")
    return f"| {' | '.join(cells)} |"


def _cell(plan: Plan) -> str:
    split, peak = plan.split, gb(plan.memory.peak)
    who = f"{split.trainers} + {split.servers}" if split.servers else f"{split.trainers}"
    who = f"{split.trainers}, in turns" if split.shared else who
    if plan.fits:
        return f"{who}: {peak} GB, up to {plan.longest_completion:,}"
    up_to = f", but up to {plan.longest_completion:,}" if plan.longest_completion else ""
    return f"{who}: no, {peak} GB{up_to}"


def server_words(plan: Plan, server: Server) -> str:
    """A server in one line."""
    at_once = server.tokens // max(server.longest, 1)
    fits = (
        f"cache {gb(server.cache)} = {server.tokens:,} tokens, {at_once:,} of the longest rows "
        f"({server.longest:,} tokens) at once"
        if server.fits
        else f"no room for one row of {server.longest:,} tokens: take larger or more GPUs, or "
        f"shorter rows"
    )
    together = f" on {server.gpus} GPUs (--tensor-parallel-size {server.gpus})"
    return (
        f"server   {server_share(plan.config):.0%} of the memory"
        f"{together if server.gpus > 1 else ''}: weights and adapters {gb(server.weights)}, {fits}"
    )


def trained_words(plan: Plan) -> str:
    """What is trained, in words."""
    model = plan.config.model
    if model.tuning == "full":
        return "all are trained"
    millions = plan.shape.adapters(model.lora_rank, model.lora_targets) / 1e6
    return f"adapters of rank {model.lora_rank}: {millions:,.3g} M"


def _machine_words(plan: Plan) -> str:
    gpus = f"{plan.gpus} x {plan.machine.memory / 1e9:.0f} GB" if plan.gpus else "a laptop's CPU"
    return f"{plan.nodes} x {gpus}" if plan.nodes > 1 else gpus


def _split_words(split: Split) -> str:
    if split.shared:
        return "1 serves and trains" if split.trainers == 1 else f"{split.trainers} serve and train"
    if split.servers:
        return f"{split.trainers} to train + {split.servers} to serve"
    return f"{split.trainers} to train"


def _fit_words(plan: Plan) -> str:
    left = plan.room - plan.memory.peak
    if left >= 0:
        return f"yes, with {gb(left)} GB to spare"
    return f"no, {gb(-left)} GB are missing where the longest rows meet"
