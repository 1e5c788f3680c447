"""An exported checkpoint is the checkpoint: elsewhere, in its card, and on the hub."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import peft
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import paint
from conftest import logits_alone
from fake_hub import fake_hub
from paint.config.run_folder import RunError, checkpoint_of
from paint.config.schema import ConfigError, EvaluationConfig
from paint.core.demo_files import MODEL
from paint.core.storage import SUMS, CorruptFileError, verify_checksums, write_sums
from paint.evaluation.evaluate import resolve_targets
from paint.evaluation.store import StoreError
from paint.lab.publish import card
from paint.lab.publish import export as export_module
from paint.lab.publish.export import ExportError
from paint.models.exports import Rounding, export_adapter
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.weights import load_trained, trained_in
from real_vllm import needs_vllm, scored_by, serving


@pytest.fixture(scope="module")
def checkpoint(run: Path) -> Path:
    """The run's last one; its first has weights of its own."""
    return checkpoint_of(run)


@pytest.fixture(scope="module")
def student(run: Path, checkpoint: Path) -> Policy:
    """The policy with the checkpoint's adapter, moved by training alone."""
    policy = load_policy(paint.load_run(run).config.model, seed=0)
    load_trained(policy, trained_in(checkpoint, "lora"))
    return policy


PROBLEM = "Start at $5$ and apply $+2, \\times 3$ modulo $100$."
ANSWER = "We get $5+2 \\equiv 7\\times 3 \\equiv 21$."


def log_probs(logits: Tensor, ids: list[int]) -> Tensor:
    return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]


@pytest.fixture(scope="module")
def scored(student: Policy) -> tuple[list[int], list[int], Tensor]:
    """A prompt, a completion, and the checkpoint's log-probs of it."""
    prompt, ids = student.student_prompt(PROBLEM), student.solution_ids(ANSWER)
    with torch.no_grad():
        return prompt, ids, log_probs(student.lm_head(student.hidden_states([prompt], [ids])), ids)


@pytest.mark.parametrize("merged", [False, True])
def test_export_loads_elsewhere_and_answers_as_checkpoint(
    run: Path, scored: tuple[list[int], list[int], Tensor], merged: bool, tmp_path: Path
) -> None:
    prompt, ids, expected = scored
    folder = paint.export(run, tmp_path / "out", merged=merged)
    kind = AutoModelForCausalLM if merged else peft.AutoPeftModelForCausalLM
    both = (kind, folder), (AutoModelForCausalLM, MODEL)
    models = [of.from_pretrained(place, dtype="float32") for of, place in both]
    with torch.no_grad():
        found, untrained = (log_probs(logits_alone(m, prompt, ids), ids) for m in models)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (untrained - expected).abs().max() > 1e-2
    asked, tokenizer = {"role": "user", "content": PROBLEM}, AutoTokenizer.from_pretrained(folder)
    assert PROBLEM in tokenizer.apply_chat_template([asked], tokenize=False)
    own = json.loads((MODEL / "generation_config.json").read_text())
    assert json.loads((folder / "generation_config.json").read_text()) == own


@pytest.mark.slow
@needs_vllm
def test_export_in_vllm_answers_as_checkpoint(
    run: Path, checkpoint: Path, scored: tuple[list[int], list[int], Tensor], tmp_path: Path
) -> None:
    """One server has the merged model, and on top of it the adapter, whose updates count twice."""
    prompt, ids, expected = scored
    merged = paint.export(run, tmp_path / "merged", merged=True)
    adapter = paint.export(run, tmp_path / "adapter")
    flags = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"twice={adapter}"]
    with serving(merged, ["--served-model-name", "once", *flags], tmp_path / "log") as url:
        once, twice = (scored_by(url, name, prompt, ids) for name in ("once", "twice"))
    torch.testing.assert_close(torch.tensor(once), expected, rtol=0, atol=1e-3)

    policy = load_policy(replace(paint.load_run(run).config.model, path=str(merged)), seed=0)
    load_trained(policy, trained_in(checkpoint, "lora"))
    with torch.no_grad():
        doubled = log_probs(policy.lm_head(policy.hidden_states([prompt], [ids])), ids)
    torch.testing.assert_close(torch.tensor(twice), doubled, rtol=0, atol=1e-3)
    assert (doubled - expected).abs().max() > 1e-2


def test_export_card_holds_run_and_evaluation(run: Path, tmp_path: Path) -> None:
    folder = paint.export(run, tmp_path / "out", license="apache-2.0")
    written = ModelCard.load(folder / "README.md")
    assert written.data.license == "apache-2.0"
    facts = json.loads((run / "run.json").read_text())
    for fact in (
        "Problem: PROBLEM\n\nPlease reason step by step",
        facts["id"],
        facts["problems"],
        "`model.lora_rank: 64 -> 4`",
        "This model is `step-",
    ):
        assert fact in written.text
    assert str(run) not in written.content
    assert "vllm serve BASE --enable-lora" in written.content  # a folder cannot be served by name
    assert "`BASE` is a folder with the base model" in written.content


def test_find_evaluation_of_other_weights_are_refused(run: Path, tmp_path: Path) -> None:
    adapter = Path(copytree(run / "checkpoints/step-000003/adapter", tmp_path / "adapter"))
    assert card.find_evaluation(run / "validation", adapter).policy == "step-000003"
    shape = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(shape | {"lora_alpha": 9}))
    with pytest.raises(StoreError, match="no samples of"):
        card.find_evaluation(run / "validation", adapter)


def test_export_push_uploads_what_was_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
        paint.export(run, tmp_path / "dry", push="team/first")
        assert not hub.created
        assert "there is no token" in capsys.readouterr().out
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        folder = paint.export(run, tmp_path / "out", push="team/first")
        with pytest.raises(ExportError, match="another/first"):
            paint.export(run, tmp_path / "refused", push="another/first")
    (asked,) = hub.created
    assert (asked["name"], asked["organization"]) == ("first", "team")
    assert asked.get("visibility") == "private" or asked["private"]  # renamed in huggingface_hub 2
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == set(hub.files)
    assert all(hub.files[name] == (folder / name).read_bytes() for name in names)
    assert hub.tokens == {"Bearer hf_secret"}
    assert "# team/first" in (folder / "README.md").read_text()


def test_export_that_fails_leaves_no_folder_and_is_repeated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("paint.lab.publish.export.write_card", end)
        with pytest.raises(KeyboardInterrupt):
            paint.export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    partial = tmp_path / ".out.0123456789abcdef.partial"  # as a kill leaves it
    partial.mkdir()
    (partial / "model.safetensors").touch()
    (tmp_path / "out").mkdir()
    folder = paint.export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [folder]
    assert "adapter_model.safetensors" in verify_checksums(folder, "")
    assert not (folder / "model.safetensors").exists()


PAIRS_AT_ONCE = """
import os, random, signal, sys, time
import paint.lab.publish.export  # what takes seconds, once
from paint.cli import main

run, folder = sys.argv[1:]
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
random = random.Random(77)
for number in range(12):
    pids = []
    for _ in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            os._exit(main(["export", run, f"{folder}/{number}"]))
        time.sleep(random.choice([0, 0.05, 0.1, 0.2]))
    if number % 3 == 2:
        os.kill(pids[random.randrange(2)], signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(number, *ends, file=sys.stderr)
"""


@pytest.mark.slow
def test_exports_at_once_leave_one_complete_folder(run: Path, tmp_path: Path) -> None:
    expected = verify_checksums(paint.export(run, tmp_path / "alone"), "").keys()
    line = [sys.executable, "-c", PAIRS_AT_ONCE, str(run), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True)
    ends = [set(map(int, row.split()[1:])) for row in done.stderr.splitlines() if row[0].isdigit()]
    assert len(ends) == 12, done.stderr
    refusals = [row for row in done.stderr.splitlines() if not row[0].isdigit()]
    for number, both in enumerate(ends):
        folder = tmp_path / str(number)
        assert both <= {0, 2, -9}
        if 0 in both:
            assert verify_checksums(folder, "").keys() == expected
        else:  # killed; the next export takes away what it has left
            assert not folder.exists()
            assert verify_checksums(paint.export(run, folder), "").keys() == expected
    assert all("another process is at work" in row or "exists" in row for row in refusals)
    assert list(tmp_path.glob(".*.partial")) == []


def end(*_: object) -> None:
    raise KeyboardInterrupt


def test_export_that_is_read_as_another_policy_leaves_no_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paint.models.exports.FAR_NATS", -1.0)
    with pytest.raises(PolicyError, match=r"not the trained policy: .* nats a token off"):
        paint.export(run, tmp_path / "out", merged=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("merged", [False, True])
def test_export_that_was_changed_is_not_evaluated(run: Path, tmp_path: Path, merged: bool) -> None:
    folder = paint.export(run, tmp_path / "out", merged=merged)
    for name, text in (("chat_template.jinja", "x"), ("tokenizer_config.json", "")):
        path = folder / name
        before = path.read_text()
        path.write_text(before + text) if text else path.unlink()
        with pytest.raises(CorruptFileError, match=rf"{name}.*(make|delete)"):
            evaluate(folder)
        path.write_text(before)
    assert len(resolve_targets(EvaluationConfig(base=False), [str(folder)])[1]) == 1


def evaluate(folder: Path) -> None:
    """Resolve a target and load its model, as an evaluation begins."""
    model, _ = resolve_targets(EvaluationConfig(), [str(folder)])
    load_policy(model, seed=0)


@pytest.fixture(scope="module")
def damaged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run whose last checkpoint has a NaN, with right checksums."""
    folder = copytree(run, tmp_path_factory.mktemp("damaged") / "run")
    checkpoint = checkpoint_of(folder)
    path = checkpoint / "adapter/adapter_model.safetensors"
    weights = load_file(path)
    next(iter(weights.values()))[0, 0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    listed = [line.split("  ")[1] for line in (checkpoint / SUMS).read_text().splitlines()]
    write_sums(checkpoint, listed)
    rmtree(folder / "validation")  # of the weights before
    return folder


@pytest.mark.parametrize("merged", [False, True])
def test_export_of_weights_that_are_not_finite_is_refused(
    damaged: Path, tmp_path: Path, merged: bool
) -> None:
    with pytest.raises(PolicyError, match=r"step-000003/adapter: .*not finite; .*an earlier"):
        paint.export(damaged, tmp_path / "out", merged=merged)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match=r"not finite; .* delete \S+step-000003 to resume from the"):
        paint.resume(damaged, steps=4)


def test_export_beyond_its_number_format_is_refused(run: Path, tmp_path: Path) -> None:
    folder = copytree(run, tmp_path / "run")
    trained = trained_in(checkpoint_of(folder), "lora")
    weights = load_file(trained / "adapter_model.safetensors")
    next(iter(weights.values()))[0, 0] = 1e5
    save_file(weights, trained / "adapter_model.safetensors", metadata={"format": "pt"})
    export_adapter(trained, tmp_path, torch.bfloat16)
    with pytest.raises(PolicyError, match=r"values beyond those of float16; export it in float32"):
        export_adapter(trained, tmp_path, torch.float16)


@pytest.mark.parametrize(
    ("kept", "error", "is_written", "warnings"),
    [
        (0.95, 0.9, True, 0),
        (0.89, 0.9, True, 1),
        (0.49, 0.9, False, 0),
        (3.7, 1471.0, False, 0),  # the base's rounding is larger than the update
        (float("nan"), float("nan"), True, 0),
    ],
)
def test_export_that_loses_the_update_warns_or_is_refused(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kept: float,
    error: float,
    is_written: bool,
    warnings: int,
) -> None:
    def write(*_: object, **named: object) -> tuple[Rounding, None]:
        return Rounding(kept, error), None

    monkeypatch.setattr(export_module, "_write", write)
    place = tmp_path / "out"
    if is_written:
        paint.export(run, place, merged=True, dtype="bfloat16")
    else:
        remedies = r"export the adapter \(without --merged\), or write float32 \(--dtype float32\)"
        with pytest.raises(ConfigError, match=remedies):
            paint.export(run, place, merged=True, dtype="bfloat16")
    assert place.exists() == is_written
    said = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == warnings
    assert all(f"{kept:.2%}" in line for line in said)
