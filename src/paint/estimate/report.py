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
    where = f" on each of {plan.split.trainers} ranks" if plan.split.trainers > 1 else ""
    return (
        f"plan, an estimate: at most {gb(memory.peak)} of {gb(plan.capacity)} GB to train"
        f"{where} ({resident}; {peak_phase(memory)}); fits: {_fit_words(plan)}; "
        f"{_micro_batch_words(plan)}"
    )


def lines(plan: Plan) -> list[str]:
    """The memory plan as lines of text."""
    config, shape, split, memory = plan.config, plan.shape, plan.split, plan.memory
    rows = plan.rows()
    layers = f"layers, 1 of {plan.shards} parts" if plan.shards > 1 else "layers"
    resident = {
        f"base: {layers}": memory.layers,
        "base: embedding and head": memory.ends,
        "two layers, gathered" if plan.shards > 1 else "one matrix, unrounded": memory.gathered,
        "adapters": memory.adapters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "teacher copy": memory.copy,
        "keys and values that the local engine keeps": memory.kept,
    }
    names = {
        "rollout": "cache of the local engine",
        "teacher forward": "working memory of the teacher's pass",
        "loss": f"saved by the student's pass, and a chunk's logits ({gb(memory.logits)})",
        "backward": "saved, and working memory of the backward pass",
        "update": "sums over ranks, and the optimizer step",
    }
    trained = "all weights are trained"
    if config.model.train_mode == "lora":
        millions = shape.adapters(config.model.lora_rank, config.model.lora_targets) / 1e6
        trained = f"adapters of rank {config.model.lora_rank}: {millions:,.3g} M"
    less_server = " less a server's" if split.shared else ""
    peak = max(memory.phases, key=memory.phases.__getitem__)
    machine = f"{plan.gpus} x {plan.capacity / 1e9:.0f} GB" if plan.gpus else "a laptop's CPU"
    machines = f"{plan.nodes} x {machine}" if plan.nodes > 1 else machine
    if split.shared:
        uses = "1 serves and trains" if split.trainers == 1 else f"{split.trainers} serve and train"
    else:
        uses = f"{split.trainers} to train" + f" + {split.servers} to serve" * bool(split.servers)
    text = [
        f"{config.model.path} on {machines}: an estimate, nothing was loaded",
        "",
        f"model    {shape.layers} layers, {shape.hidden:,} wide, {shape.parameters / 1e9:,.3g} B "
        f"weights in {config.model.dtype}; {trained}",
        f"GPUs     {uses}: {split.reason}",
        f"rows     micro-batches of {rows.rows}; prompts of {rows.prompt:,} tokens (student, "
        f"assumed) and {rows.teacher_prompt:,} (teacher, at most), completions of at most "
        f"{rows.completion:,}",
        "",
        f"GB on each training GPU, {_micro_batch_words(plan)}",
        *(f"  {name:66}{gb(value):>8}" for name, value in resident.items() if value),
        *(
            f"  + {f'{phase}: {names[phase]}':64}{gb(value):>8}"
            for phase, value in memory.phases.items()
            if value
        ),
        f"  {f'peak, in the phase {peak}':66}{gb(memory.peak):>8}",
        f"  {f'available, {USABLE:.0%} of the memory' + less_server:66}{gb(plan.headroom):>8}",
        "",
    ]
    if split.servers:
        text += [_server_words(plan), ""]
    text.append(f"fits     {_fit_words(plan)}")
    return text


def _micro_batch_words(plan: Plan) -> str:
    train, model = plan.chosen.train, plan.chosen.model
    is_on = model.gradient_checkpointing is True
    return (
        f"micro-batches of at most {train.row_limit} rows and {train.token_limit:,} tokens, "
        f"gradient checkpointing {'on' if is_on else 'off'}"
    )


def _server_words(plan: Plan) -> str:
    server = server_of(plan)
    fits = (
        f"cache {gb(server.cache)} = {server.tokens:,} tokens, "
        f"{server.tokens // max(server.longest, 1):,} of the longest rows "
        f"({server.longest:,} tokens) at once"
        if server.fits
        else f"no room for one row of {server.longest:,} tokens: use larger or more GPUs, or "
        f"shorter rows"
    )
    together = f" on {server.gpus} GPUs (--tensor-parallel-size {server.gpus})"
    return (
        f"server   {plan.server_share:.0%} of the memory"
        f"{together if server.gpus > 1 else ''}: weights and adapters {gb(server.weights)}, {fits}"
    )


def _fit_words(plan: Plan) -> str:
    left = plan.headroom - plan.memory.peak
    if left >= 0:
        return f"yes, with {gb(left)} GB to spare"
    return f"no, {gb(-left)} GB too many with the longest rows"
