"""Loss terms of a completion token by token: values, likeliest tokens, derivatives.

Values are those of paint.objective.loss, the reference, on the logits of a few tokens at a time.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from paint.objective.loss import (
    divergence_terms,
    entropy,
    entropy_ratio,
    finite,
    interpolate,
    paint_loss,
    select,
)
from paint.objective.loss_options import Objective

LIKELIEST = 5
"""Most likely tokens of each distribution per position, in addition to the sampled one."""

CHUNK_LOGITS = 2**25
"""Maximum number of logits of one view in a chunk."""


@dataclass(frozen=True)
class Detail:
    """Loss terms of one completion (n tokens, m entries).

    Its values by token are those of ``Loss``, ``pull`` and

        slope   dD/dz of the sampled token ŷ; if negative, an optimizer step makes it more likely
    """

    values: dict[str, np.ndarray]  # by name (n)
    edges: np.ndarray  # entries of token i are those from edges[i] to edges[i + 1] (n + 1)
    entries: np.ndarray  # token ids: the sampled one, then the others by falling probability (m)
    log_probs: dict[str, np.ndarray]  # under student, teacher, target at the loss's temperature (m)
    terms: np.ndarray  # contribution of each entry to the divergence, before clipping (m)


def detail(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    heads: tuple[nn.Linear, nn.Linear],
    tokens: Tensor,
    options: Objective,
) -> Detail:
    """Compute the loss terms of one completion from both views' hidden states."""
    n, vocabulary = len(tokens), heads[0].out_features
    rows = max(1, CHUNK_LOGITS // vocabulary)
    chunks = [slice(i, i + rows) for i in range(0, n, rows)]

    def logits(chunk: slice) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(student_hidden.dtype, torch.float32)
        with torch.no_grad():
            student, teacher = heads[0](student_hidden[chunk]), heads[1](teacher_hidden[chunk])
        return student.to(dtype), teacher.to(dtype)

    # Selection ranks the entropy ratios of the complete completion, so they are computed first.
    ratios = []
    for chunk in chunks:
        log_probs = [(x / options.temperature).log_softmax(-1) for x in logits(chunk)]
        ratios.append(entropy_ratio(entropy(log_probs[1]), entropy(log_probs[0])))
    selected = select(torch.cat(ratios), [n], options)
    parts = [
        _detail_of_rows(*logits(chunk), tokens[chunk], selected[chunk], options) for chunk in chunks
    ]
    values, entries = (
        {name: torch.cat([part[kind][name] for part in parts]).cpu() for name in parts[0][kind]}
        for kind in (0, 1)
    )
    is_kept = entries["is_kept"]
    return Detail(
        values={name: column.float().numpy() for name, column in values.items()},
        edges=np.cumsum([0, *is_kept.sum(-1).tolist()]),
        entries=entries["ids"][is_kept].numpy(),
        log_probs={
            view: entries[view][is_kept].float().numpy()
            for view in ("student", "teacher", "target")
        },
        terms=entries["terms"][is_kept].float().numpy(),
    )


def _detail_of_rows(
    student_logits: Tensor,
    teacher_logits: Tensor,
    tokens: Tensor,
    selected: Tensor,
    options: Objective,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return values of some tokens with a known selection (n), and their entries (n c)."""
    values: dict[str, Tensor] = {}
    for is_selected in (False, True):
        places = (selected == is_selected).nonzero()[:, 0]
        if not len(places):
            continue

        # All rows selected, or none, so that the reference loss has the values of the step.
        share = 1.0 if is_selected else 0.0
        of_rows = replace(options, top_fraction=share, skip_tokens=0, reduction="token")
        student, sampled = student_logits[places].requires_grad_(), tokens[places]
        loss = paint_loss(student, teacher_logits[places], [len(places)], of_rows, tokens=sampled)
        loss.value.backward()
        assert student.grad is not None
        slope = _of_sampled(student.grad, sampled) * len(places)
        for name, found in {"loss": loss.per_token, **loss.stats, "slope": slope}.items():
            column = values.setdefault(name, student_logits.new_zeros(len(tokens)))
            column[places] = found.detach().to(column)

    with torch.no_grad():
        log_q, log_p = (
            (x / options.temperature).log_softmax(-1) for x in (student_logits, teacher_logits)
        )
        values["pull"] = pull(log_q, log_p, tokens)

        mixed = interpolate(log_p, log_q, options.interpolation_weight)
        target = torch.where(selected[:, None], mixed, log_p)
        terms = divergence_terms(target, log_q, options.divergence, tokens)

        k = min(LIKELIEST, target.shape[-1])
        likeliest = [view.topk(k).indices for view in (log_q, log_p, target)]
        ids = torch.cat([tokens[:, None], *likeliest], dim=-1)
        is_new = ~(ids[:, :, None] == ids[:, None, :]).tril(-1).any(-1)
        rank = target.gather(-1, ids).masked_fill(~is_new, -torch.inf)
        rank[:, 0] = torch.inf
        order = rank.argsort(descending=True, stable=True)
        ids, is_kept = ids.gather(-1, order), is_new.gather(-1, order)
        views = {"student": log_q, "teacher": log_p, "target": target, "terms": terms}
        entries = {name: view.gather(-1, ids) for name, view in views.items()}
    return values, {"ids": ids, "is_kept": is_kept, **entries}


def pull(
    student_log_probs: Float[Tensor, "n v"],
    teacher_log_probs: Float[Tensor, "n v"],
    tokens: Int[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """l_ŷ − Σ_v q_v l_v, where l = log p_T − log q.

    It is the derivative of log q(ŷ) as q moves towards the teacher along q^(1−a) p_T^a, at a = 0.
    """
    log_ratio = finite(teacher_log_probs) - finite(student_log_probs)
    return _of_sampled(log_ratio, tokens) - (student_log_probs.exp() * log_ratio).sum(-1)


def _of_sampled(values: Float[Tensor, "n v"], tokens: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    return values.gather(-1, tokens[:, None])[:, 0]
