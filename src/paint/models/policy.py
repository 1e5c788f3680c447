"""Policy: the trained model with its tokenizer, prompts and hidden states.

It maps token ids to hidden states of completion positions. The loss projects them onto the
vocabulary (paint.objective.fused), so that not all logits are in memory. The teacher's weights are
in paint.models.teacher, saving and loading in paint.models.weights.

A row is prompt, completion, padding, without padding in between. So positions count from the row's
start, and neither padding nor the other rows of a batch change a row.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import peft
import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    FineGrainedFP8Config,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from chatforms.call_styles import CallStyle, call_style
from chatforms.conventions import (
    Conventions,
    common_length,
    missing_header,
    read_conventions,
    template_arguments,
)
from chatforms.messages import THOUGHT_FIELDS
from chatforms.rendering import render_chat
from chatforms.special_tokens import require_no_control
from paint.config import schema as cfg
from paint.config.recipe import require_package
from paint.core.demo_files import model_path
from paint.core.device import product_slowdown, to_device
from paint.core.errors import format_short, format_value, wrap_errors
from paint.core.hub import require_model
from paint.core.model_folder import ADAPTER
from paint.core.storage import verify_export
from paint.data.problems import Problem
from paint.models import prompts as views
from paint.models.adapters import add_adapter, describe_adapters
from paint.models.caches import Beginning
from paint.models.joint_layers import JointLayers, share_inputs
from paint.models.layers import checkpoint_layers, fuse_norms
from paint.models.liger import use_liger
from paint.models.model_errors import PolicyError as PolicyError
from paint.models.model_errors import PromptError, chat_errors
from paint.models.references import Reference, fit_reference
from paint.models.rows import joined_rows
from paint.models.sharding import digest_of_weights, is_sharded, ranks_here, shard
from paint.objective.messages import student_messages
from paint.resolve.plan import Machine, dtype_on
from paint.resolve.structure import dropout_rates, linear_layers, rope_range

HEADER_TOKENS = 64
"""Tokens at the end of a prompt in which the chat template may open a thought."""

LOGIT_SCALES = (
    *("final_logit_softcapping", "logit_scale", "logits_scaling"),
    *("lm_head_multiplier", "output_multiplier"),
)
"""Settings of config.json by which a family scales or caps its logits."""

NEAR = 0.01
"""Distance of two tokens' rows of the head, as a share of the norm, below which a model cannot tell
the tokens apart (assumed)."""


@dataclass(frozen=True)
class Policy:
    """A causal language model with tokenizer and head, trained by LoRA or in all weights."""

    model: peft.PeftModel | PreTrainedModel  # with frozen base weights, or with all trained
    tokenizer: PreTrainedTokenizerBase  # with a chat template
    lm_head: nn.Linear  # hidden states (n h) to logits (n v), without an adapter
    student_thinking: bool  # whether the view's prompt leaves thinking on
    teacher_thinking: bool
    digest: str | None = None  # of sharded base weights, as one rank alone cannot compute it
    prompts: cfg.PromptsConfig = cfg.PAPER_PROMPTS
    kernels: str = ""  # on CUDA: whose kernels compute the layers, in a line
    day: str = ""  # for a template that reads the clock, as YYYY-MM-DD; "" is the current day
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas of what the model may call

    @cached_property
    def call_style(self) -> CallStyle:
        """How the chat template spells a call of a tool."""
        with chat_errors():
            return call_style(self.tokenizer)

    @property
    def call_warning(self) -> str:
        """A line where the model cannot write a mark of its template's calls; "" if it can.

        A token that no text of its training had may have the row of an unused one in the head, as
        <tool_call> of Qwen2.5-Coder-0.5B-Instruct. An adapter leaves the head as it is.
        """
        if not self.tools or is_sharded(self.base):
            return ""
        style, known = self.call_style, self.tokenizer.added_tokens_decoder
        marks = "".join([style.before, style.opening, style.closing, style.after])
        for token in self.tokenizer.encode(marks, add_special_tokens=False):
            others = _near_rows(self.lm_head.weight.detach(), token) if token in known else 0
            if others:
                return (
                    f"tools: the model can hardly write {known[token]}, a mark of the calls of its "
                    f"chat template: its head has nearly the same row for {others:,} other tokens; "
                    f"set model.train_mode full, use another model, or a template with other marks"
                )
        return ""

    @cached_property
    def conventions(self) -> Conventions:
        """What its template, tokenizer and generation settings say of turns and thoughts."""
        with _template(self.tokenizer.name_or_path), chat_errors():
            ends = _declared_ends(self.model, self.tokenizer)
            return read_conventions(self.tokenizer, ends, self.day or None)

    @property
    def summary(self) -> str:
        base = self.base
        parts = [self.conventions.line(), f"linear layers {' '.join(linear_layers(base))}"]
        rates = [f"{name} {rate:g}" for name, rate in dropout_rates(base).items()]
        if rates:
            parts.append(f"dropout {', '.join(rates)}")
        positions = rope_range(base.config)
        if positions:
            parts.append(f"one rope up to {positions:,} positions")
        return f"model: {', '.join(parts)}"

    @property
    def notes(self) -> list[str]:
        """What a run prints of it: conventions and structure, adapters and kernels."""
        notes = [self.summary]
        if self.tuning == "lora":
            notes.append(describe_adapters(self.base))
        if self.kernels:
            notes.append(self.kernels)
        return notes

    @property
    def warnings(self) -> list[str]:
        """What of its template and its tools is likely not what a training expects."""
        thinking = self.student_thinking and self.teacher_thinking
        lines = [*self.conventions.warnings(thinking=thinking), self.call_warning]
        return list(filter(None, lines))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def tuning(self) -> Literal["lora", "full"]:
        return "lora" if isinstance(self.model, peft.PeftModel) else "full"

    @property
    def base(self) -> PreTrainedModel:
        """The model without peft's wrapper; its layers keep their adapters."""
        return self.model.get_base_model() if self.tuning == "lora" else self.model

    @cached_property
    def adapted(self) -> dict[str, LoraLayer]:
        """Layers with an adapter, by name; none if every weight is trained."""
        modules = self.base.named_modules()
        return {name: module for name, module in modules if isinstance(module, LoraLayer)}

    @cached_property
    def joint_layers(self) -> JointLayers | None:
        """Joint products for decoding, of frozen weights that this process holds; else None."""
        if self.tuning == "full" or is_sharded(self.base):
            return None
        return JointLayers(self.base)

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def end_ids(self) -> list[int]:
        """Token ids that end a completion: the model's, the tokenizer's and the template's."""
        return list(self.conventions.end_ids)

    def student_prompt(self, problem: Problem | str, **options: Any) -> list[int]:
        """Return token ids of the deployment prompt (``ViewWriter.student``).

        A text is a problem without further fields (paper: figure 'Prompt views').
        """
        return self._ids(self.writer.student(_problem_of(problem), **options))

    def teacher_prompt(
        self, problem: Problem | str, context: str | None, **options: Any
    ) -> list[int]:
        """Return token ids of the privileged prompt (``ViewWriter.teacher``)."""
        return self._ids(self.writer.teacher(_problem_of(problem), context, **options))

    def rationale_prompt(self, problem: Problem | str, context: str, **options: Any) -> list[int]:
        """Return token ids of the request for a rationale (``ViewWriter.rationale``)."""
        return self._ids(self.writer.rationale(_problem_of(problem), context, **options))

    def _ids(self, text: str) -> list[int]:
        # A template writes the tokens that begin a text itself.
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @property
    def writer(self) -> views.ViewWriter:
        modes = self.student_thinking, self.teacher_thinking
        return views.ViewWriter(
            self.tokenizer, self.prompts, *modes, day=self.conventions.date, tools=self.tools
        )

    def template_difference(self) -> tuple[str, str]:
        """Return text that the template adds to one view only: to the student's, to the teacher's.

        It comes from the views' thinking modes, for the same message. Both are empty if the views
        differ in the privileged context alone, as in the paper (section 'Background').
        """
        problem = _problem_of("What is 1 + 1?")
        messages = student_messages(problem.problem)
        student, teacher = (
            self._ids(self.writer.render(problem, messages, thinking=thinking))
            for thinking in (self.student_thinking, self.teacher_thinking)
        )
        start = common_length(student, teacher)
        student, teacher = student[start:], teacher[start:]
        end = common_length(student[::-1], teacher[::-1])
        parts = student[: len(student) - end], teacher[: len(teacher) - end]
        return self.decode(parts[0], special=True), self.decode(parts[1], special=True)

    def solution_ids(self, solution: str) -> list[int]:
        """Return token ids of a text as a completion, ended as the chat template ends a turn."""
        with chat_errors():
            require_no_control(self.tokenizer, solution)
        return [*self._ids(solution), *self._ending]

    @property
    def _ending(self) -> list[int]:
        """The template's end of a turn; an end token follows where it has none."""
        turn, ends = list(self.conventions.end_of_turn_ids), self.end_ids
        if turn and turn[-1] in ends:
            return turn
        own = self.tokenizer.eos_token_id
        return [*turn, ends[0] if own is None else own]

    def reference(self, problem: Problem | str) -> Reference:
        """Return a problem's solution, or a text in its place, as it follows the student's prompt.

        Raises PromptError for a solution whose thought does not fit the model's.
        """
        known, thinking = self.conventions, self.student_thinking
        if isinstance(problem, str):
            return fit_reference(problem, known, thinking=thinking)
        whose = f"the solution of problem {problem.name}"
        return fit_reference(problem.solution, known, thinking=thinking, whose=whose)

    def reference_ids(self, problem: Problem | str) -> list[int]:
        """Return token ids of a reference solution after the student's prompt, with its end."""
        reference = self.reference(problem)
        return [*self._ids(reference.lead), *self.solution_ids(reference.text)]

    def turn_ids(
        self, problem: Problem, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any]
    ) -> tuple[list[int], list[int]]:
        """Return token ids of a prompt, and of an assistant's message that the template writes.

        ``before`` are the messages of the conversation between the first prompt and this turn.
        Raises PromptError where the template does not write the message behind the prompt, or
        leaves out a thought in a field of its own.
        """
        prompt = self.student_prompt(problem, then=before)
        written = self.writer.student(problem, then=[*before, message], is_reply=True)
        begun, end = self.decode(prompt, special=True), self.conventions.end_of_turn.strip()
        # A prompt without thinking may end in an empty thought, which written turns do not have.
        heads = [
            head for head in (begun, self._without_empty_thought(begun)) if written.startswith(head)
        ]
        if not heads:
            raise PromptError(
                f"problem {problem.name}: the chat template writes an assistant's turn otherwise "
                f"than behind its prompt; set model.student_thinking to {not self.student_thinking}"
            )
        text = written[len(heads[0]) :]
        for name in THOUGHT_FIELDS:
            if str(message.get(name) or "").strip() not in text:
                raise PromptError(
                    f'problem {problem.name}: the chat template leaves out "{name}" of a turn that '
                    f"is to be learned; leave it out, or write the thought in the content"
                )
        if end and end in text:
            text = text[: text.rindex(end)]
        return prompt, [*self._ids(text), *self._ending]

    def _without_empty_thought(self, text: str) -> str:
        for tags in self.conventions.tags:
            before, opening, inner = text.rpartition(tags.opening)
            if opening and not inner.replace(tags.closing, "").strip():
                return before
        return text

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=not special)
        assert isinstance(text, str)
        return text

    def transcript(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """Return what a grader reads: the text, with the tag of a thought that the prompt opens."""
        has_ended = len(completion) > 0 and completion[-1] in self.end_ids
        text = self.decode(completion[:-1] if has_ended else completion, special=True)
        end = self.decode(prompt[-HEADER_TOKENS:], special=True).rstrip()
        for opened in self.conventions.opened:
            if opened and end.endswith(opened.rstrip()):
                return f"{opened.rstrip()}\n{text}"
        return text

    def require_rope_range(self, tokens: int) -> None:
        """Raise PolicyError if a row of this length changes the rope of the rows next to it."""
        positions = rope_range(self.base.config)
        if positions is not None and tokens > positions:
            raise PolicyError(
                f"a row of {tokens} tokens exceeds the {positions} positions within which the "
                f"frequencies of the model's rope stay the same, and would change the rows next to "
                f"it; lower data.max_prompt_tokens or max_new_tokens, so that prompt and "
                f"completion fit"
            )

    def hidden_states(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        beginning: Beginning | None = None,
    ) -> Float[Tensor, "n h"]:
        """Return final hidden states that predict each completion token, completions concatenated.

        Row i contributes the states at positions p - 1 ... p + c - 2, where p and c are the lengths
        of its prompt and completion. Later turns go on in the row of the turn before where their
        prompts begin with it (``paint.models.rows``). So ``lm_head`` of state n gives the logits
        z^n of the paper's prefix ŷ_{<n} (Eq. entropy_ratio and above).

        The beginning is that of all prompts, read before with these weights; without gradients.
        Raises PolicyError for a row beyond the range of the model's rope (``rope_range``).
        """
        rows = joined_rows(prompts, completions)
        width = max(len(row.ids) for row in rows)
        self.require_rope_range(width)
        start = beginning.length if beginning else 0
        width -= start
        # Any id will do, as no token attends to padding.
        pad = self.tokenizer.pad_token_id or 0
        own = [row.ids[start:] for row in rows]
        ids = to_device([ids + [pad] * (width - len(ids)) for ids in own], self.device)
        # Not a boolean mask, whose size the device would have to tell.
        predicts = to_device(
            [number * width + i - start for number, row in enumerate(rows) for i in row.predicts],
            self.device,
        )

        decoder = self.base.get_decoder()
        kept = beginning.inputs(decoder, width) if beginning else {"use_cache": False}
        # No mask: padding comes last, so no token attends to it; a mask has tokens x tokens a row.
        states = decoder(input_ids=ids, **kept).last_hidden_state
        selected: Tensor = states.flatten(0, 1).index_select(0, predicts)
        return selected


def _near_rows(rows: Tensor, place: int) -> int:
    """Return the number of other rows within NEAR of a row's norm."""
    row = rows[place].float()
    near = [(part.float() - row).norm(dim=1) <= NEAR * row.norm() for part in rows.split(4096)]
    return int(torch.cat(near).sum()) - 1


def _problem_of(problem: Problem | str) -> Problem:
    return Problem(problem, "", "", "") if isinstance(problem, str) else problem


class ModelFiles(NamedTuple):
    """What is read of a model before its weights."""

    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig


def open_model(path: str) -> ModelFiles:
    """Read what is known of a model before its weights are loaded. Raises PolicyError."""
    verify_export(Path(model_path(path)))
    return ModelFiles(load_tokenizer(path), read_config(path))


def read_config(path: str) -> PreTrainedConfig:
    """Read a model's config.json. Raises PolicyError."""
    with _loading(path):
        require_model(model_path(path))
        # False: by default, transformers may ask on the terminal whether to run code.
        return AutoConfig.from_pretrained(model_path(path), trust_remote_code=False)


def load_policy(
    config: cfg.ModelConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    prompts: cfg.PromptsConfig = cfg.PAPER_PROMPTS,
    files: ModelFiles | None = None,
) -> Policy:
    """Load a model and its tokenizer, and add a new adapter with train_mode "lora".

    A new adapter has B = 0, so that the student starts as the base; ``seed`` is that of its A. With
    train_mode "full" there is no adapter, and every weight is trained. Raises PolicyError for a
    model that cannot be loaded, or whose files, tokenizer, logits or layers do not fit.
    """
    if config.dtype == "auto":
        config = replace(config, dtype=_auto_dtype(config, torch.device(device)))
    is_shared = config.shard and ranks_here() > 1
    tokenizer = (files or open_model(config.path)).tokenizer
    base = _load_base(config, device, is_shared=is_shared)
    kernels = _use_kernels(base, config, device)  # before sharding: each weight is one tensor
    model = add_adapter(base, config, seed) if config.train_mode == "lora" else base
    if is_shared:  # after adding adapters, which take their shapes from unsharded weights
        shard(base, device)
    with _loading(config.path):
        base.to(device)
    _require_usable(base, tokenizer, config)
    if config.train_mode == "lora" and torch.device(device).type == "cuda":
        share_inputs(base)
    # Also while it trains: dropout and its like stay off (C28).
    model.eval()
    digest = digest_of_weights(base) if is_sharded(base) else None
    thinking = config.student_thinking, config.teacher_thinking
    policy = Policy(
        model,
        tokenizer,
        base.get_output_embeddings(),
        *thinking,
        digest=digest,
        prompts=prompts,
        kernels=kernels,
        day="" if config.date == "auto" else config.date,
    )
    if config.gradient_checkpointing is True and not checkpoint_layers(base):
        raise PolicyError(
            f"model.path {format_value(config.path)}: {type(base).__name__} has no layers that "
            f"transformers can checkpoint; set model.gradient_checkpointing to false"
        )
    return policy


def _auto_dtype(config: cfg.ModelConfig, device: torch.device) -> cfg.Dtype:
    if device.type != "cpu":
        return dtype_on(config, Machine(gpus=1))
    return dtype_on(config, Machine(slowdown={"bfloat16": product_slowdown(torch.bfloat16)}))


def _use_kernels(base: PreTrainedModel, config: cfg.ModelConfig, device: torch.device | str) -> str:
    """Replace layers by fused ones on CUDA; return whose they are, or "" elsewhere."""
    if torch.device(device).type != "cuda":
        return ""
    kernels = use_liger(base) if config.liger else "kernels: PyTorch's"
    fuse_norms(base, device)
    return kernels


def _load_base(
    config: cfg.ModelConfig, device: torch.device | str, *, is_shared: bool
) -> PreTrainedModel:
    if not sys.stderr.isatty():
        disable_progress_bar()
    with _loading(config.path):
        base, loading = AutoModelForCausalLM.from_pretrained(
            model_path(config.path),
            # Sharded weights stay in their file, which a conversion would read completely.
            dtype="auto" if is_shared else getattr(torch, config.dtype),
            attn_implementation=config.attention,
            output_loading_info=True,
            # By default, transformers may ask on the terminal whether to run code.
            trust_remote_code=False,
            **quantization(config, device),
        )

    if getattr(base, "_hf_peft_config_loaded", False):  # of an adapter on the hub
        raise PolicyError(f"model.path {format_value(config.path)} {ADAPTER}")
    _require_complete(base, loading, config)
    _forget_restored_quantization(base, config)
    own = str(base.dtype).removeprefix("torch.")
    if is_shared and own != config.dtype:  # each rank would convert, and hold, all of them
        raise PolicyError(
            f"model.path {format_value(config.path)} is stored in {own}, and model.shard reads "
            f"each layer from its file as it is: set model.dtype to {own}, or store it in "
            f"{config.dtype}"
        )
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # bitsandbytes would repack 4-bit weights into a format without gradients.
            module.support_avx512bf16_for_cpu = False
    # A repetition penalty or temperature in the model's files would change the policy.
    base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
    return base


def quantization(config: cfg.ModelConfig, device: torch.device | str) -> dict[str, Any]:
    """Return arguments with which transformers loads layers in 4 bits, as a vLLM server does.

    Of a model that is stored in FP8, those with which it restores the layers: FP8 has no gradients,
    and the sum with an adapter would be rounded to 8 bits.
    """
    if config.quantization == "none":
        stored = getattr(read_config(config.path), "quantization_config", None) or {}
        if stored.get("quant_method") != "fp8":
            return {}
        restored = FineGrainedFP8Config.from_dict({**stored, "dequantize": True})
        return {"quantization_config": restored}
    require_package("model.quantization nf4", "bitsandbytes")
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quantization,
        # Scales of 8 bits, as vLLM's.
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": nf4, "device_map": {"": device}}


def _forget_restored_quantization(base: PreTrainedModel, config: cfg.ModelConfig) -> None:
    # transformers would save a model whose layers were restored from FP8 or MXFP4 in these formats
    # again, without a config.json that says so.
    is_quantized = getattr(base, "hf_quantizer", None) is not None
    if getattr(read_config(config.path), "quantization_config", None) and not is_quantized:
        # The names and layouts of the file, among which are those of the formats: without them,
        # transformers takes those of the family.
        del base._weight_conversions


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer. Raises PolicyError unless its chat template shows the user's message."""
    with _loading(path):
        require_model(model_path(path))
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            model_path(path), trust_remote_code=False
        )
    # Where its files are missing, transformers makes one without tokens.
    if not tokenizer.encode("a", add_special_tokens=False):
        raise PolicyError(
            f"model.path {format_value(path)} has a tokenizer without tokens: its files are "
            f"missing; add tokenizer.json and tokenizer_config.json of the model"
        )

    # Prompt lengths are checked by paint, with its own message, so silence transformers' warning.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True

    problem = "What is 1 + 1?"
    for thinking in (False, True):
        with _template(path), chat_errors():
            prompt = render_chat(
                tokenizer,
                student_messages(problem),
                add_generation_prompt=True,
                **template_arguments(tokenizer, thinking=thinking),
            )
            if problem not in prompt:
                raise ValueError(f"omits the user's message, and yields {format_short(prompt)}")
            header = missing_header(tokenizer)
            if header:
                raise ValueError(
                    f"has no generation prompt: an assistant's turn begins by {header!r}, which "
                    f"add_generation_prompt does not add, so the model would have to write it "
                    f"itself; add {{%- if add_generation_prompt %}} with this text and "
                    f"{{%- endif %}} to its end"
                )
    return tokenizer


def _template(path: str) -> AbstractContextManager[None]:
    return wrap_errors(
        f"the chat template of {path}",
        PolicyError,
        "fix chat_template.jinja in the model's folder, or choose an instruction-tuned model",
    )


def _loading(path: str) -> AbstractContextManager[None]:
    return wrap_errors(
        f"model.path {format_value(path)} cannot be loaded as a causal language model",
        PolicyError,
        "name the folder or hub name of one, with all its files and the libraries that it needs",
    )


def _require_complete(
    base: PreTrainedModel, loading: Mapping[str, Any], config: cfg.ModelConfig
) -> None:
    """Raise PolicyError where the weights are those of another config.json."""
    # transformers initialises missing weights, and those of another shape, at random.
    missing = [*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])]
    # It drops layers, and biases of layers, that config.json leaves out. Other unexpected weights
    # are of parts that a language model has not, such as a vision tower.
    own = {_without_numbers(name) for name, _ in base.named_modules()}
    dropped = [
        name
        for name in loading["unexpected_keys"]
        if _without_numbers(name.rpartition(".")[0]) in own
    ]
    for fault, names in (("lacks", missing), ("has no place for", dropped)):
        if names:
            raise PolicyError(
                f"model.path {format_value(config.path)} {fault} {min(names)} ({len(names)} "
                f"weights in all); its weights and its config.json belong to different models, or "
                f"files are missing"
            )


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _require_usable(base: Any, tokenizer: PreTrainedTokenizerBase, config: cfg.ModelConfig) -> None:
    """Raise PolicyError for a model without end tokens, or with logits other than lm_head's."""
    place, head = f"model.path {format_value(config.path)}", base.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise PolicyError(f"{place}: the loss needs a linear lm_head, not {type(head).__name__}")
    size = head.weight.shape[0]
    # Fewer tokens than rows are usual: some families pad their vocabulary.
    if len(tokenizer) > size:
        raise PolicyError(
            f"vocabulary mismatch in {place}: the tokenizer has {len(tokenizer)} tokens, lm_head "
            f"has {size} rows; the tokenizer belongs to another model"
        )
    ends = _declared_ends(base, tokenizer)
    if not ends or not all(isinstance(i, int) and 0 <= i < size for i in ends):
        raise PolicyError(
            f"{place} has {ends or 'no token'} to end a completion with: each would be truncated; "
            f"set eos_token_id in its generation_config.json to tokens of its vocabulary"
        )

    # The loss must use the logits that the model samples from, which some families scale or cap
    # after the head. A cap hardly changes small logits, so the config is read, too.
    # A model that reads images, too, has a config for each part.
    text_config, changed = base.config.get_text_config(), ""
    for name in LOGIT_SCALES:
        value = getattr(text_config, name, None)
        if value not in (None, 1):
            changed = f"{name} {value}"
    with torch.no_grad(), _loading(config.path):
        ids = torch.arange(4, device=base.device)[None]
        logits = base(input_ids=ids, use_cache=False).logits
        of_head = head(base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state)
    if not logits.isfinite().all():
        raise PolicyError(
            f"{place} computes numbers that are not finite; its weights are damaged, or "
            f"model.dtype {config.dtype} is too small for them"
        )
    if not changed and not torch.allclose(logits.float(), of_head.float(), rtol=1e-2, atol=1e-2):
        changed = "scaling or soft-capping"
    if changed:
        raise PolicyError(
            f"{place} changes its logits after lm_head ({changed}), which the loss does not model"
        )


def _declared_ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    own = model.generation_config.eos_token_id
    ids = own if isinstance(own, list) else [own]
    return [i for i in [*ids, tokenizer.eos_token_id] if i is not None]
