"""The same objective from hidden states, at the cost of its matrix products.

    hidden states  ->  a chunk's logits, both views  ->  entropies  ->  selection  ->  loss, dloss/dz  ->  dloss/dhidden

A chunk is as many whole completions as fit, since the selection by entropy ratio looks at one completion at a time.
So one visit to a chunk gives the loss, every statistic and the gradient: three products a token (two onto the
vocabulary, one back), nothing recomputed, and the logits of one chunk in memory, however large the batch.

A completion that does not fit in a chunk is visited piece by piece as if nothing were selected, then its selected
tokens once more: f_top of its tokens cost three products more (eight with a trained head), so 3.09 at the paper's 3 %.

Between the products stand two functions, ``measure`` and ``differentiate``, twice: here in plain torch, on blocks of
rows that stay in a processor's cache, and in paint.kernels for GPUs.

What needs the log-probability of the tokens alone, and no teacher, takes fused_log_probs: two products a token.

Left out: logits in half precision (a clip at 0.06 nats would see the rounding), second derivatives.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paint import PaintError, objective
from paint.objective import ClipMode, Kind, Lengths, Loss, Reduction

Impl = Literal["auto", "reference", "chunked", "triton"]
Columns = dict[str, Float[Tensor, "n"]]


class ImplError(PaintError, RuntimeError):
    """What is to compute the loss cannot run here; the message says what can."""


class Head(NamedTuple):
    """What makes logits of hidden states."""

    weight: Float[Tensor, "v h"]
    bias: Float[Tensor, "v"] | None


class RowWork(NamedTuple):
    """What happens between the products, in plain torch below or in paint.kernels.

    measure may leave in the logits whatever its own differentiate reads there.
    """

    measure: Callable[[Tensor, Tensor | None, float], Columns]
    differentiate: Callable[
        [Tensor, Tensor, Columns, Columns, Tensor, Tensor | None, Tensor | None, "Options"], Columns
    ]


# Logits in a block of rows: few enough for a processor's cache, enough to keep a GPU busy.
CPU_BLOCK, GPU_BLOCK = 2**18, 2**25
# Rows of the head that are converted at a time where no product of these types exists.
SLICE = 2**14


@dataclass(frozen=True)
class Options:
    """How logits become a loss."""

    temperature: float
    mix: float
    top_fraction: float
    clip: float
    clip_mode: ClipMode
    kind: Kind


def fused_paint_loss(
    student_hidden: Float[Tensor, "n h"],
    teacher_hidden: Float[Tensor, "n h"],
    lm_head: nn.Linear | Float[Tensor, "v h"],
    lengths: Lengths,
    *,
    temperature: float = 1.1,
    mix: float = 0.03,
    top_fraction: float = 0.03,
    clip: float = 0.06,
    clip_mode: ClipMode = "pointwise",
    kind: Kind = "forward_kl",
    reduction: Reduction = "completion",
    tokens: Int[Tensor, "n"] | None = None,
    teacher_lm_head: nn.Linear | Float[Tensor, "v h"] | None = None,
    impl: Impl = "auto",
    chunk_tokens: int = 1024,
) -> Loss:
    """paint_loss of lm_head(student_hidden) and lm_head(teacher_hidden), without their logits in memory at once.

    The options, value, per-token values and statistics of paint_loss (paper: Eq. main_loss, Algorithm
    adaptive_opsd). Its gradient reaches student_hidden, and the head where that is trained; the teacher gets none.
    teacher_lm_head is the teacher's where it has one of its own, as when the student's is trained and its is not.

    impl: reference holds all logits; chunked is plain torch; triton needs a GPU (or Triton's interpreter); auto is
    triton on a GPU and chunked elsewhere. chunk_tokens bounds the memory and changes nothing else: two tensors of
    chunk_tokens × v in float32 (and one in the head's half precision, on a GPU), besides the gradients.
    Logits are accumulated and kept in float32, or in float64 for float64 states, whatever the head's dtype.
    Raises ValueError for views, lengths and a head that do not match and for options out of range; TypeError for a
    head that is not a linear layer or its weight; ImplError for triton where it cannot run.
    """
    head = _weight_and_bias(lm_head)
    teacher_head = head if teacher_lm_head is None else _weight_and_bias(teacher_lm_head)
    rows = objective.check_rows(len(student_hidden), len(teacher_hidden), lengths, tokens)
    objective.check_options(temperature, mix, top_fraction, clip, clip_mode, kind, reduction, tokens)
    _check_width("student_hidden", student_hidden, "lm_head", head)
    _check_width(
        "teacher_hidden", teacher_hidden, "lm_head" if teacher_head is head else "teacher_lm_head", teacher_head
    )
    if len(head.weight) != len(teacher_head.weight):
        raise ValueError(
            "student and teacher must share one vocabulary: "
            f"lm_head has {len(head.weight)} entries, teacher_lm_head {len(teacher_head.weight)}"
        )
    _check_chunk(chunk_tokens)
    objective.check_choice("impl", impl, Impl)

    if impl == "auto":
        impl = "triton" if student_hidden.is_cuda and find_spec("triton") else "chunked"
    options = Options(temperature, mix, top_fraction, clip, clip_mode, kind)
    if impl == "reference":
        dtype = _wide(student_hidden)
        student_logits, teacher_logits = (
            nn.functional.linear(hidden.to(dtype), w.to(dtype), None if b is None else b.to(dtype))
            for hidden, (w, b) in ((student_hidden, head), (teacher_hidden, teacher_head))
        )
        return objective.paint_loss(
            student_logits, teacher_logits, rows, reduction=reduction, tokens=tokens, **asdict(options)
        )
    work = triton_row_work(student_hidden.device) if impl == "triton" else RowWork(measure, differentiate)
    weights = objective.token_weights(rows, reduction=reduction).to(student_hidden.device, _wide(student_hidden))
    return _visit_chunks(
        student_hidden, teacher_hidden, head, teacher_head, rows, weights, tokens, chunk_tokens, options, work
    )


def _visit_chunks(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    head: Head,
    teacher_head: Head,
    rows: Sequence[int],
    weights: Tensor,
    tokens: Tensor | None,
    chunk_tokens: int,
    options: Options,
    work: RowWork,
) -> Loss:
    """The loss and, while the logits are there, the gradients of what requires one."""
    weight, bias = head
    inputs = {"hidden": student_hidden, "weight": weight} | ({} if bias is None else {"bias": bias})
    inputs = {name: value for name, value in inputs.items() if value.requires_grad and torch.is_grad_enabled()}
    gradients = {name: torch.zeros_like(value, dtype=weights.dtype) for name, value in inputs.items()}
    columns: Columns = {}
    buffers = _buffers(weights, (2, min(chunk_tokens, len(weights)), len(weight)))

    def visit(where: slice | Tensor, select: Callable[[Tensor], Tensor], *, sign: int = 1) -> None:
        """Write these tokens' columns and gradients; add their part to the head's gradient, or take it off."""
        student = _logits(student_hidden[where], *head, buffers[0])
        teacher = _logits(teacher_hidden[where], *teacher_head, buffers[1])
        sampled = None if tokens is None else tokens[where]
        student_view = work.measure(student, sampled, options.temperature)
        teacher_view = work.measure(teacher, sampled, options.temperature)
        ratio = objective.entropy_ratio(teacher_view["entropy"], student_view["entropy"])
        selected = select(ratio)
        slope = _slope_buffer(student, weight) if inputs else None
        found = work.differentiate(student, teacher, student_view, teacher_view, selected, sampled, slope, options)

        found |= {"entropy_ratio": ratio, "selected": selected.to(ratio.dtype)}
        for role, view in (("student", student_view), ("teacher", teacher_view)):
            found |= {f"{role}_{name}": view[name] for name in ("entropy", "log_prob") if name in view}
        for name, values in found.items():
            columns.setdefault(name, torch.empty_like(weights))[where] = values
        if slope is None:
            return
        # Weighed beside the products, not before: in half precision, what a token weighs in a batch may round to 0.
        if "hidden" in inputs:
            gradients["hidden"][where] = _times_weight(slope, weight, weights.dtype) * weights[where, None]
        if "weight" in inputs:
            _add_outer(gradients["weight"], slope, student_hidden[where] * (sign * weights[where, None]))
        if "bias" in inputs:
            gradients["bias"] += slope.to(weights.dtype).T @ (sign * weights[where])

    with torch.no_grad():
        for first, group in _chunks(rows, chunk_tokens):
            span = slice(first, first + sum(group))
            if sum(group) <= chunk_tokens:
                visit(span, partial(objective.select, lengths=group, top_fraction=options.top_fraction))
                continue
            places = torch.arange(span.start, span.stop, device=weights.device)
            for piece in places.split(chunk_tokens):
                visit(piece, partial(torch.zeros_like, dtype=torch.bool))
            chosen = objective.select_positions(columns["entropy_ratio"][span], options.top_fraction)
            for piece in places[chosen].split(chunk_tokens):
                if inputs.keys() - {"hidden"}:
                    visit(piece, partial(torch.zeros_like, dtype=torch.bool), sign=-1)
                visit(piece, partial(torch.ones_like, dtype=torch.bool))
        per_token = columns.pop("per_token")
        value = (weights * per_token).sum()
    value = _KnownGradients.apply(value, tuple(gradients.values()), *inputs.values())  # type: ignore[no-untyped-call]
    return Loss(value, per_token, columns)


class LogProbs(NamedTuple):
    """Of each row, in nats: log_prob of its token, which alone has a gradient; entropy; log_prob at temperature 1."""

    log_prob: Float[Tensor, "n"]
    entropy: Float[Tensor, "n"]
    untempered: Float[Tensor, "n"]


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

    depends on one row alone. So it is computed while the logits are there and kept, n × h in float32, and the backward
    pass only scales its rows: two products a token. A trained head costs two more, as its logits are computed again.
    One tensor of chunk_tokens × v in memory, and precision, as in fused_paint_loss.
    Raises ValueError for tokens or a head that do not match and for options out of range; TypeError for a head that is
    not a linear layer or its weight.
    """
    head = _weight_and_bias(lm_head)
    _check_width("hidden", hidden, "lm_head", head)
    if len(tokens) != len(hidden):
        raise ValueError(f"tokens must be one for each of the {len(hidden)} rows of hidden, got {len(tokens)}")
    objective.check_temperature(temperature)
    _check_chunk(chunk_tokens)
    if not torch.is_grad_enabled():
        hidden = hidden.detach()  # or else its derivative would be computed and kept for nothing
    return LogProbs(*_TokenLogProbs.apply(hidden, *head, tokens, temperature, chunk_tokens))  # type: ignore[no-untyped-call]


class _TokenLogProbs(torch.autograd.Function):
    """log q(y) with what its backward pass scales, and the figures beside it."""

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
        hidden_needs, weight_needs, bias_needs = ctx.needs_input_grad[:3]
        log_prob = hidden.new_empty(len(hidden), dtype=_wide(hidden))
        entropy, untempered = torch.empty_like(log_prob), torch.empty_like(log_prob)
        derivative = log_prob.new_empty(hidden.shape) if hidden_needs else None
        for rows, logits in _chunk_logits(hidden, weight, bias, chunk_tokens):
            view = measure(logits, tokens[rows], temperature)
            entropy[rows], untempered[rows] = view["entropy"], view["log_prob"]
            log_prob[rows] = logits.gather(-1, tokens[rows, None])[:, 0]
            if derivative is not None:
                slope = _token_slope(logits, tokens[rows], weight, temperature)
                derivative[rows] = _times_weight(slope, weight, derivative.dtype)
        ctx.save_for_backward(derivative, *((hidden, weight, bias, tokens) if weight_needs or bias_needs else ()))
        ctx.options = temperature, chunk_tokens
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(entropy, untempered)
        return log_prob, entropy, untempered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden_needs, weight_needs, bias_needs = ctx.needs_input_grad[:3]
        derivative, *inputs = ctx.saved_tensors
        of_hidden = (derivative * above[:, None]).to(ctx.dtype) if hidden_needs else None
        if not (weight_needs or bias_needs):
            return of_hidden, None, None, None, None, None
        hidden, weight, bias, tokens = inputs
        temperature, chunk_tokens = ctx.options
        of_weight = torch.zeros_like(weight, dtype=above.dtype) if weight_needs else None
        of_bias = torch.zeros_like(bias, dtype=above.dtype) if bias_needs else None
        for rows, logits in _chunk_logits(hidden, weight, bias, chunk_tokens):
            measure(logits, None, temperature)
            slope = _token_slope(logits, tokens[rows], weight, temperature)
            if of_weight is not None:
                _add_outer(of_weight, slope, hidden[rows] * above[rows, None])
            if of_bias is not None:
                of_bias += slope.to(above.dtype).T @ above[rows]
        of_head = ((of_weight, weight), (of_bias, bias))
        return of_hidden, *(None if x is None else x.to(like.dtype) for x, like in of_head), None, None, None


def _chunk_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk_tokens: int
) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their logits, all chunks in the same memory."""
    buffer = _buffers(hidden[:, 0].to(_wide(hidden)), (min(chunk_tokens, len(hidden)), len(weight)))
    for first in range(0, len(hidden), chunk_tokens):
        rows = slice(first, first + chunk_tokens)
        yield rows, _logits(hidden[rows], weight, bias, buffer)


def _token_slope(log_q: Tensor, tokens: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """d log q(y) / dz_i = ([i = y] − q_i) / T, over log q where the products allow it."""
    slope = _slope_buffer(log_q, weight)
    for rows in _blocks(log_q):
        pull = -log_q[rows].exp()
        pull.scatter_add_(-1, tokens[rows, None], pull.new_ones(len(pull), 1))
        slope[rows] = pull / temperature
    return slope


def _chunks(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, list[int]]]:
    """First token and lengths of as many completions as fit in a chunk, or of one that does not fit."""
    first, group = 0, list[int]()
    for length in lengths:
        if group and sum(group) + length > limit:
            yield first, group
            first, group = first + sum(group), []
        group.append(length)
    yield first, group


# The row work in plain torch. paint.kernels has the same two functions.


def measure(
    logits: Float[Tensor, "r v"], tokens: Int[Tensor, "r"] | None, temperature: float
) -> dict[str, Float[Tensor, "r"]]:
    """Entropy of each row at the temperature, and log_prob of its token at temperature 1; logits become log-probs."""
    found = {"entropy": logits.new_empty(len(logits))}
    if tokens is not None:
        found["log_prob"] = logits.new_empty(len(logits))
    for rows in _blocks(logits):
        if tokens is not None:
            found["log_prob"][rows] = objective.token_log_probs(logits[rows], tokens[rows])
        logits[rows] = objective.finite((logits[rows] / temperature).log_softmax(-1))
        found["entropy"][rows] = objective.entropy(logits[rows])
    return found


def differentiate(
    student: Float[Tensor, "r v"],
    teacher: Float[Tensor, "r v"],
    student_view: dict[str, Float[Tensor, "r"]],
    teacher_view: dict[str, Float[Tensor, "r"]],
    selected: Bool[Tensor, "r"],
    tokens: Int[Tensor, "r"] | None,
    slope: Float[Tensor, "r v"] | None,
    options: Options,
) -> dict[str, Float[Tensor, "r"]]:
    """Divergence of each row and its statistics from log-probs; dD/dz of the student's logits into slope.

        dD/dz_i = (g_i [i ∈ A] − q_i Σ_{v∈A} g_v) / T,     g = ∂summand / ∂log q,  A the unclipped entries

    With kind sampled_token g = summand, and only that of the row's token is not 0; other kinds do not read tokens.
    slope may be student itself. The target is written over teacher.
    """
    found = {name: student.new_empty(len(student)) for name in ("per_token", "kl", "clipped", "unclipped_mass")}
    for rows in _blocks(student):
        log_p, log_q = teacher[rows], student[rows]
        chosen = selected[rows]
        if chosen.any():
            log_p[chosen] = objective.interpolate(log_p[chosen], log_q[chosen], options.mix)
        p, q = log_p.exp(), log_q.exp()
        sampled = None if tokens is None else tokens[rows]
        terms, pull = _terms(p, q, log_p, log_q, sampled, options.kind)
        # As numbers: multiplying by them is several times faster than by truth values.
        kept = objective.unclipped_entries(terms, options.clip, options.clip_mode).to(terms.dtype)
        found["per_token"][rows] = objective.clipped_sum(terms, options.clip, options.clip_mode)
        found["kl"][rows] = terms.sum(-1)
        found["clipped"][rows] = 1 - kept.amin(-1)
        found["unclipped_mass"][rows] = (p * kept).sum(-1)
        if slope is not None:
            pull = pull * kept
            slope[rows] = (pull - q * pull.sum(-1, keepdim=True)) / options.temperature
    return found


def _terms(
    p: Tensor, q: Tensor, log_p: Tensor, log_q: Tensor, tokens: Tensor | None, kind: Kind
) -> tuple[Tensor, Tensor]:
    """The summand of every entry (objective.divergence, objective.paint_loss), and g = ∂summand / ∂log q."""
    match kind:
        case "forward_kl":
            return p * (log_p - log_q), -p
        case "reverse_kl":
            summand = q * (log_q - log_p)
            return summand, summand + q
        case "jsd":
            log_m = objective.log_mean(log_p, log_q)
            student_part = q * (log_q - log_m) / 2
            return p * (log_p - log_m) / 2 + student_part, student_part
        case "sampled_token":
            assert tokens is not None
            place = tokens[:, None]
            gap = log_q.gather(-1, place) - log_p.gather(-1, place)
            summand = torch.zeros_like(log_q).scatter_(-1, place, gap)
            return summand, summand


def _blocks(logits: Tensor) -> Iterator[slice]:
    size = max(1, (GPU_BLOCK if logits.is_cuda else CPU_BLOCK) // logits.shape[1])
    return (slice(first, first + size) for first in range(0, len(logits), size))


def triton_row_work(device: torch.device) -> RowWork:
    """The row work of paint.kernels; raises ImplError where that cannot run."""
    try:
        from paint import kernels
    except ImportError as error:
        raise ImplError(f"impl='triton' needs the triton package ({error}); use impl='chunked'") from error
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ImplError("impl='triton' needs a GPU, or TRITON_INTERPRET=1 to try it without; use impl='chunked'")
    return RowWork(kernels.measure, kernels.differentiate)


# The products. Sums are float32 throughout; what differs is who can multiply half precision without rounding them.


def _buffers(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uninitialised memory; on Linux CPUs in large pages: first touching 150,000 small ones costs half a product."""
    if not (like.is_cpu and like.numel() and hasattr(mmap, "MADV_HUGEPAGE")):
        return like.new_empty(shape)
    pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # where they are switched off
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    """hidden @ weight.T + bias, in the buffer and in its dtype."""
    out = buffer[: len(hidden)]
    if _native(hidden, weight, out.dtype):
        _mm(hidden, weight.T, out)
    else:
        for part in _slices(weight):
            torch.mm(hidden.to(out.dtype), weight[part].to(out.dtype).T, out=out[:, part])
    return out if bias is None else out.add_(bias)


def _slope_buffer(logits: Tensor, weight: Tensor) -> Tensor:
    """Where dD/dz goes: over the student's logits, unless a GPU is to multiply it with a half-precision head."""
    return (
        logits
        if _native(logits, weight, logits.dtype) or not weight.is_cuda
        else torch.empty_like(logits, dtype=weight.dtype)
    )


def _times_weight(slope: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """slope @ weight."""
    out = slope.new_zeros(len(slope), weight.shape[1], dtype=dtype)
    if _native(slope, weight, dtype):
        return _mm(slope, weight, out)
    for part in _slices(weight):
        out.addmm_(slope[:, part].to(dtype), weight[part].to(dtype))
    return out


def _add_outer(total: Tensor, slope: Tensor, hidden: Tensor) -> None:
    """total += slope.T @ hidden, by slices: what is added is never as large as the head."""
    # float16 would lose most of the weighed states; bfloat16 has float32's range.
    dtype = slope.dtype if slope.dtype != torch.float16 else total.dtype
    for part in _slices(total):
        total[part] += _mm(slope[:, part].T.to(dtype), hidden.to(dtype), torch.empty_like(total[part]))


def _native(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether the device multiplies these into results of this dtype."""
    return a.dtype == b.dtype and (a.dtype == dtype or a.is_cuda)


def _mm(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=out.dtype, out=out)


def _slices(weight: Tensor) -> Iterator[slice]:
    return (slice(first, first + SLICE) for first in range(0, len(weight), SLICE))


class _KnownGradients(torch.autograd.Function):
    """A value whose gradients were computed with it: backward only scales them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [x.dtype for x in inputs]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *((above * g).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))


def _weight_and_bias(lm_head: object) -> Head:
    if isinstance(lm_head, Tensor):
        return Head(lm_head, None)
    if isinstance(lm_head, nn.Linear):
        return Head(lm_head.weight, lm_head.bias)
    raise TypeError(
        f"lm_head must be a linear layer or its weight, got {type(lm_head).__name__}; give it without an adapter"
    )


def _check_width(name: str, hidden: Tensor, head_name: str, head: Head) -> None:
    if hidden.shape[1] != head.weight.shape[1]:
        raise ValueError(f"{name} has {hidden.shape[1]} entries a row, {head_name} takes {head.weight.shape[1]}")


def _check_chunk(chunk_tokens: int) -> None:
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")


def _wide(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)
