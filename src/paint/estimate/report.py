"""Text of a memory plan: the output of `paint plan` and the start line of a run."""

from paint.estimate.plan import USABLE, Plan, gb, peak_phase, server_of


def start_line(plan: Plan) -> str:
    """The memory plan in one line, which a run prints when it starts."""
    memory = plan.memory
    parts = {
        "base": memory.layers + memory.ends + memory.gathered,
        "trained weights": memory.adapters + memory.gradients + memory.optimizer,
        "teacher copy": memory.copy,
        "kept keys and values": memory.kept,
    }
    resident = ", ".join(f"{name} {gb(value)}" for name, value in parts.items() if value)
    where = ""
    if plan.split.trainers > 1:
        where = f" on each of {plan.split.trainers} ranks"
    return (
        f"plan, an estimate: at most {gb(memory.peak)} of {gb(plan.capacity)} GB to train"
        f"{where} ({resident}; {peak_phase(memory)}); fits: {_fit_words(plan)}; "
        f"{_micro_batch_words(plan)}"
    )


PHASES = {
    "rollout": "cache of the local engine",
    "teacher forward": "working memory of the teacher's pass",
    "loss": "saved by the student's pass, and a chunk's logits",
    "backward": "saved, and working memory of the backward pass",
    "update": "sums over ranks, and the optimizer step",
}
"""What needs memory in each phase of a step."""


def lines(plan: Plan) -> list[str]:
    """The memory plan as lines of text."""
    config, shape, rows = plan.config, plan.shape, plan.rows()
    text = [
        f"{config.model.path} on {_machines(plan)}: an estimate, nothing was loaded",
        "",
        f"model    {shape.layers} layers, {shape.hidden:,} wide, {shape.parameters / 1e9:,.3g} B "
        f"weights in {config.model.dtype}; {_trained_weights(plan)}",
        f"GPUs     {_uses(plan)}: {plan.split.reason}",
        f"rows     micro-batches of {rows.rows}; prompts of {rows.prompt:,} tokens (student, "
        f"assumed) and {rows.teacher_prompt:,} (teacher, at most), completions of at most "
        f"{rows.completion:,}",
        "",
        f"GB on each training GPU, {_micro_batch_words(plan)}",
        *_memory_lines(plan),
        "",
    ]
    if plan.split.servers:
        text += [_server_words(plan), ""]
    text.append(f"fits     {_fit_words(plan)}")
    return text


def _memory_lines(plan: Plan) -> list[str]:
    """A line for each part of the memory, the peak and what is available."""
    memory = plan.memory
    resident = {
        "base: layers": memory.layers,
        "base: embedding and head": memory.ends,
        "one matrix, unrounded": memory.gathered,
        "adapters": memory.adapters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "teacher copy": memory.copy,
        "keys and values that the local engine keeps": memory.kept,
    }
    names = {}
    if plan.shards > 1:
        names["base: layers"] = f"base: layers, 1 of {plan.shards} parts"
        names["one matrix, unrounded"] = "two layers, gathered"
    text = []
    for name, value in resident.items():
        if value:
            text.append(f"  {names.get(name, name):66}{gb(value):>8}")
    for phase, value in memory.phases.items():
        purpose = PHASES[phase]
        if phase == "loss":
            purpose += f" ({gb(memory.logits)})"
        if value:
            text.append(f"  + {f'{phase}: {purpose}':64}{gb(value):>8}")
    peak = max(memory.phases, key=memory.phases.__getitem__)
    available = f"available, {USABLE:.0%} of the memory"
    if plan.split.shared:
        available += " less a server's"
    text.append(f"  {f'peak, in the phase {peak}':66}{gb(memory.peak):>8}")
    text.append(f"  {available:66}{gb(plan.headroom):>8}")
    return text


def _machines(plan: Plan) -> str:
    if not plan.gpus:
        machine = "a laptop's CPU"
    else:
        machine = f"{plan.gpus} x {plan.capacity / 1e9:.0f} GB"
    if plan.nodes > 1:
        return f"{plan.nodes} x {machine}"
    return machine


def _trained_weights(plan: Plan) -> str:
    model = plan.config.model
    if model.train_mode != "lora":
        return "all weights are trained"
    millions = plan.shape.adapters(model.lora_rank, model.lora_targets) / 1e6
    return f"adapters of rank {model.lora_rank}: {millions:,.3g} M"


def _uses(plan: Plan) -> str:
    split = plan.split
    if split.shared and split.trainers == 1:
        return "1 serves and trains"
    if split.shared:
        return f"{split.trainers} serve and train"
    if split.servers:
        return f"{split.trainers} to train + {split.servers} to serve"
    return f"{split.trainers} to train"


def _micro_batch_words(plan: Plan) -> str:
    train, model = plan.chosen.train, plan.chosen.model
    checkpointing = "on" if model.gradient_checkpointing is True else "off"
    return (
        f"micro-batches of at most {train.row_limit} rows and {train.token_limit:,} tokens, "
        f"gradient checkpointing {checkpointing}"
    )


def _server_words(plan: Plan) -> str:
    server = server_of(plan)
    text = f"server   {plan.server_share:.0%} of the memory"
    if server.gpus > 1:
        text += f" on {server.gpus} GPUs (--tensor-parallel-size {server.gpus})"
    text += f": weights and adapters {gb(server.weights)}, "
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
    return f"no, {gb(-left)} GB too many with the longest rows"
