"""The model that is trained: its prompts, its hidden states, its trained parameters.

It takes token ids and gives hidden states of completion positions. The projection onto the
vocabulary belongs to the loss, which need not hold all of it. How the same model is its own teacher
is said in paint.model.teacher, how it is stored in paint.model.weights.

Left out: padding between prompt and completion. A row is prompt, completion, padding. So positions
count from the row's own start, and neither padding nor the other rows of a batch change a row.
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

from paint import config as cfg
from paint.context import rationale_messages, student_messages, teacher_messages
from paint.errors import PaintError
from paint.lab.files import model_path
from paint.model.control import control_text, without_control


class PolicyError(PaintError, ValueError):
    """The model cannot be student and teacher; the message names the reason and the way out."""


@dataclass(frozen=True)
class Policy:
    """A causal language model, trained as a LoRA adapter or as a whole, with tokenizer and head.

    Attributes:
        model: a peft model, whose base weights are frozen, or a plain one, all of whose weights are
            trained.
        tokenizer: with a chat template.
        lm_head: hidden states (n h) to logits (n v). It has no adapter: where adapters are trained,
            it is frozen.
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
        """The model without peft's wrapper; its layers keep their adapters."""
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
        """Token ids of the deployment prompt, with thinking as configured unless given.

        Source: figure 'Prompt views'.
        """
        thinking = self.student_thinking if thinking is None else thinking
        return encode(self.tokenizer, student_messages(problem), thinking=thinking)

    def teacher_prompt(
        self, problem: str, context: str | None, *, complete: bool, rationale: str | None = None
    ) -> list[int]:
        """Token ids of the privileged prompt around a masked or complete solution, or around none.

        Source: figure 'Prompt views'.
        """
        if context is None:
            return self.student_prompt(problem, thinking=self.teacher_thinking)

        if rationale is not None:  # the model's own words, which nobody can mend
            rationale = without_control(self.tokenizer, rationale)
        messages = teacher_messages(problem, context, complete=complete, rationale=rationale)
        return encode(self.tokenizer, messages, thinking=self.teacher_thinking)

    def rationale_prompt(self, problem: str, context: str, *, complete: bool) -> list[int]:
        """Token ids of what a reason-first teacher replies to.

        Thinking is off: the reply is the thought.
        """
        messages = rationale_messages(problem, context, complete=complete)
        return encode(self.tokenizer, messages, thinking=False)

    def solution_ids(self, solution: str) -> list[int]:
        """Token ids of a solution as a completion, its end token included."""
        _require_no_control(self.tokenizer, solution)
        ids = self.tokenizer.encode(solution, add_special_tokens=False)
        return [*ids, self.tokenizer.eos_token_id]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids, with or without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=not special)
        assert isinstance(text, str)
        return text

    def transcript(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """What the policy wrote, as a grader reads it.

        Its think tags are kept, and one that ends the prompt is put in front.
        """
        has_ended = len(completion) > 0 and completion[-1] in self.end_ids
        text = self.decode(completion[:-1] if has_ended else completion, special=True)
        opens_thought = self.decode(prompt[-8:], special=True).rstrip().endswith("<think>")
        return "<think>\n" + text if opens_thought else text

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Within this block the adapter is part of the weights; afterwards all is as it was.

        The sum is rounded to the weights' dtype, which may lose a small adapter (docs/paper.md,
        D4). So this is for export and for comparison, not for training.
        """
        if self.tuning == "full":
            yield
            return

        with torch.no_grad():
            layers = list(self.adapted.values())
            originals = [layer.get_base_layer().weight.clone() for layer in layers]
            self.model.merge_adapter()
            try:
                yield
            finally:
                self.model.unmerge_adapter()
                # Subtracting the adapter again has rounded once more.
                for layer, original in zip(layers, originals, strict=True):
                    layer.get_base_layer().weight.copy_(original)

    def hidden_states(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> Float[Tensor, "n h"]:
        """Final hidden states that predict each completion token, completions laid end to end.

        Row i contributes the states at positions p - 1 ... p + c - 2, where p and c are the lengths
        of its prompt and completion. So ``lm_head`` of state n gives the logits z^n of the paper's
        prefix ŷ_{<n}.

        Source: Eq. entropy_ratio and above.
        """
        rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
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
    """Token ids of a chat prompt, up to where the assistant begins to write.

    Raises:
        PolicyError: a message holds text that the chat format takes for control.
    """
    for message in messages:
        _require_no_control(tokenizer, message["content"])
    ids = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=True,
        enable_thinking=thinking,
        tokenize=True,
        return_dict=False,
    )
    assert isinstance(ids, list)
    return [int(i) for i in ids]


def _require_no_control(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    if piece := control_text(tokenizer, text):
        raise PolicyError(
            f"a text holds {piece!r}, which the model's chat format takes for control, so that it "
            f"would be another conversation; spell it otherwise ({text[:60]!r} ...)"
        )


def load_policy(config: cfg.Model, *, seed: int, device: torch.device | str = "cpu") -> Policy:
    """Load a model and its tokenizer, and put a fresh adapter on it, or none.

    A fresh adapter has B = 0, so that the student starts as the base.

    Args:
        config: path, dtype, tuning, LoRA rank and targets, thinking of the two views (paper:
            section 'Experimental Details'). With tuning "full" there is no adapter, and every
            weight is trained.
        seed: of the adapter's initial A.

    Raises:
        PolicyError: nothing loadable at the path, no lm_head, no chat template, a vocabulary that
            the head does not cover, logits that are not lm_head(hidden state), no module with a
            target's name, or an adapter on lm_head.
    """
    base, tokenizer = _load_base(config)
    base.to(device)
    model = _with_adapter(base, config, seed) if config.tuning == "lora" else base

    lm_head = base.get_output_embeddings()
    if not isinstance(lm_head, nn.Linear):
        raise PolicyError(
            f"model.path {config.path!r}: the loss needs a plain linear lm_head, and this one is a "
            f"{type(lm_head).__module__}.{type(lm_head).__name__}; "
            f"model.lora_targets must leave it out"
        )

    model.eval()
    if config.gradient_checkpointing:
        _checkpoint_gradients(model)
    return Policy(model, tokenizer, lm_head, config.student_thinking, config.teacher_thinking)


def _load_base(config: cfg.Model) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model as it comes, checked, without settings that would bend its sampling."""
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

    _require_usable(base, tokenizer, config)
    # A repetition penalty or a temperature that came with the model would bend the policy.
    base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
    return base, tokenizer


def _require_usable(base: Any, tokenizer: PreTrainedTokenizerBase, config: cfg.Model) -> None:
    """Raise PolicyError for a model without a chat format, or whose logits the loss cannot see."""
    head = base.get_output_embeddings()
    if head is None:
        raise PolicyError(
            f"model.path {config.path!r} has no lm_head; a causal language model is needed"
        )
    if tokenizer.chat_template is None:
        raise PolicyError(
            f"model.path {config.path!r} has no chat template; take an instruction-tuned model or "
            f"add chat_template.jinja to its folder"
        )
    if len(tokenizer) > head.weight.shape[0]:
        raise PolicyError(
            f"vocabulary mismatch in {config.path!r}: the tokenizer has {len(tokenizer)} tokens, "
            f"lm_head has {head.weight.shape[0]} rows; the tokenizer belongs to another model"
        )

    # Some families scale or cap their logits after the head. The loss must see the logits that
    # the model samples from.
    with torch.no_grad():
        ids = torch.arange(4, device=base.device)[None]
        logits = base(input_ids=ids, use_cache=False).logits
        hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        head_logits = head(hidden)
    if not torch.allclose(logits.float(), head_logits.float(), rtol=1e-2, atol=1e-2):
        raise PolicyError(
            f"model.path {config.path!r} changes its logits after lm_head (scaling or "
            f"soft-capping), which the loss does not model"
        )


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


def _checkpoint_gradients(model: peft.PeftModel | PreTrainedModel) -> None:
    # transformers checkpoints gradients in training mode only, which must not switch dropout on.
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0

    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
