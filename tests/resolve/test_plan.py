"""Which GPUs train and which serve, what fits, what is refused, and what is said of it."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paint.cli import main
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError, TrainConfig
from paint.core.extensions import spec_of
from paint.inference.machine import find_machine
from paint.resolve import plan_report as report
from paint.resolve.check import check_config, check_training, resolve
from paint.resolve.memory import Rows, buffered
from paint.resolve.plan import (
    BESIDE,
    SERVER_SHARE,
    STEP,
    LongestRows,
    Machine,
    Plan,
    Split,
    choose_split,
    gb,
    make_plan,
    require_fit,
    server_flag,
    server_flags,
    server_of,
    worst_peak,
)
from paint.resolve.shapes import NoModelError
from tiny_models import tiny_config

DOCUMENT = Path(__file__).parents[2] / "docs/how-to/large-models.md"
RECIPE = read_recipe(find_recipe("paint-qwen3-8b"))
SERVED = RECIPE.changed("rollout", engine="vllm")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def plan_of(config: Config, gpus: int = 1, memory: float = 0.0, split: Split | None = None) -> Plan:
    return make_plan(check_config(config), Machine(gpus, memory), split)


def of_model(path: str, config: Config = SERVED, **changes: object) -> Config:
    return config.changed("model", path=path, **({"dtype": "bfloat16"} | changes))


@pytest.mark.parametrize(
    ("config", "gpus", "server", "expected"),
    [
        (RECIPE, 8, 1, (8, 0, False)),
        (SERVED.changed("rollout", urls=("http://a:1",)), 8, 1, (8, 0, False)),
        (replace(SERVED, train=TrainConfig(method="sft")), 4, 1, (4, 0, False)),
        (SERVED, 1, 1, (1, 1, True)),
        (SERVED.changed("rollout", colocate=True), 8, 1, (8, 8, True)),
        (SERVED, 2, 1, (1, 1, False)),
        (SERVED, 5, 1, (3, 2, False)),
        (SERVED, 3, 2, (1, 2, False)),
        (SERVED, 6, 2, (4, 2, False)),
        (SERVED, 6, 4, (2, 4, False)),
    ],
)
def test_choose_split_half_of_gpus_serve_in_complete_servers_where_the_run_owns_some(
    config: Config, gpus: int, server: int, expected: tuple[int, int, bool]
) -> None:
    split = choose_split(check_config(config), gpus, server=server)
    assert (split.trainers, split.servers, split.shared) == expected


def test_server_of_large_model_takes_fewest_gpus() -> None:
    plan = plan_of(of_model(LLAMA), 8)
    assert server_of(plan).gpus == 4
    assert (plan.split.trainers, plan.split.servers) == (4, 4)
    four = plan_of(of_model(LLAMA), 4)
    assert four.split.shared
    assert four.sleeps
    given = of_model(LLAMA).changed("rollout", server_args="--tensor-parallel-size 8 -x")
    eight = plan_of(given, 8)
    assert server_of(eight).gpus == 8
    assert eight.split.shared


def test_server_flag_reads_arguments_like_vllm() -> None:
    said = "--gpu-memory-utilization 0.4 --a=b --gpu-memory-utilization=0.3 --last"
    config = SERVED.changed("rollout", server_args=said)
    assert server_flag(config.rollout, "--gpu-memory-utilization") == "0.3"
    assert server_flag(config.rollout, "--a") == "b"
    assert server_flag(config.rollout, "--last") is None
    assert server_flag(config.rollout, "--none") is None
    plan = plan_of(config)
    assert not plan.sleeps
    assert plan.headroom == pytest.approx(0.6 * 80e9)
    assert server_flags(plan).utilization == 0.3


def test_plan_cache_holds_rows_of_all_steps_that_are_sampled_at_once() -> None:
    split = Split(2, 0, False, "")
    local = RECIPE.changed("rollout", engine="local").changed("train", batch_size=8)
    plan = plan_of(local, 2, split=split)
    ahead = replace(plan, config=plan.config.changed("rollout", off_policy_steps=3))
    assert ahead.memory.cache == 4 * plan.memory.cache > 0
    served = SERVED.changed("rollout", off_policy_steps=3)
    assert plan_of(served, 2, split=Split(1, 1, False, "")).memory.cache == 0


def planned(config: Config, memory: float, **given: object) -> Plan:
    return plan_of(config.changed("train", **given), memory=memory, split=Split(1, 1, True, ""))


@pytest.mark.parametrize(
    ("model", "memory", "most", "checkpointing"),
    [
        ("1.7B", 80e9, 4 * 9216, False),
        ("4B", 80e9, 4 * 9216, False),
        ("8B", 80e9, 4 * 9216, False),
        ("1.7B", 22e9, None, False),
        ("8B", 40e9, None, False),
        ("8B", 28e9, None, True),
        ("8B", 24e9, STEP, True),  # nothing fits
    ],
)
def test_chosen_micro_batch_has_most_tokens_that_fit(
    model: str, memory: float, most: int | None, checkpointing: bool
) -> None:
    config = of_model(f"Qwen/Qwen3-{model}").changed("train", micro_batch_size=4)
    plan = planned(config, memory)
    chosen = plan.chosen
    tokens = chosen.train.token_limit
    assert chosen.model.gradient_checkpointing == checkpointing
    assert tokens % STEP == 0
    if most is not None:
        assert tokens == most
    else:
        assert worst_peak(plan) <= plan.headroom
        # The shortest prompts let most tokens be the student's.
        shortest = replace(plan.rows(), teacher_prompt=250)
        fit, more = tokens // 1274, (tokens + STEP) // 1274
        assert plan.peak(replace(shortest, rows=max(fit, 1))) <= plan.headroom
        assert plan.peak(replace(shortest, rows=more)) > plan.headroom

    other = of_model(f"Qwen/Qwen3-{model}", gradient_checkpointing=not checkpointing)
    for given in (planned(other, memory), planned(config, memory, micro_batch_tokens=512)):
        assert given.chosen.model.gradient_checkpointing == (
            not checkpointing if given.config.model == other.model else checkpointing
        )
    assert given.chosen.train.micro_batch_tokens == 512


def typical_rows(number: int) -> Rows:
    """Rows with a problem of 250 tokens and a solution of 1,000."""
    return Rows(number, 250, 1250, 1024)


@pytest.mark.parametrize(
    ("model", "memory", "liger", "rows"),
    [
        ("1.7B", 80e9, False, 20),
        ("1.7B", 80e9, True, 24),
        ("8B", 80e9, False, 6),
        ("1.7B", 24e9, False, 4),
        ("1.7B", 141e9, False, 32),  # all of the step
    ],
)
def test_chosen_rows_are_most_that_fit_and_their_tokens_those_of_typical_references(
    model: str, memory: float, liger: bool, rows: int
) -> None:
    plan = replace(planned(of_model(f"Qwen/Qwen3-{model}"), memory), liger=liger)
    train = plan.chosen.train
    assert train.micro_batch_size == rows
    assert train.token_limit >= rows * 2274
    if rows < 32:
        assert train.token_limit - rows * 2274 < STEP
        assert plan.peak(typical_rows(rows)) <= plan.headroom < plan.peak(typical_rows(rows + 1))


def test_chosen_rows_leave_room_for_keys_that_the_local_engine_keeps() -> None:
    config = of_model("Qwen/Qwen3-1.7B").changed("rollout", engine="local")
    local, remote = plan_of(config, memory=80e9), planned(config, 80e9)
    assert (local.memory.kept, remote.memory.kept) == (80e9 / 16, 0)
    rows = local.chosen.train.row_limit
    assert rows < remote.chosen.train.row_limit == 20
    assert local.peak(typical_rows(rows)) <= local.headroom < local.peak(typical_rows(rows + 1))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_plan_with_solutions_has_the_passes_of_sft_beside_those_of_the_method(
    checkpointing: bool,
) -> None:
    config = of_model("Qwen/Qwen3-1.7B", gradient_checkpointing=checkpointing)
    config = config.changed("train", micro_batch_size=4, micro_batch_tokens=9000)
    config = config.changed("rollout", engine="local")
    alone = plan_of(config).memory
    beside = plan_of(config.changed("objective", sft_weight=0.1)).memory
    of_sft = plan_of(config.changed("train", method="sft")).memory
    assert alone.solutions == 0
    assert beside == replace(alone, solutions=beside.solutions)
    assert beside.solutions == max(of_sft.phases["loss"], of_sft.phases["backward"])
    # A prompt and its solution have up to 8,192 tokens, a prompt and a completion 1,274.
    assert beside.peak == beside.resident + beside.solutions > alone.peak


def test_chosen_micro_batch_with_solutions_leaves_room_for_their_passes() -> None:
    config = of_model("Qwen/Qwen3-1.7B").changed("objective", sft_weight_end=0.1)
    plan = planned(config, 80e9)
    train = plan.chosen.train
    assert plan.fits
    assert train.token_limit < planned(of_model("Qwen/Qwen3-1.7B"), 80e9).chosen.train.token_limit
    one_more = config.changed("train", micro_batch_size=train.row_limit)
    one_more = one_more.changed("train", micro_batch_tokens=train.token_limit + 8192)
    checkpointing = plan.chosen.model.gradient_checkpointing
    one_more = one_more.changed("model", gradient_checkpointing=checkpointing)
    assert not planned(one_more, 80e9).fits


def test_plan_of_all_linear_is_that_of_its_layers_by_name(tmp_path: Path) -> None:
    tiny_config("phi3").save_pretrained(tmp_path)
    config = of_model(str(tmp_path), lora_targets=("all-linear",))
    names = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    plan = plan_of(config)
    assert plan.chosen.model.lora_targets == ("all-linear",)
    assert plan.memory.adapters > 0
    assert plan_of(config.changed("model", lora_targets=names)).memory == plan.memory
    with pytest.raises(
        ConfigError, match=r"names q_proj, which is no linear layer .* gate_up_proj"
    ):
        plan_of(config.changed("model", lora_targets=("o_proj", "q_proj")))


def test_chosen_micro_batch_of_cpu_is_constant_and_given_one_kept() -> None:
    chosen = plan_of(RECIPE, 0).chosen
    assert (chosen.train.micro_batch_size, chosen.train.micro_batch_tokens) == (4, 4096)
    assert chosen.model.gradient_checkpointing is False
    given = of_model("Qwen/Qwen3-8B", gradient_checkpointing=True)
    assert plan_of(given, 0).chosen.model.gradient_checkpointing is True


@pytest.mark.parametrize(
    ("config", "memory", "remedy"),
    [
        (of_model("Qwen/Qwen3-8B", gradient_checkpointing=False), 24e9, "lower data.max_prompt_"),
        (of_model(LLAMA, RECIPE), 80e9, "without any row it needs 159 GB: set model.shard"),
    ],
)
def test_require_fit_oversized_plan_is_refused(config: Config, memory: float, remedy: str) -> None:
    plan = plan_of(config, 1, memory, split=Split(1, 0, False, ""))
    with pytest.raises(ConfigError, match=rf"needs about \d+.* GB on each of 1 train.*{remedy}"):
        require_fit(plan)
    assert remedy in report.lines(plan)[-1]


GPU, CPU = Machine(1, 25.3e9), Machine(0, 16e9)


def start(config: Config, machine: Machine) -> str:
    """The line that a run prints of its plan."""
    return resolve(check_training(config.changed("data", path="demo")), machine).notes[-1]


def test_resolve_plans_memory_and_refuses_only_on_gpu() -> None:
    large = of_model("Qwen/Qwen3-14B", RECIPE)
    with pytest.raises(ConfigError, match=r"25\.3 are available .*; without any row"):
        start(large, GPU)
    assert "GB too many" in start(large, CPU)
    with pytest.raises(NoModelError, match=r"owner/none. has no config\.json"):
        start(of_model("owner/none"), GPU)


def test_find_machine_processes_share_memory_of_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16e9))
    cpu = torch.device("cpu")
    assert find_machine(cpu).memory == 16e9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = find_machine(cpu, ranks=4)
    assert (found.gpus, found.memory, found.ranks) == (0, 8e9, 4)


def test_resolve_chooses_micro_batches_and_keeps_given_ones(demo_copy: Path) -> None:
    def sizes(config: Config, machine: Machine) -> tuple[object, ...]:
        config = resolve(check_training(config.changed("data", path="demo")), machine).config
        train = config.train
        checkpointing = config.model.gradient_checkpointing
        return train.micro_batch_size, train.micro_batch_tokens, checkpointing

    assert sizes(RECIPE, Machine(1, 80e9)) == (6, 14_336, False)
    # The local engine may keep 2.5 GB; without, two rows go together.
    assert sizes(RECIPE, Machine(1, 40e9)) == (32, 2_048, False)
    assert sizes(SERVED.changed("rollout", urls=("http://a:1",)), Machine(1, 40e9))[0] == 2
    assert sizes(RECIPE, Machine(1, 28e9))[2] is True
    assert sizes(RECIPE, Machine(0, 80e9)) == (4, 4096, False)
    config = json.loads((demo_copy / "config.json").read_text())
    (demo_copy / "config.json").write_text(json.dumps(config | {"num_experts": 8}))
    # Without a plan.
    assert sizes(of_model(str(demo_copy)), Machine(1, 80e9)) == (4, 4096, False)
    given = of_model(RECIPE.model.path, gradient_checkpointing=True)
    given = given.changed("train", micro_batch_tokens=512)
    assert sizes(given, Machine(1, 80e9)) == (32, 512, True)
    given = given.changed("train", micro_batch_size=3)
    assert sizes(given, Machine(1, 80e9)) == (3, 512, True)


def test_plan_command_documented_output_matches(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"^```\n\$ paint (.*)\n((?:.*\n)*?)```$", DOCUMENT.read_text(), re.M)
    assert len(examples) == 2
    for command, shown in examples:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out == shown


def test_training_memory_matches_table_of_documents() -> None:
    rows = re.findall(r"^\| (\S+/\S+) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for path, cells in rows:
        peaks = []
        for sharded in (False, True):
            for tokens in (1024, 16_384):
                config = of_model(path, shard=sharded, gradient_checkpointing=True)
                config = config.changed("rollout", max_new_tokens=tokens)
                config = config.changed("train", micro_batch_size=1)
                peaks.append(gb(plan_of(config, 8).memory.peak))
        assert cells.split(" | ") == peaks


SHARED = Split(1, 1, True, "")


def served(model: str, memory: float, split: Split | None = SHARED, gpus: int = 1) -> Plan:
    config = read_recipe(find_recipe(f"paint-qwen3-{model}")).changed("rollout", engine="vllm")
    return make_plan(check_config(config), Machine(gpus, memory), split)


@pytest.mark.parametrize(
    ("model", "memory", "utilization", "sequences"),
    [("8b", 80e9, 0.71, 32), ("4b", 40e9, 0.64, 32), ("1.7b", 16e9, 0.46, 12)],
)
def test_server_flags_leave_trainer_its_bytes(
    model: str, memory: float, utilization: float, sequences: int
) -> None:
    plan = served(model, memory)
    flags = server_flags(plan)
    assert (flags.utilization, flags.sequences) == (utilization, sequences)
    assert utilization * memory + plan.memory.resident + BESIDE <= memory
    server = server_of(plan)
    assert server.cache == pytest.approx(utilization * memory - 2e9 - server.weights)
    assert server.fits


def test_server_flags_of_own_gpus_are_servers_default_and_all_requests() -> None:
    plan = served("8b", 80e9, Split(4, 4, False, ""), gpus=8)
    assert server_flags(plan).utilization == SERVER_SHARE
    ahead = plan.config.changed("rollout", batch_size=16, off_policy_steps=2)
    assert server_flags(replace(plan, config=ahead)).sequences == 48


@pytest.mark.parametrize(("model", "memory"), [("4b", 24e9), ("8b", 40e9), ("8b", 16e9)])
def test_server_flags_without_room_are_refused(model: str, memory: float) -> None:
    plan = served(model, memory)
    with pytest.raises(ConfigError, match=r"no room for one row of 9,216 tokens; .*nf4, .*--gpus"):
        server_flags(plan)
    server_flags(replace(plan, capacity=48e9))
    if memory > 16e9:
        server_flags(replace(plan, config=plan.config.changed("model", quantization="nf4")))
        server_flags(replace(plan, split=Split(1, 1, False, "")))


def test_machines_of_documents_match_sizes() -> None:
    """The table of three models on three machines, row by row."""
    machines = {"one H100": (1, 80e9), "one of 24 GB": (1, 24e9), "8 x 80 GB": (8, 80e9)}
    rows = re.findall(r"^\| (\d[\d.]*B) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    wanted = []
    for model in ("1.7B", "4B", "8B"):
        for machine, (gpus, memory) in machines.items():
            plan = served(model.lower(), memory, None, gpus)
            split, config = plan.split, plan.chosen
            try:
                flags = server_flags(plan)
                server = [f"{flags.utilization:.2f}", str(flags.sequences)]
            except ConfigError:
                server = ["refused", "-"]
            cells = [
                machine,
                "shared" if split.shared else f"{split.trainers}+{split.servers}",
                gb(plan.memory.resident),
                gb(worst_peak(plan)),
                f"{config.train.token_limit:,}",
                "on" if config.model.gradient_checkpointing else "off",
                *server,
            ]
            wanted.append((model, " | ".join(cells)))
    assert rows == wanted


def test_plan_takes_the_measured_lengths_of_rows_up_to_the_limit() -> None:
    run = check_config(of_model("Qwen/Qwen3-1.7B").changed("data", path="demo"))
    bound = make_plan(run, Machine(1))
    longest = LongestRows(prompt=90, teacher_prompt=519, reference=300, measured=40, rows=50)
    measured = make_plan(replace(run, longest=longest), Machine(1))
    assert (bound.rows().prompt, bound.rows().teacher_prompt) == (250, 8192)
    assert (measured.rows().prompt, measured.rows().teacher_prompt) == (90, 519)
    assert "519 (teacher, the longest of 40 of 50 rows)" in "\n".join(report.lines(measured))
    assert "8,192 (teacher, at most: data.max_prompt_tokens)" in "\n".join(report.lines(bound))

    limited = run.changed("data", max_prompt_tokens=100)
    assert make_plan(replace(limited, longest=longest), Machine(1)).rows().teacher_prompt == 100
    unknown = replace(longest, teacher_prompt=None)
    assert make_plan(replace(run, longest=unknown), Machine(1)).rows().teacher_prompt == 8192
    sft = run.changed("train", method="sft")
    sft = replace(check_config(sft.config), longest=longest)
    assert make_plan(sft, Machine(1)).rows().completion == 300


class Answers:
    """Answers every turn."""

    def step(self, messages: object, completion: str) -> str:
        return "Go on."


TALKING = of_model("Qwen/Qwen3-8B").changed("conversation", environment=spec_of(Answers))
MEASURED = LongestRows(prompt=90, teacher_prompt=519, reference=300, measured=50, rows=50)


@pytest.mark.parametrize("keeps_turns", [True, False])
def test_plan_of_conversations_has_prompts_up_to_the_limit_in_rows_of_all_turns(
    keeps_turns: bool,
) -> None:
    longest = replace(MEASURED, keeps_turns=keeps_turns)
    run = replace(check_config(TALKING), longest=longest)
    plan = make_plan(run, Machine(2), Split(1, 1, False, ""))
    rows = plan.rows()
    assert (rows.prompt, rows.teacher_prompt, rows.completion) == (8192, 8192, 1024)
    assert (rows.turns, rows.together) == ((8, 1) if keeps_turns else (1, 8))
    assert rows.rows >= rows.together
    assert rows.scored == (8192 if keeps_turns else 1024)
    assert worst_peak(plan) <= plan.headroom
    assert server_of(plan).longest == 9216
    words = "in one row" if keeps_turns else "as up to 8 rows together"
    assert f"the 8 turns of a conversation {words}" in report.lines(plan)[4]
    assert "8,192 tokens (student, of a conversation, at most: data" in report.lines(plan)[4]

    # A conversation of eight rows, in a micro-batch that was planned for single turns.
    alone = replace(check_config(SERVED.changed("model", dtype="bfloat16")), longest=MEASURED)
    before = make_plan(alone, Machine(2), Split(1, 1, False, ""))
    assert not before.chosen.model.gradient_checkpointing
    tight = replace(plan, config=before.chosen)
    peak = tight.peak(replace(rows, rows=rows.together))
    assert (peak > plan.capacity) is not keeps_turns


def test_plan_of_conversations_is_bound_by_positions_and_measured_for_single_prompts() -> None:
    wide = TALKING.changed("data", max_prompt_tokens=100_000)
    rows = plan_of(wide).rows()
    assert (rows.prompt, rows.teacher_prompt) == (40_960 - 1024, 40_960 - 1024)
    # The answer to the only turn is not read, but an environment may begin with any prompt.
    assert plan_of(TALKING.changed("conversation", max_turns=1)).rows().prompt == 8192
    tools = of_model("Qwen/Qwen3-8B").changed("conversation", tools=(spec_of(gb),), max_turns=1)
    single = make_plan(replace(check_config(tools), longest=MEASURED), Machine(1))
    assert (single.rows().prompt, single.rows().teacher_prompt) == (90, 519)
    more = tools.changed("conversation", max_turns=2)
    later = make_plan(replace(check_config(more), longest=MEASURED), Machine(1))
    assert (later.rows().prompt, later.rows().together) == (8192, 2)
    # GRPO has no teacher, and the local engine's cache holds the prompts of late turns.
    grpo = of_model("Qwen/Qwen3-8B", RECIPE).changed("rollout", engine="local")
    talking = grpo.changed("conversation", environment=spec_of(Answers))
    split = Split(1, 0, False, "")
    plans = [plan_of(config, 1, split=split) for config in (grpo, talking)]
    tokens = [sum((p.rows().prompt, p.rows().completion)) for p in plans]
    assert tokens == [250 + 1024, 8192 + 1024]
    held = [plan.memory.cache + plan.memory.kept for plan in plans]
    width = 2 * plans[0].shape.cache
    at_once = plans[0].config.rollout.batch_size
    assert held[1] - held[0] == at_once * width * (buffered(tokens[1]) - buffered(tokens[0]))


def test_plan_of_written_conversations_has_their_turns_together() -> None:
    sft = SERVED.changed("train", method="sft")
    longest = replace(MEASURED, turns=5)
    for keeps_turns, together in ((True, 1), (False, 5)):
        known = replace(longest, keeps_turns=keeps_turns)
        rows = make_plan(replace(check_config(sft), longest=known), Machine(1)).rows()
        assert (rows.prompt, rows.completion, rows.together) == (90, 300, together)
