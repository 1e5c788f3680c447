"""The model that is trained: what it reads, what it returns, what of it is trained and stored.

What leaves this module are token ids and hidden states of completion positions; the projection onto the vocabulary
belongs to the loss, which need not hold all of it. How the same model is its own teacher is paint.model.teacher.

Left out: padding between prompt and completion. Rows are laid out as prompt, completion, padding, so that positions
count from the row's own start and neither padding nor batch mates change a row.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import peft
import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from paint import PaintError
from paint import config as cfg
from paint.context import rationale_messages, student_messages, teacher_messages
from paint.lab.files import model_path


class PolicyError(PaintError, ValueError):
    """The model cannot serve as student and teacher; the message names the reason and the way out."""


@dataclass(frozen=True)
class Policy:
    """A causal language model, trained as a LoRA adapter or as a whole, with its tokenizer and its head.

    Attributes:
        model: a peft model, whose base weights are frozen, or a plain one, all of whose weights are trained.
        tokenizer: with a chat template.
        lm_head: hidden states (n h) to logits (n v); without an adapter, so frozen where an adapter is trained.
        student_thinking, teacher_thinking: whether each view's prompt leaves thinking on.
    """

    model: peft.PeftModel | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    lm_head: nn.Linear
    student_thinking: bool
    teacher_thinking: bool

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def tuning(self) -> Literal["lora", "full"]:
        """What is trained: an adapter, or every weight."""
        return "lora" if isinstance(self.model, peft.PeftModel) else "full"

    @property
    def base(self) -> PreTrainedModel:
        """The model without what peft puts around it; its layers are what they are, adapted or not."""
        return self.model.get_base_model() if self.tuning == "lora" else self.model

    @property
    def adapted(self) -> dict[str, LoraLayer]:
        """The layers that have an adapter, by name; none where every weight is trained."""
        return {
            name: module
            for name, module in self.base.named_modules()
            if isinstance(module, LoraLayer)
        }

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the model's order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def end_ids(self) -> list[int]:
        """Token ids that end a completion: the model's own and the tokenizer's."""
        own = self.model.generation_config.eos_token_id
        ids = own if isinstance(own, list) else [own]
        return sorted({i for i in [*ids, self.tokenizer.eos_token_id] if i is not None})

    def student_prompt(self, problem: str, *, thinking: bool | None = None) -> list[int]:
        """Token ids of the deployment prompt (paper, figure 'Prompt views'); thinking as configured unless given."""
        thinking = self.student_thinking if thinking is None else thinking
        return encode(self.tokenizer, student_messages(problem), thinking=thinking)

    def teacher_prompt(
        self, problem: str, context: str | None, *, complete: bool, rationale: str | None = None
    ) -> list[int]:
        """Token ids of the privileged prompt around a masked or complete solution (same figure), or around none."""
        if context is None:
            return self.student_prompt(problem, thinking=self.teacher_thinking)
        messages = teacher_messages(problem, context, complete=complete, rationale=rationale)
        return encode(self.tokenizer, messages, thinking=self.teacher_thinking)

    def rationale_prompt(self, problem: str, context: str, *, complete: bool) -> list[int]:
        """Token ids of what a reason-first teacher replies to, without thinking: its reply is the thought."""
        return encode(
            self.tokenizer, rationale_messages(problem, context, complete=complete), thinking=False
        )

    def solution_ids(self, solution: str) -> list[int]:
        """Token ids of a solution as a completion, its end token included."""
        return [
            *self.tokenizer.encode(solution, add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids, with or without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=not special)
        assert isinstance(text, str)
        return text

    def transcript(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """What the policy wrote, for a grader: think tags and all, the one that the prompt ends in put in front."""
        ended = len(completion) > 0 and completion[-1] in self.end_ids
        text = self.decode(completion[:-1] if ended else completion, special=True)
        opened = self.decode(prompt[-8:], special=True).rstrip().endswith("<think>")
        return "<think>\n" + text if opened else text

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Within this block an adapter is part of the weights, rounded to their dtype; afterwards all is as it was.

        Rounding may lose a small adapter (docs/paper.md, D4): for export and for comparison, not for training.
        """
        if self.tuning == "full":
            yield
            return
        with torch.no_grad():
            layers = list(self.adapted.values())
            before = [layer.get_base_layer().weight.clone() for layer in layers]
            self.model.merge_adapter()
            try:
                yield
            finally:
                self.model.unmerge_adapter()
                for layer, weight in zip(layers, before, strict=True):
                    layer.get_base_layer().weight.copy_(
                        weight
                    )  # what was subtracted again was rounded, too

    def hidden_states(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> Float[Tensor, "n h"]:
        """Final hidden states from which each completion token is predicted, completions laid end to end.

        Row i contributes the states at positions len(prompt) - 1 ... len(prompt) + len(completion) - 2, so that
        ``lm_head`` of state n gives the logits z^n of the paper's prefix ŷ_{<n} (paper: Eq. entropy_ratio and above).
        """
        rows = [
            [*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)
        ]
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        starts = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        positions = torch.arange(width, device=self.device)
        states = self.base.get_decoder()(
            input_ids=ids, attention_mask=(positions < lengths[:, None]).long(), use_cache=False
        ).last_hidden_state
        predicts = (positions >= starts[:, None] - 1) & (positions < lengths[:, None] - 1)
        selected: Tensor = states[predicts]
        return selected


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, thinking: bool
) -> list[int]:
    """Token ids of a chat prompt, up to where the assistant begins to write."""
    ids = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=True,
        enable_thinking=thinking,
        tokenize=True,
        return_dict=False,
    )
    assert isinstance(ids, list)
    return [int(i) for i in ids]


def load_policy(config: cfg.Model, *, seed: int, device: torch.device | str = "cpu") -> Policy:
    """Load a model and its tokenizer; freeze it under a fresh adapter (B = 0: the student starts as the base), or not.

    Args:
        config: path, dtype, tuning, LoRA rank and targets, thinking of the two views (paper: section 'Experimental
            Details'). With tuning "full" there is no adapter, and every weight is trained.
        seed: of the adapter's initial A.

    Raises:
        PolicyError: nothing loadable at the path, no lm_head, no chat template, a vocabulary that the head does not
            cover, logits that are not lm_head(hidden state), no module with a target's name, or an adapter on lm_head.
    """
    path = model_path(config.path)
    if not sys.stderr.isatty():
        disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        base = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, config.dtype), attn_implementation=config.attention
        )
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f"model.path {config.path!r} cannot be loaded as a causal language model: {error}"
        ) from error
    _check(base, tokenizer, config)
    # A repetition penalty or a temperature that came with the model would bend the policy that is trained.
    base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
    base.to(device)
    model = _with_adapter(base, config, seed) if config.tuning == "lora" else base
    lm_head = base.get_output_embeddings()
    if not isinstance(lm_head, nn.Linear):
        raise PolicyError(
            f"model.path {config.path!r}: the loss needs a plain linear lm_head, and this one is a "
            f"{type(lm_head).__module__}.{type(lm_head).__name__}; model.lora_targets must leave it out"
        )
    model.eval()
    if config.gradient_checkpointing:
        model.train()  # transformers checkpoints in training mode only, which must not switch dropout on
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Policy(model, tokenizer, lm_head, config.student_thinking, config.teacher_thinking)


def _with_adapter(base: PreTrainedModel, config: cfg.Model, seed: int) -> peft.PeftModel:
    torch.manual_seed(seed)
    adapter = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(config.lora_targets),
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(base, adapter)
    except ValueError as error:
        raise PolicyError(f"model.lora_targets {config.lora_targets}: {error}") from error


def _check(base: Any, tokenizer: PreTrainedTokenizerBase, config: cfg.Model) -> None:
    head = base.get_output_embeddings()
    if head is None:
        raise PolicyError(
            f"model.path {config.path!r} has no lm_head; a causal language model is needed"
        )
    if tokenizer.chat_template is None:
        raise PolicyError(
            f"model.path {config.path!r} has no chat template; take an instruction-tuned model or add "
            f"chat_template.jinja to its folder"
        )
    if len(tokenizer) > head.weight.shape[0]:
        raise PolicyError(
            f"vocabulary mismatch in {config.path!r}: the tokenizer has {len(tokenizer)} tokens, lm_head has "
            f"{head.weight.shape[0]} rows; the tokenizer belongs to another model"
        )
    # Some families scale or cap their logits after the head; the loss must see the logits that the model samples from.
    with torch.no_grad():
        ids = torch.arange(4, device=base.device)[None]
        direct = base(input_ids=ids, use_cache=False).logits
        through = head(base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(direct.float(), through.float(), rtol=1e-2, atol=1e-2):
        raise PolicyError(
            f"model.path {config.path!r} changes its logits after lm_head (scaling or soft-capping), "
            f"which the loss does not model"
        )
