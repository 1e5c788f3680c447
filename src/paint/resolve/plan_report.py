"""Text of a memory plan: the output of `paint plan` and the start line of a run."""

from paint.resolve.memory import Rows
from paint.resolve.plan import USABLE, Plan, gb, levers, server_of

RESIDENT = {
    "layers": "base: layers",
    "ends": "base: embedding and head",
    "gathered": "layers or matrix in use, unrounded",
    "adapters": "adapters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "copy": "teacher copy",
    "kept": "keys and values that the local engine keeps",
}
PHASES = {
    "rollout": "cache of the local engine",
    "teacher forward": "working memory of the teacher's pass",
    "loss": "saved by the student's pass, and a chunk's logits",
    "backward": "saved, and working memory of the backward pass",
    "solutions": "saved by their pass, or its backward pass",
    "update": "sums over ranks, and the optimizer step",
}
"""What each resident part of the memory is, and what needs memory in each phase of a step."""


def start_line(plan: Plan) -> str:
    """Whether a run fits, in a few words, which it prints when it starts."""
    ranks = f" on each of {plan.split.trainers} ranks" if plan.split.trainers > 1 else ""
    left = plan.headroom - plan.memory.peak
    fits = "fits" if left >= 0 else f"does not fit: {_fit_words(plan)}"
    return f"memory, an estimate: {gb(plan.memory.peak)} of {gb(plan.capacity)} GB{ranks}; {fits}"


def _limit_words(plan: Plan) -> str:
    longest = plan.longest
    if plan.has_open_prompts:
        return "of a conversation, at most: data.max_prompt_tokens"
    if longest and (longest.teacher_prompt is not None or not plan.algorithm.needs_context):
        return str(longest)
    return "at most: data.max_prompt_tokens"


def lines(plan: Plan) -> list[str]:
    model, shape, rows, split = plan.config.model, plan.shape, plan.rows(), plan.split
    trained = "all weights are trained"
    if model.train_mode == "lora":
        millions = shape.adapters(model.lora_rank, model.lora_targets) / 1e6
        trained = f"adapters of rank {model.lora_rank}: {millions:,.3g} M"
    machine = f"{plan.gpus} x {plan.capacity / 1e9:.0f} GB" if plan.gpus else "a laptop's CPU"
    train = plan.chosen.train
    checkpointing = "on" if plan.chosen.model.gradient_checkpointing is True else "off"
    student = _limit_words(plan) if plan.has_open_prompts else str(plan.longest or "assumed")
    text = [
        f"{model.path} on {machine}: an estimate, nothing was loaded",
        "",
        f"model    {shape.layers} layers, {shape.hidden:,} wide, {shape.parameters / 1e9:,.3g} B "
        f"weights in {model.dtype}; {trained}",
        f"GPUs     {split.trainers} to train, {split.servers} to serve: {split.reason}",
        f"rows     micro-batches of {rows.rows}; prompts of {rows.prompt:,} tokens (student, "
        f"{student}) and {rows.teacher_prompt:,} (teacher, {_limit_words(plan)}), completions of "
        f"at most {rows.completion:,}{_turn_words(rows)}",
        "",
        f"GB on each training GPU, micro-batches of at most {train.row_limit} rows and "
        f"{train.token_limit:,} tokens, gradient checkpointing {checkpointing}",
        *_memory_lines(plan),
        "",
    ]
    if split.servers:
        text += [_server_words(plan), ""]
    text.append(f"fits     {_fit_words(plan)}")
    return text


def _turn_words(rows: Rows) -> str:
    """How the turns of a conversation are rows; "" for single turns."""
    if rows.turns > 1:
        return f"; the {rows.turns} turns of a conversation in one row"
    if rows.together > 1:
        return (
            f"; the {rows.together} turns of a conversation as up to {rows.together} rows together"
        )
    return ""


def _memory_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    table = {}
    for field, name in RESIDENT.items():
        table[name] = getattr(memory, field)
    for phase, value in memory.phases.items():
        table[f"+ {phase}: {PHASES[phase]}"] = value
    table["peak: resident, and the largest phase"] = memory.peak
    table[f"available: {USABLE:.0%} of the memory, less that of a server on it"] = plan.headroom
    text = []
    # What a run does not need has no line.
    for name, value in table.items():
        if value:
            text.append(f"  {name:66}{gb(value):>8}")
    return text


def _server_words(plan: Plan) -> str:
    server = server_of(plan)
    text = (
        f"server   {plan.server_share:.0%} of {server.gpus} x {gb(plan.capacity)} GB: weights and "
        f"adapters {gb(server.weights)}, "
    )
    if not server.fits:
        return text + (
            f"no room for one row of {server.longest:,} tokens: use larger or more GPUs, or "
            f"shorter rows"
        )
    at_once = server.tokens // max(server.longest, 1)
    return text + (
        f"cache {gb(server.cache)} = {server.tokens:,} tokens, {at_once:,} of the longest rows "
        f"({server.longest:,} tokens) at once"
    )


def _fit_words(plan: Plan) -> str:
    left = plan.headroom - plan.memory.peak
    if left >= 0:
        return f"yes, with {gb(left)} GB to spare"
    return f"no, {gb(-left)} GB too many with the longest rows; {levers(plan)}"
