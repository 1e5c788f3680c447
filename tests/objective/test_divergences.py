"""The Divergence contract: built-in records, and one from outside of the package."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extensions.chi_squared import chi_squared
from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics, read_run
from paint.core.errors import ConfigError
from paint.objective.divergences import DIVERGENCES, Divergence, divergence_name, find_divergence
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import paint_loss, require_slope
from paint.objective.loss_options import Objective
from runs import train

SPEC = "extensions.chi_squared:chi_squared"
NAMED = [d for d in [*DIVERGENCES.values(), chi_squared] if not d.is_sampled]


@pytest.mark.parametrize("divergence", NAMED, ids=lambda d: d.name)
def test_divergence_slope_is_derivative_and_evaluate_has_both(divergence: Divergence) -> None:
    torch.manual_seed(0)
    log_p, log_q = torch.randn(2, 4, 9, dtype=torch.float64).log_softmax(-1)
    log_q = log_q.clone().requires_grad_()
    term = divergence.term(log_p.exp(), log_p, log_q.exp(), log_q)
    (expected,) = torch.autograd.grad(term.sum(), log_q)
    with torch.no_grad():
        found = divergence.slope(log_p.exp(), log_p, log_q.exp(), log_q)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    p, q = log_p.exp(), log_q.exp()
    whole = divergence.evaluate(log_p.clone(), log_q.detach().clone())
    assert all(map(torch.equal, whole, (term, found, p, q)))


@pytest.mark.parametrize("clip", [0.06, 1.0])
def test_fused_loss_of_outside_divergence_equals_reference(clip: float) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 40, dtype=torch.float64)
    student = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(8, 6, dtype=torch.float64)
    logits = head(student), head(teacher).detach()
    reference = paint_loss(*logits, [5, 3], divergence=chi_squared, clip=clip).value
    inputs = student, teacher, head, [5, 3]
    fused = fused_paint_loss(*inputs, divergence=SPEC, clip=clip, chunk_tokens=4).value
    torch.testing.assert_close(fused, reference, rtol=1e-12, atol=1e-12)
    found, expected = (torch.autograd.grad(value, student)[0] for value in (fused, reference))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_find_divergence_name_and_object_give_same_record() -> None:
    assert find_divergence(SPEC) is chi_squared
    assert divergence_name(chi_squared) == SPEC
    assert divergence_name(DIVERGENCES["jsd"]) == "jsd"
    local = replace(chi_squared, name="local")  # no module holds it under this name
    assert find_divergence(divergence_name(local)) is local


@dataclass(frozen=True)
class ScaleOptions:
    scale: float = 1.0


def scaled(options: ScaleOptions) -> Divergence:
    term = lambda *given: options.scale * plain(*given)  # noqa: E731
    return Divergence("scaled", term, slope=lambda p, *_: -options.scale * p)


def test_find_divergence_of_a_functions_own_name_takes_other_options_again() -> None:
    one = torch.ones(1)
    for scale in (1.0, 5.0):
        found = find_divergence(f"{__name__}:scaled", table={"scale": scale})
        Objective(divergence=found)
        assert found.slope(one, one, one, one).item() == -scale


def test_objective_kernels_of_outside_divergence_are_refused() -> None:
    kernels = Objective(impl="triton", divergence=DIVERGENCES["jsd"])
    with pytest.raises(ConfigError, match=rf"^objective\.impl must .*{SPEC}"):
        replace(kernels, divergence=chi_squared)


def plain(p: torch.Tensor, log_p: torch.Tensor, q: torch.Tensor, log_q: torch.Tensor) -> Any:
    return p * (log_p - log_q)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "where p is nearly 1": ({"slope": lambda p, *_: torch.where(p > 0.999, p, -p)}, "derivative"),
    "where q is nearly 1": (
        {"slope": lambda p, _, q, __: torch.where(q > 0.999, p, -p)},
        "derivative",
    ),
    "shape": ({"term": lambda *given: plain(*given).sum(-1)}, "not one finite number"),
    "in place": ({"slope": lambda p, *_: -p.mul_(2)}, "derivative|changes its arguments"),
}


@pytest.mark.parametrize("case", WRONG)
def test_require_slope_other_than_derivative_is_refused(case: str) -> None:
    changes, message = WRONG[case]
    right = Divergence("mine", plain, slope=lambda p, *_: -p)
    require_slope(right)
    with pytest.raises(ConfigError, match=rf"divergence '?mine.*({message})"):
        require_slope(replace(right, **changes))


def test_train_divergence_object_equals_one_that_a_recipe_names(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    text = find_recipe("demo-paint").read_text()
    path.write_text(f'{text}\n[objective]\ndivergence = "{SPEC}"\n')
    recipe = read_recipe(path).changed("train", steps=1, batch_size=4)
    # Of another name, and in no module: another record than the one that the name finds.
    name = divergence_name(replace(chi_squared, name="object"))
    losses = []
    for number, config in enumerate([recipe, recipe.changed("objective", divergence=name)]):
        run = tmp_path / str(number)
        train(config, run)
        losses.append([row["loss"] for row in read_metrics(run)])
        assert read_run(run).objective.divergence == config.objective.divergence
    assert SPEC == recipe.objective.divergence != name
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1
    assert min(losses[0]) > 0
