import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe
from paint.config.schema import Config
from paint.core.demo_files import model_path, problems_path
from paint.core.errors import ConfigError, PaintError, wrap_errors
from paint.core.hub import local_file
from paint.core.settings import within
from paint.data.problems import read_problems
from paint.data.readers import is_on_hub
from paint.evaluation.defaults import training_tokens
from paint.inference.vllm.process import gpu_environment, server_command
from paint.resolve import plan_report
from paint.resolve.check import Resolved, enable_servers
from paint.resolve.plan import LongestRows, Machine, Plan, make_plan, server_of

PORT = 8000  # of the first server


def plan(
    recipe: arguments.AnyRecipe,
    *,
    gpus: Annotated[int, *within("[0, 1024]")] = 1,
    memory: Annotated[float | None, *within("[1, 10000]")] = None,
    servers: bool = False,
    **sections: arguments.Sections,
) -> Plan:
    """Print an estimate of memory use and the split of GPUs between training and serving.

    The estimate comes from the model's config.json: no weights are loaded, and no GPU is needed
    (docs/how-to/large-models.md). Where problems and model are local, the longest rows are
    measured; else a prompt has data.max_prompt_tokens.

    Example: paint plan demo-paint --gpus 0

    Args:
        gpus: GPUs of the machine, in [0, 1024]; 0 is a laptop's CPU.
        servers: Print the commands of vLLM servers, too, one on each GPU or group of them: on other
            machines they serve a run that has their addresses (rollout.urls).
        memory: Memory of each GPU in GB, in [1, 10000]. None: 80, and 16 of a laptop.

    Returns:
        The plan: ``memory.peak`` are bytes of a GPU that trains, and ``fits`` is whether the GPU
        has them.

    Raises:
        ConfigError: the model has no config.json, or layers that a plan does not know.
    """
    from paint.core.display import Display

    _, run = configure(open_recipe(recipe).config, Path(), sections)
    if gpus > 1:
        run = enable_servers(run)  # as `paint train --gpus` does
    memory_bytes = 0.0 if memory is None else memory * 1e9
    run = replace(run, longest=_longest_rows(run))
    made = make_plan(run, Machine(gpus, memory_bytes))
    servers_text = _server_lines(run, made) if servers else []
    Display().note("\n".join([*plan_report.lines(made), *servers_text]))
    return made


def _server_lines(run: Resolved, made: Plan) -> list[str]:
    config = run.config
    if not made.gpus or not enable_servers(run).engine.is_remote:
        return []
    size, longest = server_of(made).gpus, max_model_len(config)
    lines = ["", "servers  for ranks on other machines; set VLLM_API_KEY here and there"]
    for number in range(made.gpus // size):
        gpus = ",".join(map(str, range(number * size, (number + 1) * size)))
        model, rollout, port = config.model, config.rollout, PORT + number
        command = server_command(
            model, rollout, port, max_model_len=longest, gpus=gpus, host="0.0.0.0"
        )
        variables = gpu_environment(gpus) | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        pins = " ".join(f"{name}={value}" for name, value in variables.items())
        lines.append(f"  {pins} {shlex.join(command)}")
    return lines


def max_model_len(config: Config) -> int:
    """Return the longest sequence of a training, at most the longest row of the model."""
    from transformers import AutoConfig

    from paint.resolve.structure import position_limit  # it imports torch

    tokens = training_tokens(config)
    file = local_file(model_path(config.model.path), "config.json")
    if file is None:  # of a model elsewhere, its loading tells
        return tokens
    with wrap_errors(file, ConfigError, "it must describe a model that transformers knows"):
        # False: by default, transformers may ask on the terminal whether to run code.
        model_config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
    return int(min(tokens, position_limit(model_config)))


def _longest_rows(run: Resolved) -> LongestRows | None:
    from paint.core.display import Display

    config = run.config
    data, model = map(problems_path, config.data.paths), Path(model_path(config.model.path))
    if not config.data.paths or any(map(is_on_hub, data)) or not model.is_dir():
        return None
    # They import transformers, which takes seconds.
    from paint.models.policy import load_tokenizer
    from paint.training.row_prompts import measure_longest

    display = Display()
    try:
        with display.working("measuring the longest rows"):
            problems = read_problems(config.data, needs=run.needed_fields).problems
            return measure_longest(run, problems, load_tokenizer(config.model.path))
    except PaintError as error:
        display.warn(f"the rows are not measured: {error}")
        return None
