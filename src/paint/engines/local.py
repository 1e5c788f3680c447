"""The engine in the training process: it generates with the very model that is trained.

Sampling is a pure function of the logits and of one uniform number per (seed, token). A completion
therefore depends on its own prompt and seed alone, not on its batch, its rank or what was sampled
before.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paint.device import float64_device
from paint.engines.protocol import Completion, Finished, Sampling, collect
from paint.errors import Diverged
from paint.model.policy import Policy


class LocalEngine:
    """Generates with the policy itself, so there is nothing to synchronise."""

    def __init__(self, policy: Policy, *, batch_size: int) -> None:
        self.policy = policy
        self.batch_size = batch_size

    def adopt(self) -> None:
        """Nothing to do: the weights are shared."""

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: Finished,
    ) -> None:
        for start in range(0, len(prompts), self.batch_size):
            batch = slice(start, start + self.batch_size)
            completions = self._generate_batch(prompts[batch], sampling, seeds[batch])
            for index, completion in enumerate(completions, start):
                finished(index, completion)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        return collect(self, prompts, sampling, seeds)

    def _generate_batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        policy = self.policy
        pad = policy.tokenizer.pad_token_id or 0

        # Left padding is right here and only here: generation continues a row at its right edge.
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        padded = [[pad] * n + list(prompt) for n, prompt in zip(padding, prompts, strict=True)]
        ids = torch.tensor(padded, device=policy.device)
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in padding], device=policy.device)

        sampler = _Sampler(sampling, seeds, policy.device)
        was_training = policy.model.training
        policy.model.eval()
        try:
            with torch.no_grad():
                output = policy.model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    generation_config=GenerationConfig(
                        do_sample=False,
                        max_new_tokens=sampling.max_new_tokens,
                        eos_token_id=policy.end_ids,
                        pad_token_id=pad,
                    ),
                    logits_processor=LogitsProcessorList([sampler]),
                )
        finally:
            policy.model.train(was_training)

        log_probs = torch.stack(sampler.log_probs, dim=1)
        if not log_probs.isfinite().all():
            raise Diverged(
                "the policy's logits are not finite; start a new run with a lower "
                "train.learning_rate"
            )
        rows = zip(output[:, width:].tolist(), log_probs.tolist(), strict=True)
        return [_cut(row, row_log_probs, set(policy.end_ids)) for row, row_log_probs in rows]


class MergedEngine(LocalEngine):
    """Generates with the adapter rounded into the weights, as most trainers do.

    For comparison only: it does not sample from the policy that is trained (figures: docs/log.md).
    """

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: Finished,
    ) -> None:
        with self.policy.merged():
            super().stream(prompts, sampling, seeds, finished)


class _Sampler(LogitsProcessor):  # type: ignore[misc]
    """Draws each row's token by inverting its distribution at that row's next uniform number.

    Built on the library's warpers and its greedy search: the drawn token is made the only one that
    is possible.
    """

    def __init__(self, sampling: Sampling, seeds: Sequence[int], device: torch.device) -> None:
        self.greedy = sampling.temperature == 0
        self.warpers = LogitsProcessorList()
        if not self.greedy:
            self.warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k > 0:
                self.warpers.append(TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                self.warpers.append(TopPLogitsWarper(sampling.top_p))

        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        uniforms = [torch.rand(sampling.max_new_tokens, generator=g) for g in generators]
        self.uniforms = torch.stack(uniforms).to(device)
        self.log_probs: list[Float[Tensor, " b"]] = []

    def __call__(
        self, input_ids: Int[Tensor, "b t"], scores: Float[Tensor, "b v"]
    ) -> Float[Tensor, "b v"]:
        if self.greedy:
            tokens = scores.argmax(-1, keepdim=True)
        else:
            probs = self.warpers(input_ids, scores.float()).softmax(-1)
            tokens = invert(probs, self.uniforms[:, len(self.log_probs)])[:, None]

        # What is kept are the log-probs of the plain logits: the trainer scores at temperature 1.
        self.log_probs.append(scores.float().log_softmax(-1).gather(1, tokens)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens, 0.0)


def invert(probs: Float[Tensor, "b v"], uniforms: Float[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The token at which each row's cumulative probability passes its uniform number in [0, 1).

    A token of probability 0 is never drawn, also where rounding leaves the last sum below 1. The
    sums are float64, so they are made where the device has it.
    """
    where = float64_device(probs.device)
    cumulative = probs.to(where).double().cumsum(-1)
    targets = uniforms.to(where).double()[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Only rows with NaN reach past the end; they are reported when the completion is whole.
    return tokens.clamp(max=probs.shape[-1] - 1).to(probs.device)


def _cut(ids: list[int], log_probs: list[float], end_ids: set[int]) -> Completion:
    """Drop the padding that the library puts behind the first end token."""
    for length, token in enumerate(ids, start=1):
        if token in end_ids:
            return Completion(tuple(ids[:length]), tuple(log_probs[:length]), truncated=False)
    return Completion(tuple(ids), tuple(log_probs), truncated=True)
