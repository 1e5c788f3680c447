"""Local engine: generation in the training process with the trained model.

A completion depends on its prompt and seed alone. Every token is the same step on static tensors,
which a GPU repeats as a CUDA graph. The host looks every few steps: it hands over the rows that
have ended and reads waiting prompts into their slots.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from chatforms.conventions import common_length
from paint.core.display import Display
from paint.core.errors import NonFiniteError
from paint.inference.decoders import Text, may_be_kept, open_decoder
from paint.inference.engine import Completion, Engine, EngineError, OnCompletion, Prompts, Sampling
from paint.inference.factory import EngineSetup
from paint.inference.graphs import GraphedStep
from paint.inference.sampling import LIKELIEST, WIDER, draw
from paint.inference.slots import SlotRow, Slots
from paint.models.policy import Policy
from paint.models.sharding import gather_parameters, is_sharded

WORTH_SHARING = 16  # minimum length of a common prefix that is prefilled separately
REFILL = 4  # rows are prefilled once 1 / REFILL of the slots is free; one by one would be slow
STEPS = 8  # steps on a GPU between two looks of the host, which wait for it
FEWEST = 32  # slots on a GPU below which a step is not faster with fewer


class LocalEngine(Engine):
    """Generates with the policy itself, so that no weights are synchronised."""

    def __init__(self, policy: Policy, *, batch_size: int, display: Display | None = None) -> None:
        self.policy = policy
        self.batch_size = batch_size  # most rows at once
        self.display = display or Display(enabled=False)
        self._kept: _Sampler | None = None  # of the last call, with its buffers and graphs

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "LocalEngine":
        rollout = setup.rollout
        rows = rollout.batch_size * (1 + rollout.off_policy_steps)  # of the steps drawn at once
        return cls(setup.policy, batch_size=rows, display=setup.display)

    def sync_weights(self) -> None:
        """Do nothing: the weights are shared."""

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        if prompts:  # a rank may have no row of a last batch
            self.policy.require_rope_range(max(map(len, prompts)) + sampling.max_new_tokens)
        with torch.no_grad(), gather_parameters(self.policy.base):
            self._generate(prompts, sampling, seeds, finished)

    def _generate(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        rows = [SlotRow(i, tuple(prompt), seeds[i]) for i, prompt in enumerate(prompts)]
        # Sort prompts by length, for little padding, and equal prompts next to each other.
        waiting = deque(sorted(rows, key=lambda row: (-len(row.prompt), row.prompt)))
        beginning = _common_beginning([row.prompt for row in rows])
        end_ids = set(self.policy.end_ids)
        finished_tokens = 0
        sampler: _Sampler | None = None
        # On a CPU a look costs no wait, and without one a row that has ended would be decoded on.
        steps = STEPS if self.policy.device.type == "cuda" else 1
        while waiting or (sampler and sampler.slots.longest):
            try:
                if sampler is None:
                    sampler = self._sampler(sampling, waiting)
                sampler.refill(waiting, beginning)
                ended = sampler.run(steps)
            except torch.OutOfMemoryError as error:
                # A row continues where it was: its text is read like a prompt.
                unfinished = sampler.slots.take_all() if sampler else []
                self._halve(max(len(unfinished), 1), error)
                waiting.extendleft(reversed(unfinished))
                sampler = None
                continue

            for row in ended:
                finished_tokens += len(row.ids)
                truncated = row.ids[-1] not in end_ids
                completion = Completion(tuple(row.ids), tuple(row.log_probs), truncated)
                finished(row.index, completion)
            self.display.writing(finished_tokens, sum(sampler.slots.lengths))
        if sampler and sampler.can_be_kept:
            self._kept = sampler

    def _sampler(self, sampling: Sampling, waiting: Sequence[SlotRow]) -> "_Sampler":
        count = min(self.batch_size, len(waiting))
        longest = sampling.max_new_tokens + max(len(row.prompt) for row in waiting)
        kept, self._kept = self._kept, None
        if kept and kept.fits(sampling, count, longest):
            kept.use_again()
            return kept
        del kept  # before the memory of another
        return _Sampler(self.policy, sampling, count, longest, self.display.warn)

    def _halve(self, rows: int, error: torch.OutOfMemoryError) -> None:
        if rows == 1:
            raise EngineError(
                "one row alone does not fit in the device's memory; lower rollout.max_new_tokens, "
                "or use a larger GPU or servers"
            ) from error
        self.batch_size = rows // 2
        self.display.warn(
            f"engine: out of memory with {rows} rows at once; {self.batch_size} from now on"
        )


class _Sampler:
    """Samples the tokens of up to ``count`` rows at once, each of at most ``longest`` tokens."""

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        count: int,
        longest: int,
        warn: Callable[[str], None],
    ) -> None:
        self.policy = policy
        self.sampling = sampling
        self.slots = Slots(count, sampling.max_new_tokens, policy.device)
        self.decoder = open_decoder(policy.base, count, longest)
        self.longest = longest
        self.end_ids = torch.tensor(policy.end_ids, device=policy.device)
        self.too_few = torch.zeros((), dtype=torch.bool, device=policy.device)
        # Steps of a decoder that is not static cannot be repeated with more candidates.
        self.candidates = LIKELIEST if self.decoder.is_static else policy.lm_head.out_features
        is_on_gpu = policy.device.type == "cuda" and not is_sharded(policy.base)
        is_repeatable = is_on_gpu and self.decoder.is_static
        state = (*self.slots.state, self.too_few)
        self.step = GraphedStep(state, warn, enabled=is_repeatable)
        self.capacity = 0  # of the buffers that the graphs work on
        # Hooks, with which a teacher changes what layers compute, see nothing of joint layers.
        is_joint = is_on_gpu and not _has_hooks(policy)
        self.joint = policy.joint_layers if is_joint else None
        self.layers: Callable[[], AbstractContextManager[None]] = nullcontext
        if self.joint:
            self.layers = self.joint.used
        self.use_again()
        self.weights = _weights(policy)

    def refill(self, waiting: deque[SlotRow], beginning: Text) -> None:
        free = len(self.slots.free)
        count = len(self.slots.rows)
        is_enough = free * REFILL >= count if self.decoder.is_static else free == count
        if not waiting or not is_enough:
            return
        rows = [waiting.popleft() for _ in range(min(free, len(waiting)))]
        try:
            self.fill(rows, beginning)
        except torch.OutOfMemoryError:
            # Rows that have no slot yet wait again; take_all returns the others.
            waiting.extendleft(row for row in reversed(rows) if row not in self.slots.rows)
            raise

    def fill(self, rows: Sequence[SlotRow], beginning: Text) -> None:
        """Read rows, whose texts have this common beginning, into free slots."""
        size = len(self.slots.rows) if self.decoder.is_static else len(rows)
        slots = self.slots.put(rows, size)
        # The last token of a text is the first input of a step.
        with self.layers():
            self.decoder.read([row.text[:-1] for row in rows], slots, beginning)

    def run(self, steps: int) -> list[SlotRow]:
        """Append tokens to every row, and return those that have ended. Raises NonFiniteError."""
        slots = self.slots
        fewest = FEWEST if self.step.enabled else 1
        self.decoder.move(*slots.shrink(fewest), slots.size)
        self.decoder.reserve(slots.longest + steps)
        _, capacity = self.decoder.shape
        if capacity != self.capacity:  # the buffers have moved, be it here or in a prefill
            self.step.clear()
        self.capacity = capacity
        # For a repetition with more candidates, which writes over all else.
        before = [part.clone() for part in (slots.tokens, slots.counts, slots.ended)]
        with self.layers():
            for _ in range(steps):
                self.step.run(self._step, self._shape)

        is_finite = slots.log_probs.isfinite().all()
        flags = torch.stack((self.too_few, is_finite))
        # One tensor: every copy to the host would be another wait.
        read = torch.cat((slots.counts, slots.ended, flags)).tolist()  # waits for the device
        count = len(slots.rows)
        lengths, ended, (too_few, finite) = read[:count], read[count:-2], read[-2:]
        if too_few:
            self.candidates *= WIDER
            self.too_few.zero_()
            for part, value in zip((slots.tokens, slots.counts, slots.ended), before, strict=True):
                part.copy_(value)
            return self.run(steps)
        if not finite:
            raise NonFiniteError(
                "the policy's logits are not finite; start a new run with a lower "
                "train.learning_rate"
            )

        taken = [slot for slot, row in enumerate(slots.rows) if row is not None]
        for slot in taken:
            slots.lengths[slot] = lengths[slot]
        return slots.take([slot for slot in taken if ended[slot]])

    @property
    def _shape(self) -> tuple[int, ...]:
        width, _ = self.decoder.shape
        return self.slots.size, width, self.candidates

    def _step(self) -> None:
        """Append a token to every row, without a wait for the device."""
        slots = self.slots
        logits: Float[Tensor, "b v"] = self.policy.lm_head(
            self.decoder.states(slots.tokens[: slots.size], slots.positions())
        )
        # A sum over the vocabulary loses its digits in 16 bits.
        logits = logits.float()
        drawn, too_few = draw(logits, slots.next_uniforms(), self.sampling, self.candidates)
        self.too_few |= (too_few & ~slots.ended[: slots.size]).any()
        log_probs = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
        slots.append(drawn, log_probs, self.end_ids)

    @property
    def can_be_kept(self) -> bool:
        """Whether there are graphs that are worth the memory of the buffers until the next call."""
        if not self.step.enabled or _has_hooks(self.policy):
            return False
        return may_be_kept(self.decoder.nbytes)

    def fits(self, sampling: Sampling, count: int, longest: int) -> bool:
        """Return whether it can sample other rows, with the weights as they are now."""
        if _has_hooks(self.policy) or _weights(self.policy) != self.weights:
            return False
        is_large_enough = count <= len(self.slots.rows) and longest <= self.longest
        return sampling == self.sampling and is_large_enough

    def use_again(self) -> None:
        """Take the weights as they are now, and forget what was computed with others."""
        self.decoder.forget()
        if self.joint:
            self.joint.refresh()


def _has_hooks(policy: Policy) -> bool:
    return any(module._forward_hooks for module in policy.base.modules())


def _weights(policy: Policy) -> object:
    places = [parameter.data_ptr() for parameter in policy.model.parameters()]
    modes = [(layer.disable_adapters, layer.merged) for layer in policy.adapted.values()]
    return places, modes


def _common_beginning(prompts: Sequence[Text]) -> Text:
    """Return the common prefix of all prompts but their last tokens, if it is worth a pass."""
    if not prompts:  # a rank may have no row of a last batch
        return ()
    first, last = min(prompts), max(prompts)  # all others lie between them
    length = min(common_length(first, last), min(map(len, prompts)) - 1)
    if first == last or length < WORTH_SHARING:
        return ()
    return first[:length]
