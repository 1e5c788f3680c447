"""Fused PAINT loss from hidden states, chunk by chunk, without storing all logits.

    hidden states -> a chunk's logits, both views -> entropies -> selection -> loss, dloss/dz
                  -> dloss/dhidden

A chunk is as many complete completions as fit, since positions are selected within one completion.
One pass over it takes three matrix products a token (two onto the vocabulary, one back). A
completion that does not fit is processed piece by piece with nothing selected, then its selected
tokens again: 3.09 products a token at the paper's 3 %.

Between the products, ``measure`` and ``differentiate`` are plain torch here, and Triton in
paint.objective.triton_kernels. Logits are never in half precision (its rounding is visible at a
clip of 0.06 nats). There are no second derivatives.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paint.core.errors import PaintError, reason
from paint.objective import loss
from paint.objective.divergences import DIVERGENCES, Divergence, full_name
from paint.objective.loss import Lengths, Loss
from paint.objective.loss_options import PAPER_LOSS, Objective, with_changes

Columns = dict[str, Float[Tensor, "n"]]


class ImplError(PaintError, RuntimeError):
    """The configured implementation cannot run here; the message names one that can."""


class Head(NamedTuple):
    """The linear layer that maps hidden states to logits."""

    weight: Float[Tensor, "v h"]
    bias: Float[Tensor, "v"] | None


class RowWork(NamedTuple):
    """Row-wise functions between the products, in plain torch or in Triton.

    measure may overwrite the logits with values that the differentiate of the same RowWork reads.
    """

    measure: Callable[[Tensor, Tensor | None, float], Columns]
    differentiate: Callable[
        [Tensor, Tensor, Columns, Columns, Tensor, Tensor | None, Tensor | None, Objective],
        Columns,
    ]


# Logits in a block of rows: few enough for a CPU's cache, enough to keep a GPU busy.
CPU_BLOCK, GPU_BLOCK = 2**18, 2**25
# Tokens whose logits are in memory at once. On a CPU, processing selected tokens twice costs no
# measurable time (docs/dev/log.md), and half of the paper's longest completion needs half the
# memory.
CPU_CHUNK, GPU_CHUNK = 512, 1024
# Rows of the head converted at a time if the device cannot multiply the two dtypes.
SLICE = 2**14


def fused_paint_loss(
    student_hidden: Float[Tensor, "n h"],
    teacher_hidden: Float[Tensor, "n h"],
    lm_head: nn.Linear | Float[Tensor, "v h"],
    lengths: Lengths,
    options: Objective = PAPER_LOSS,
    *,
    tokens: Int[Tensor, "n"] | None = None,
    factors: Float[Tensor, "n"] | None = None,
    teacher_lm_head: nn.Linear | Float[Tensor, "v h"] | None = None,
    chunk_tokens: int | None = None,
    **changes: Any,
) -> Loss:
    """Return paint_loss of lm_head(student_hidden), lm_head(teacher_hidden), chunk by chunk.

    Arguments and result are those of paint_loss (paper: Eq. main_loss, Algorithm adaptive_opsd).
    The gradient reaches student_hidden, and the head if it is trained; the teacher gets none.
    teacher_lm_head is a separate head for the teacher, if its head is not the trained one.

    impl, a further option: reference holds all logits; chunked is plain torch; triton needs a GPU
    (or Triton's interpreter); auto is triton on a GPU where the kernels can be built, and chunked
    elsewhere. chunk_tokens bounds the memory (two tensors of chunk_tokens × v in float32) and
    changes nothing else; None: 1,024 on a GPU and 512 elsewhere. float64 states give float64.

    Raises ValueError if views, lengths and heads do not match or an option is out of range;
    TypeError for a head that is not a linear layer or its weight; ImplError if triton cannot run.
    """
    options = with_changes(options, **changes)
    head = _weight_and_bias(lm_head)
    teacher_head = head if teacher_lm_head is None else _weight_and_bias(teacher_lm_head)
    lengths = loss.check_inputs(len(student_hidden), len(teacher_hidden), lengths, tokens, options)
    if len(head.weight) != len(teacher_head.weight):
        raise ValueError(
            "student and teacher must share one vocabulary: lm_head has "
            f"{len(head.weight)} entries, teacher_lm_head {len(teacher_head.weight)}"
        )
    if chunk_tokens is None:
        chunk_tokens = GPU_CHUNK if student_hidden.is_cuda else CPU_CHUNK

    dtype = _wide(student_hidden)
    if options.impl == "reference":
        student_logits, teacher_logits = (
            nn.functional.linear(hidden.to(dtype), w.to(dtype), None if b is None else b.to(dtype))
            for hidden, (w, b) in ((student_hidden, head), (teacher_hidden, teacher_head))
        )
        logits = student_logits, teacher_logits
        return loss.paint_loss(*logits, lengths, options, tokens=tokens, factors=factors)

    hidden, heads = (student_hidden, teacher_hidden), (head, teacher_head)
    return _visit_chunks(hidden, heads, lengths, tokens, factors, chunk_tokens, options)


def _visit_chunks(
    hidden: tuple[Tensor, Tensor],
    heads: tuple[Head, Head],
    lengths: Sequence[int],
    tokens: Tensor | None,
    factors: Tensor | None,
    chunk_tokens: int,
    options: Objective,
) -> Loss:
    """Compute loss and gradients chunk by chunk; hidden and heads are of student and teacher."""
    student_hidden, teacher_hidden = hidden
    weight, bias = heads[0]
    work, _ = choose_row_work(options, student_hidden.device)
    weights = _token_weights(lengths, options, student_hidden)
    scales = weights if factors is None else weights * factors  # of the gradients
    inputs = _learned(hidden=student_hidden, weight=weight, bias=bias)
    gradients = {n: torch.zeros_like(value, dtype=weights.dtype) for n, value in inputs.items()}
    head_is_trained = bool(inputs.keys() - {"hidden"})
    columns: Columns = {}
    buffer = weights.new_empty(2 * min(chunk_tokens, len(weights)), len(weight))

    def visit(where: slice | Tensor, select: Callable[[Tensor], Tensor], *, sign: int = 1) -> None:
        """Write the columns of these tokens, and sign × their gradients."""
        student, teacher = _logits_of_both(
            student_hidden[where], teacher_hidden[where], *heads, buffer
        )
        sampled = None if tokens is None else tokens[where]
        student_view = work.measure(student, sampled, options.temperature)
        teacher_view = work.measure(teacher, sampled, options.temperature)
        ratio = loss.entropy_ratio(teacher_view["entropy"], student_view["entropy"])
        selected = select(ratio)
        slope = _slope_buffer(student, weight) if inputs else None
        metrics = work.differentiate(
            student, teacher, student_view, teacher_view, selected, sampled, slope, options
        )

        metrics |= {"entropy_ratio": ratio, "selected": selected.to(ratio.dtype)}
        metrics |= _named("student", student_view) | _named("teacher", teacher_view)
        for name, values in metrics.items():
            columns.setdefault(name, torch.empty_like(weights))[where] = values
        if slope is not None:
            states, scale = student_hidden[where], sign * scales[where]
            _add_gradients(gradients, where, slope, states, weight, scale)

    with torch.no_grad():
        for first, group in _chunks(lengths, chunk_tokens):
            span = slice(first, first + sum(group))
            if sum(group) <= chunk_tokens:
                visit(span, partial(loss.select, lengths=group, options=options))
            else:
                positions = torch.arange(span.start, span.stop, device=weights.device)
                _visit_pieces(visit, positions, columns, chunk_tokens, options, head_is_trained)
        per_token = columns.pop("per_token")
        if factors is not None:
            per_token = per_token * factors
        value = (weights * per_token).sum()
    value = _KnownGradients.apply(value, tuple(gradients.values()), *inputs.values())  # type: ignore[no-untyped-call]
    return Loss(value, per_token, columns)


def _token_weights(lengths: Sequence[int], options: Objective, hidden: Tensor) -> Tensor:
    weights = loss.token_weights(
        lengths, reduction=options.reduction, skip_tokens=options.skip_tokens
    )
    device = hidden.device
    return weights.to(_wide(hidden)).to(device, non_blocking=device.type != "mps")


def _learned(**inputs: Tensor | None) -> dict[str, Tensor]:
    given = {name: value for name, value in inputs.items() if value is not None}
    is_on = torch.is_grad_enabled()
    return {name: value for name, value in given.items() if value.requires_grad and is_on}


def _named(role: str, view: Columns) -> Columns:
    """Return the statistics of a view by their names in the loss."""
    return {f"{role}_{name}": view[name] for name in ("entropy", "log_prob") if name in view}


def _visit_pieces(
    visit: Callable[..., None],
    positions: Tensor,
    columns: Columns,
    chunk_tokens: int,
    options: Objective,
    head_is_trained: bool,
) -> None:
    """Visit a completion longer than a chunk: the selection needs the ratios of all its pieces."""
    select_none = partial(torch.zeros_like, dtype=torch.bool)
    select_all = partial(torch.ones_like, dtype=torch.bool)
    for piece in positions.split(chunk_tokens):
        visit(piece, select_none)
    chosen = loss.select(columns["entropy_ratio"][positions], [len(positions)], options)
    for piece in positions[chosen].split(chunk_tokens):
        # The second pass overwrites a token's columns and its hidden state's gradient. The head's
        # gradient is a sum over tokens, so subtract the first pass's contribution.
        if head_is_trained:
            visit(piece, select_none, sign=-1)
        visit(piece, select_all)


def _add_gradients(
    gradients: dict[str, Tensor],
    where: slice | Tensor,
    slope: Tensor,
    hidden: Tensor,
    weight: Tensor,
    weights: Tensor,
) -> None:
    """Write the gradient of these tokens' states, and add their head gradient."""
    # Token weights are applied outside of the products: in half precision, the weight of one token
    # in a large batch may round to 0.
    if "hidden" in gradients:
        back = _times_weight(slope, weight, weights.dtype)
        gradients["hidden"][where] = back * weights[:, None]
    if "weight" in gradients:
        _add_outer(gradients["weight"], slope, hidden * weights[:, None])
    if "bias" in gradients:
        gradients["bias"] += slope.to(weights.dtype).T @ weights


class LogProbs(NamedTuple):
    """Log-probability and entropy of each row, in nats. Only log_prob carries a gradient."""

    log_prob: Float[Tensor, "n"]  # of the row's token, at the temperature
    entropy: Float[Tensor, "n"]  # of the row's distribution, at the temperature
    untempered: Float[Tensor, "n"]  # log_prob at temperature 1


def fused_log_probs(
    hidden: Float[Tensor, "n h"],
    lm_head: nn.Linear | Float[Tensor, "v h"],
    tokens: Int[Tensor, "n"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
) -> LogProbs:
    """log q(y) of each row's token y and the entropy H(q), with q = softmax(lm_head(hidden) / T).

        d log q(y) / d hidden = (W[y] − qᵀ W) / T

    It is computed with the logits and stored, n × h in float32, and the backward pass only scales
    its rows: two products a token. A trained head costs two more, since its logits are computed
    again. Memory: one tensor of chunk_tokens × v. Precision is that of fused_paint_loss.

    Raises TypeError for a head that is not a linear layer or its weight.
    """
    head = _weight_and_bias(lm_head)
    if not torch.is_grad_enabled():
        hidden = hidden.detach()  # otherwise its derivative would be computed and never used
    return LogProbs(*_TokenLogProbs.apply(hidden, *head, tokens, temperature, chunk_tokens))  # type: ignore[no-untyped-call]


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = hidden.new_empty(len(hidden), dtype=_wide(hidden))
        entropy, untempered = torch.empty_like(log_prob), torch.empty_like(log_prob)
        derivative = log_prob.new_empty(hidden.shape) if ctx.needs_input_grad[0] else None
        for rows, logits in _chunk_logits(hidden, weight, bias, chunk_tokens):
            view = measure(logits, tokens[rows], temperature)
            entropy[rows], untempered[rows] = view["entropy"], view["log_prob"]
            log_prob[rows] = logits.gather(-1, tokens[rows, None])[:, 0]
            if derivative is not None:
                slope = _token_slope(logits, tokens[rows], weight, temperature)
                derivative[rows] = _times_weight(slope, weight, derivative.dtype)

        inputs = (hidden, weight, bias, tokens) if any(ctx.needs_input_grad[1:3]) else ()
        ctx.save_for_backward(derivative, *inputs)
        ctx.options = temperature, chunk_tokens, hidden.dtype
        ctx.mark_non_differentiable(entropy, untempered)
        return log_prob, entropy, untempered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        derivative, *inputs = ctx.saved_tensors
        temperature, chunk_tokens, dtype = ctx.options
        found = {} if derivative is None else {"hidden": (derivative * above[:, None]).to(dtype)}
        if inputs:
            # The derivative of the head is as large as the head for each token. So compute the
            # logits again, and only the sum over tokens.
            hidden, weight, bias, tokens = inputs
            head = {}
            if ctx.needs_input_grad[1]:
                head["weight"] = weight
            if ctx.needs_input_grad[2]:
                head["bias"] = bias
            sums = {name: torch.zeros_like(v, dtype=above.dtype) for name, v in head.items()}
            for rows, logits in _chunk_logits(hidden, weight, bias, chunk_tokens):
                measure(logits, None, temperature)
                slope = _token_slope(logits, tokens[rows], weight, temperature)
                _add_gradients(sums, rows, slope, hidden[rows], weight, above[rows])
            found |= {name: sums[name].to(value.dtype) for name, value in head.items()}
        return found.get("hidden"), found.get("weight"), found.get("bias"), None, None, None


def _chunk_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk_tokens: int
) -> Iterator[tuple[slice, Tensor]]:
    rows_at_once = min(chunk_tokens, len(hidden))
    buffer = hidden.new_empty(rows_at_once, len(weight), dtype=_wide(hidden))
    for first in range(0, len(hidden), chunk_tokens):
        rows = slice(first, first + chunk_tokens)
        yield rows, _logits(hidden[rows], weight, bias, buffer)


def _token_slope(log_q: Tensor, tokens: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """d log q(y) / dz_i = ([i = y] − q_i) / T, in the memory of log q if the products allow it."""
    slope = _slope_buffer(log_q, weight)
    for rows in _blocks(log_q):
        residual = -log_q[rows].exp()
        residual.scatter_add_(-1, tokens[rows, None], residual.new_ones(len(residual), 1))
        slope[rows] = residual / temperature
    return slope


def _chunks(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, list[int]]]:
    """Yield first token and completion lengths of each chunk: as many as fit, at least one."""
    first, group = 0, list[int]()
    for length in lengths:
        if group and sum(group) + length > limit:
            yield first, group
            first, group = first + sum(group), []
        group.append(length)
    yield first, group


# The row work in plain torch. paint.objective.triton_kernels has the same two functions.


def measure(
    logits: Float[Tensor, "r v"], tokens: Int[Tensor, "r"] | None, temperature: float
) -> dict[str, Float[Tensor, "r"]]:
    """Compute the entropy of each row at the temperature; logits become log-probs in place.

    With tokens, also the log_prob of each row's token, at temperature 1.
    """
    metrics = {"entropy": logits.new_empty(len(logits))}
    if tokens is not None:
        metrics["log_prob"] = logits.new_empty(len(logits))

    lowest = torch.finfo(logits.dtype).min
    for rows in _blocks(logits):
        block = logits[rows]
        block.sub_(block.amax(-1, keepdim=True))

        # Z = Σ exp(d) = 1 + rest, where d = z − highest. Adding the highest logit's 1 would round
        # the rest away, so it is left out of the sum; other logits as high are ties.
        below = torch.lt(block, 0, out=torch.empty_like(block))
        ties = logits.shape[1] - 1 - below.sum(-1)
        if tokens is not None:
            rest = block.exp().mul_(below).sum(-1) + ties
            metrics["log_prob"][rows] = block.gather(-1, tokens[rows, None])[:, 0] - rest.log1p()

        # H = log Z − Σ exp(d) d / Z, from here on with d / T.
        block.div_(temperature).clamp_(min=lowest)
        others = block.exp().mul_(below)
        rest = others.sum(-1) + ties
        log_sum = rest.log1p()
        metrics["entropy"][rows] = log_sum - others.mul_(block).sum(-1) / (1 + rest)
        block.sub_(log_sum[:, None])
    return metrics


def differentiate(
    student: Float[Tensor, "r v"],
    teacher: Float[Tensor, "r v"],
    student_view: dict[str, Float[Tensor, "r"]],
    teacher_view: dict[str, Float[Tensor, "r"]],
    selected: Bool[Tensor, "r"],
    tokens: Int[Tensor, "r"] | None,
    slope: Float[Tensor, "r v"] | None,
    options: Objective,
) -> dict[str, Float[Tensor, "r"]]:
    """Compute divergence and statistics of each row from log-probs, and dD/dz into slope.

        dD/dz_i = (w_i g_i − q_i Σ_v w_v g_v) / T,     g = ∂term / ∂log q,
                                                       w the factors of loss.clipped_sum

    dD/dz is with respect to the student's logits. With divergence sampled_token, g = term, which
    is 0 except at the row's token; other divergences do not read tokens. slope may be the tensor
    student. Both views are overwritten.
    """
    names = ("per_token", "kl", "clipped", "unclipped_mass")
    metrics = {}
    for name in names:
        metrics[name] = student.new_empty(len(student))
    divergence = options.divergence

    for rows in _blocks(student):
        log_p, log_q = teacher[rows], student[rows]
        chosen = selected[rows]
        if chosen.any():
            mix = options.interpolation_weight
            log_p[chosen] = loss.interpolate(log_p[chosen], log_q[chosen], mix)

        sampled = None if tokens is None else tokens[rows]
        terms, g, p, q = _terms_and_g(log_p, log_q, sampled, divergence)
        metrics["per_token"][rows], kept = loss.clipped_sum(terms, options)
        metrics["kl"][rows] = terms.sum(-1)
        metrics["clipped"][rows] = (kept.amin(-1) < 1).to(kept.dtype)
        metrics["unclipped_mass"][rows] = p.mul_(kept).sum(-1)

        if slope is not None:
            g.mul_(kept).div_(options.temperature)
            torch.sub(g, q.mul_(g.sum(-1, keepdim=True)), out=slope[rows])
    return metrics


def _terms_and_g(
    log_p: Tensor, log_q: Tensor, tokens: Tensor | None, divergence: Divergence
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute terms, g = ∂term / ∂log q, p and q; log_p and log_q may be overwritten."""
    if not divergence.is_sampled:
        return divergence.evaluate(log_p, log_q)
    assert tokens is not None
    token = tokens[:, None]
    p, q = log_p.exp(), log_q.exp()
    of_token = divergence.terms(*(x.gather(-1, token) for x in (p, log_p, q, log_q)))
    terms = torch.zeros_like(log_q).scatter_(-1, token, of_token)
    return terms, terms.clone(), p, q


def _blocks(logits: Tensor) -> Iterator[slice]:
    size = max(1, (GPU_BLOCK if logits.is_cuda else CPU_BLOCK) // logits.shape[1])
    return (slice(first, first + size) for first in range(0, len(logits), size))


def require_loss(options: Objective, device: torch.device) -> str:
    """Check the loss before a run; return why it has no Triton kernels on a GPU, or "".

    Raises ConfigError for an own divergence with a wrong slope, and ImplError.
    """
    if options.divergence not in DIVERGENCES.values():
        loss.require_slope(options.divergence)
    _, reason = choose_row_work(options, device)
    return reason


def choose_row_work(options: Objective, device: torch.device) -> tuple[RowWork, str]:
    """Return what options.impl names, and why auto takes plain torch on a GPU. Raises ImplError."""
    plain = RowWork(measure, differentiate)
    if options.impl != "triton":
        if options.impl != "auto" or device.type != "cuda":
            return plain, ""
        if options.divergence not in DIVERGENCES.values():
            name = full_name(options.divergence)
            return plain, f"there is no kernel of objective.divergence {name}"

    problem = _kernel_problem(device)
    if problem and options.impl == "triton":
        raise ImplError(f"impl='triton' cannot run here: {problem}; use impl='chunked'")
    if problem:
        return plain, problem

    from paint.objective import triton_kernels

    return RowWork(triton_kernels.measure, triton_kernels.differentiate), ""


@cache
def _kernel_problem(device: torch.device) -> str:
    """Build the Triton kernels and run them; return why that failed, or an empty string."""
    # Check before the import: it decides once whether the kernels are interpreted.
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it needs a GPU, or TRITON_INTERPRET=1 to try it without"
    try:
        from paint.objective import triton_kernels

        triton_kernels.build(device)
    except Exception as error:  # Triton, a compiler and a driver raise errors of any type
        return f"{type(error).__name__}: {reason(error)}"
    return ""


# The products. Sums are float32 throughout; not every device can multiply half precision without
# rounding those sums.


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    out = buffer[: len(hidden)]
    if _native(hidden, weight, out.dtype):
        _mm(hidden, weight.T, out)
    else:
        # For values that were bfloat16 before the conversion, these products are exact.
        with _products_in(torch.promote_types(hidden.dtype, weight.dtype)):
            for part in _slices(weight):
                torch.mm(hidden.to(out.dtype), weight[part].to(out.dtype).T, out=out[:, part])
    if bias is None:
        return out
    return out.add_(bias)


def _logits_of_both(
    student: Tensor, teacher: Tensor, head: Head, teacher_head: Head, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    n = len(student)
    if teacher_head is head:  # read and convert the head once
        both = _logits(torch.cat((student, teacher)), *head, buffer)
        return both[:n], both[n:]
    return _logits(student, *head, buffer), _logits(teacher, *teacher_head, buffer[n:])


@contextmanager
def _products_in(dtype: torch.dtype) -> Iterator[None]:
    """Let a CPU with bfloat16 instructions multiply float32 as bfloat16, if dtype is bfloat16."""
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    if dtype == torch.bfloat16:
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _slope_buffer(logits: Tensor, weight: Tensor) -> Tensor:
    """Memory for dD/dz: that of the student's logits, which are not read afterwards."""
    if weight.is_cuda and not _native(logits, weight, logits.dtype):
        # A GPU needs two factors of one dtype to multiply it with a half-precision head.
        return torch.empty_like(logits, dtype=weight.dtype)
    return logits


def _times_weight(slope: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    out = slope.new_zeros(len(slope), weight.shape[1], dtype=dtype)
    if _native(slope, weight, dtype):
        return _mm(slope, weight, out)
    # With a bfloat16 head, the slope is rounded to bfloat16, as on a GPU.
    with _products_in(weight.dtype):
        for part in _slices(weight):
            out.addmm_(slope[:, part].to(dtype), weight[part].to(dtype))
    return out


def _add_outer(total: Tensor, slope: Tensor, hidden: Tensor) -> None:
    """total += slope.T @ hidden, by slices, so that no temporary is as large as the head."""
    # float16 would round most of the weighted states to 0; bfloat16 has float32's range.
    dtype = slope.dtype if slope.dtype != torch.float16 else total.dtype
    hidden = hidden.to(dtype)
    for part in _slices(total):
        out = torch.empty_like(total[part])
        total[part] += _mm(slope[:, part].T.to(dtype), hidden, out)


def _native(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    return a.dtype == b.dtype and (a.dtype == dtype or a.is_cuda)


def _mm(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=out.dtype, out=out)


def _slices(weight: Tensor) -> Iterator[slice]:
    return (slice(first, first + SLICE) for first in range(0, len(weight), SLICE))


class _KnownGradients(torch.autograd.Function):
    """A value whose gradients are already computed; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [x.dtype for x in inputs]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return None, None, *((above * gradient).to(dtype) for gradient, dtype in pairs)


def _weight_and_bias(lm_head: object) -> Head:
    if isinstance(lm_head, Tensor):
        return Head(lm_head, None)
    if isinstance(lm_head, nn.Linear):
        return Head(lm_head.weight, lm_head.bias)
    raise TypeError(
        f"lm_head must be a linear layer or its weight, got {type(lm_head).__name__}; "
        "give it without an adapter"
    )


def _wide(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)
