"""Policy: the trained model with its tokenizer, prompts and hidden states.

It maps token ids to hidden states of completion positions. The loss projects them onto the
vocabulary (paint.objective.fused), so that not all logits are in memory. The teacher's weights are
in paint.models.teacher, saving and loading in paint.models.weights.

A row is prompt, completion, padding, without padding in between. So positions count from the row's
start, and neither padding nor the other rows of a batch change a row.
"""

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import peft
import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.logging import disable_progress_bar

from paint.config import schema as cfg
from paint.config.recipe import require_bitsandbytes
from paint.core.device import require_dtype, to_device
from paint.core.errors import PaintError, format_short, format_value, wrap_errors
from paint.core.hub import local_file, require_model
from paint.data.problems import Problem
from paint.demo.files import model_path
from paint.grading.thoughts import is_thought_tag, open_thought, split_thought
from paint.models import prompts as views
from paint.models.conventions import (
    Conventions,
    common_length,
    read_conventions,
    template_arguments,
    today,
)
from paint.models.joint_layers import JointLayers
from paint.models.layers import (
    MemoryEfficientLoraLinear,
    checkpoint_layers,
    fuse_norms,
)
from paint.models.liger import use_liger
from paint.models.sharding import digest_of_weights, is_sharded, ranks_here, shard
from paint.models.special_tokens import drop_special_text, special_text
from paint.models.structure import position_limit, rope_range
from paint.models.targets import target_modules
from paint.objective.messages import student_messages

STATE_ERROR = 1e-3
"""Relative difference of states up to which two ways to compute them are the same, in float32."""

ROUNDING = 0.05
"""Relative difference of states that rounding to 16 bits may cause."""

LEAK = 1e-6
"""Relative difference of float32 states from which a packed row depends on another one. The shapes
are the same, so a model that keeps rows apart computes the same bits, but for the rounding of
experts that get other tokens."""

PROBE = (24, 40, 33)
"""Tokens of the rows on which two ways are compared, more than any convolution spans."""

HEADER_TOKENS = 64
"""Tokens at the end of a prompt in which the chat template may open a thought."""

LOGIT_SCALES = (
    *("final_logit_softcapping", "logit_scale", "logits_scaling"),
    *("lm_head_multiplier", "output_multiplier"),
)
"""Settings of config.json by which a family scales or caps its logits."""


class PolicyError(PaintError, ValueError):
    """The model cannot be student and teacher; the message names the reason and the fix."""


@dataclass(frozen=True)
class Policy:
    """A causal language model with tokenizer and head, trained by LoRA or in all weights."""

    model: peft.PeftModel | PreTrainedModel  # with frozen base weights, or with all trained
    tokenizer: PreTrainedTokenizerBase  # with a chat template
    lm_head: nn.Linear  # hidden states (n h) to logits (n v), without an adapter
    student_thinking: bool  # whether the view's prompt leaves thinking on
    teacher_thinking: bool
    packed: bool = False  # rows are concatenated instead of padded
    digest: str | None = None  # of sharded base weights, as one rank alone cannot compute it
    prompts: cfg.PromptsConfig = cfg.PAPER_PROMPTS
    kernels: str = ""  # on CUDA: whose kernels compute the layers, in a line
    day: str = ""  # for a template that reads the clock, as YYYY-MM-DD; "" is the current day

    @cached_property
    def conventions(self) -> Conventions:
        """What its template, tokenizer and generation settings say of turns and thoughts."""
        with _template(self.tokenizer.name_or_path):
            ends = _declared_ends(self.model, self.tokenizer)
            return read_conventions(self.base, self.tokenizer, ends, self.day or today())

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def tuning(self) -> Literal["lora", "full"]:
        """Train mode: an adapter, or every weight."""
        if isinstance(self.model, peft.PeftModel):
            return "lora"
        return "full"

    @property
    def base(self) -> PreTrainedModel:
        """The model without peft's wrapper; its layers keep their adapters."""
        if self.tuning == "lora":
            return self.model.get_base_model()
        return self.model

    @cached_property
    def adapted(self) -> dict[str, LoraLayer]:
        """Layers with an adapter, by name; none if every weight is trained."""
        layers: dict[str, LoraLayer] = {}
        for name, module in self.base.named_modules():
            if isinstance(module, LoraLayer):
                layers[name] = module
        return layers

    @cached_property
    def joint_layers(self) -> JointLayers | None:
        """Joint products for decoding, of frozen weights that this process holds; else None."""
        if self.tuning == "full" or is_sharded(self.base):
            return None
        return JointLayers(self.base)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the model's order."""
        parameters: list[nn.Parameter] = []
        for p in self.model.parameters():
            if p.requires_grad:
                parameters.append(p)
        return parameters

    @property
    def end_ids(self) -> list[int]:
        """Token ids that end a completion: the model's, the tokenizer's and the template's."""
        return list(self.conventions.end_ids)

    def student_prompt(self, problem: Problem | str, *, thinking: bool | None = None) -> list[int]:
        """Token ids of the deployment prompt, with thinking as configured unless given.

        A text is a problem without further fields (paper: figure 'Prompt views').
        """
        thinking = self.student_thinking if thinking is None else thinking
        messages = views.student_chat(self.prompts, _problem_of(problem))
        return self._encode(messages, thinking=thinking)

    def _encode(self, messages: views.Messages, *, thinking: bool) -> list[int]:
        return encode(self.tokenizer, messages, thinking=thinking, day=self.conventions.date)

    def teacher_prompt(
        self,
        problem: Problem | str,
        context: str | None,
        *,
        complete: bool,
        rationale: str | None = None,
        names: Mapping[str, str] = views.NO_NAMES,
    ) -> list[int]:
        """Token ids of the privileged prompt: with a masked, a complete or no reference.

        ``names`` are those of a context (``paint.data.contexts.Context``): texts of this completion
        or about it.
        """
        if context is None:
            return self.student_prompt(problem, thinking=self.teacher_thinking)

        if rationale is not None:  # generated text, which the user cannot correct
            rationale = drop_special_text(self.tokenizer, rationale)
        if names:  # so may be the context
            context = drop_special_text(self.tokenizer, context)
            names = {key: drop_special_text(self.tokenizer, names[key]) for key in names}
        messages = views.teacher_chat(
            self.prompts,
            _problem_of(problem),
            context,
            complete=complete,
            rationale=rationale,
            generated=names,
        )
        return self._encode(messages, thinking=self.teacher_thinking)

    def template_difference(self) -> tuple[str, str]:
        """Text that the chat template adds to only one view: to the student's, to the teacher's.

        It comes from the views' thinking modes, for the same message. Both are empty if the views
        differ in the privileged context alone, as in the paper (section 'Background').
        """
        student, teacher = (
            self._encode(student_messages("What is 1 + 1?"), thinking=thinking)
            for thinking in (self.student_thinking, self.teacher_thinking)
        )
        start = common_length(student, teacher)
        student, teacher = student[start:], teacher[start:]
        end = common_length(student[::-1], teacher[::-1])
        parts = student[: len(student) - end], teacher[: len(teacher) - end]
        return self.decode(parts[0], special=True), self.decode(parts[1], special=True)

    def rationale_prompt(
        self, problem: Problem | str, context: str, *, complete: bool
    ) -> list[int]:
        """Token ids of the request for a rationale; thinking is off, since that is the reply."""
        messages = views.rationale_chat(
            self.prompts, _problem_of(problem), context, complete=complete
        )
        return self._encode(messages, thinking=False)

    def solution_ids(self, solution: str) -> list[int]:
        """Token ids of a text as a completion, ended as the chat template ends a turn."""
        _require_no_control(self.tokenizer, solution)
        ids = self.tokenizer.encode(solution, add_special_tokens=False)
        return [*ids, *self._ending]

    @property
    def _ending(self) -> list[int]:
        """The template's end of a turn; an end token follows where it has none."""
        turn, ends = list(self.conventions.end_of_turn_ids), self.end_ids
        if turn and turn[-1] in ends:
            return turn
        own = self.tokenizer.eos_token_id
        return [*turn, ends[0] if own is None else own]

    def reference_ids(self, solution: str) -> list[int]:
        """Token ids of a reference solution after the student's prompt, including its end.

        A thought that the prompt opens is closed first, unless the solution closes it itself.
        """
        known = self.conventions
        opened = known.opened[self.student_thinking]
        written = solution.lstrip()
        brings_thought = open_thought(written[: len(opened)], known.tags).strip() == opened.strip()
        if opened and brings_thought:
            solution = written[len(opened.strip()) :].lstrip()
        if opened and split_thought(opened + solution, known.tags).answer is not None:
            return self.solution_ids(solution)
        before = known.before_reference[self.student_thinking]
        lead = self.tokenizer.encode(before, add_special_tokens=False) if before else []
        return [*lead, *self.solution_ids(solution)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids, with or without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=not special)
        assert isinstance(text, str)
        return text

    def transcript(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """Text of a completion for a grader, with thought tags, also one that the prompt opened."""
        has_ended = len(completion) > 0 and completion[-1] in self.end_ids
        text = self.decode(completion[:-1] if has_ended else completion, special=True)
        opening = self._opened_by(prompt)
        if opening:
            return f"{opening}\n{text}"
        return text

    def _opened_by(self, prompt: Sequence[int]) -> str:
        """The text by which a prompt leaves a thought open; "" if it leaves none."""
        end = self.decode(prompt[-HEADER_TOKENS:], special=True).rstrip()
        for opened in self.conventions.opened:
            if opened and end.endswith(opened.rstrip()):
                return opened.rstrip()
        opened = open_thought(end, self.conventions.tags)
        if is_thought_tag(opened):
            return opened
        return ""

    def require_mergeable(self) -> None:
        """Raise PolicyError for weights of 4 bits, and for an embedding that is the head, too."""
        if getattr(self.base, "is_loaded_in_4bit", False):
            raise PolicyError(
                "an adapter cannot be added to weights of 4 bits: it would be rounded away; load "
                "the model with model.quantization none"
            )
        tied = []
        for name, layer in self.adapted.items():
            if self._is_head(layer):
                tied.append(name)
        if tied:
            raise PolicyError(
                f"the adapter of {tied[0]} cannot be added to its weights: they are the head's, "
                f"too, and it would change; leave it out of model.lora_targets"
            )

    def _is_head(self, layer: LoraLayer) -> bool:
        weight: Tensor = layer.get_base_layer().weight
        return weight is self.lm_head.weight

    def require_rope_range(self, tokens: int) -> None:
        """Raise PolicyError if a row of this length changes the rope of the rows next to it."""
        positions = self._rope_range
        if positions is not None and tokens > positions:
            raise PolicyError(
                f"a row of {tokens} tokens exceeds the {positions} positions within which the "
                f"frequencies of the model's rope stay the same, and would change the rows next to "
                f"it; lower data.max_prompt_tokens or max_new_tokens, so that prompt and "
                f"completion fit"
            )

    @cached_property
    def _rope_range(self) -> int | None:
        return rope_range(self.base.config)

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Merge the adapter into the weights within the block, and restore them afterwards.

        The sum is rounded to the weights' dtype, which may lose a small adapter (docs/fidelity.md,
        D4). So this is for export and for comparison, not for training.
        """
        if self.tuning == "full":
            yield
            return
        self.require_mergeable()
        with torch.no_grad():
            weights = []
            for layer in self.adapted.values():
                weights.append(layer.get_base_layer().weight)
            originals = [weight.clone() for weight in weights]
            self.model.merge_adapter()
            try:
                yield
            finally:
                self.model.unmerge_adapter()
                # Subtracting the adapter rounds again, so restore the weights from copies.
                for weight, original in zip(weights, originals, strict=True):
                    weight.copy_(original)

    def hidden_states(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> Float[Tensor, "n h"]:
        """Final hidden states that predict each completion token, completions concatenated.

        Row i contributes the states at positions p - 1 ... p + c - 2, where p and c are the lengths
        of its prompt and completion. So ``lm_head`` of state n gives the logits z^n of the paper's
        prefix ŷ_{<n} (Eq. entropy_ratio and above).

        Raises PolicyError for a row beyond the range of the model's rope (``rope_range``).
        """
        rows = []
        for p, c in zip(prompts, completions, strict=True):
            rows.append([*p, *c])
        self.require_rope_range(max(map(len, rows)))
        if self.packed:
            return self._packed_states(rows, [len(prompt) for prompt in prompts])

        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = to_device([row + [pad] * (width - len(row)) for row in rows], self.device)
        starts = []
        for number, prompt in enumerate(prompts):
            starts.append(number * width + len(prompt) - 1)
        spans = [range(n, n + len(c)) for n, c in zip(starts, completions, strict=True)]
        # Not a boolean mask, whose size the device would have to tell.
        predicts = to_device([position for span in spans for position in span], self.device)

        # No mask: padding comes last, so no token attends to it; a mask has tokens x tokens a row.
        states = self.base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        selected: Tensor = states.flatten(0, 1).index_select(0, predicts)
        return selected

    def _packed_states(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """hidden_states of one concatenated row, in which position ids mark the starts of rows."""
        ids = to_device([[i for row in rows for i in row]], self.device)
        positions = torch.cat([torch.arange(len(row)) for row in rows]).to(self.device)
        states = self.base.get_decoder()(
            input_ids=ids, position_ids=positions[None], use_cache=False
        ).last_hidden_state[0]

        parts = states.split([len(row) for row in rows])
        return torch.cat([part[n - 1 : -1] for part, n in zip(parts, starts, strict=True)])


def _problem_of(problem: Problem | str) -> Problem:
    if isinstance(problem, str):
        return Problem(problem, "", "", "")
    return problem


def encode(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    *,
    thinking: bool,
    day: str | None = None,
) -> list[int]:
    """Token ids of a chat prompt, up to the reply. Raises PolicyError for control text in it.

    ``day`` is for a template that reads the clock, as YYYY-MM-DD; None is the current day.
    """
    for message in messages:
        _require_no_control(tokenizer, message["content"])
    with _template(tokenizer.name_or_path):
        ids = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **template_arguments(tokenizer, thinking=thinking, day=day),
        )
    assert isinstance(ids, list)
    return [int(i) for i in ids]


def _require_no_control(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    piece = special_text(tokenizer, text)
    if piece:
        raise PolicyError(
            f"a text contains {piece!r}, which the model's chat format takes for control; it "
            f"would change the conversation; spell it differently ({text[:60]!r} ...)"
        )


def load_policy(
    config: cfg.ModelConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    prompts: cfg.PromptsConfig = cfg.PAPER_PROMPTS,
) -> Policy:
    """Load a model and its tokenizer, and add a new adapter with train_mode "lora".

    A new adapter has B = 0, so that the student starts as the base; ``seed`` is that of its A. With
    train_mode "full" there is no adapter, and every weight is trained. Raises ConfigError for a
    dtype that the device does not support, and PolicyError for a model that cannot be loaded or
    whose files, tokenizer, logits or layers do not fit.
    """
    require_dtype(device, getattr(torch, config.dtype))
    is_shared = config.shard and ranks_here() > 1
    base, tokenizer = _load_base(config, device, is_shared=is_shared)
    kernels = _use_kernels(base, config, device)  # before sharding: each weight is one tensor
    model = _with_adapter(base, config, seed) if config.train_mode == "lora" else base
    if is_shared:  # after adding adapters, which take their shapes from unsharded weights
        shard(base, device)
    with _loading(config.path):
        base.to(device)
    _require_usable(base, tokenizer, config)
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
    if config.gradient_checkpointing is True:
        _checkpoint_gradients(policy, config)
    if config.packed:
        return _packing(policy, config)
    return policy


def _use_kernels(base: PreTrainedModel, config: cfg.ModelConfig, device: torch.device | str) -> str:
    """Replace layers by fused ones on CUDA; return whose they are, or "" elsewhere."""
    if torch.device(device).type != "cuda":
        return ""
    kernels = use_liger(base) if config.liger else "kernels: PyTorch's"
    fuse_norms(base, device)
    return kernels


def _probe(policy: Policy) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of random tokens, on which two ways to compute are compared."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, longest = len(policy.tokenizer), position_limit(policy.base.config).positions
    rows = []
    for length in PROBE:
        shape = (int(min(length, longest)),)
        rows.append(torch.randint(vocabulary, shape, generator=generator).tolist())
    return [row[: len(row) // 2] for row in rows], [row[len(row) // 2 :] for row in rows]


def _relative_error(states: Tensor, expected: Tensor) -> float:
    return float((states.float() - expected.float()).norm() / expected.float().norm())


def move_policy(policy: Policy, device: torch.device) -> None:
    """Move a policy that was loaded on the CPU to a device.

    Liger's kernels, which take the place of layers before adapters do, are not used.
    """
    policy.model.to(device)
    fuse_norms(policy.base, device)


def _packing(policy: Policy, config: cfg.ModelConfig) -> Policy:
    """Enable packing. Raises PolicyError if packed rows would depend on earlier rows.

    The states must be those of padded rows, up to rounding. Rounding in 16 bits may hide leakage
    between rows, so other tokens in the first row must not change the states of the others either.
    """
    packed = replace(policy, packed=True)
    prompts, completions = _probe(policy)
    others = [prompts[0][::-1], *prompts[1:]], [completions[0][::-1], *completions[1:]]
    with torch.no_grad(), _loading(config.path):
        padded = policy.hidden_states(prompts, completions)
        states = packed.hidden_states(prompts, completions)
        after_others = packed.hidden_states(*others)
    first = len(completions[0])
    error = _relative_error(states, padded)
    leakage = _relative_error(after_others[first:], states[first:])
    if states.dtype == torch.float32:
        is_apart = error <= STATE_ERROR and leakage <= LEAK
    else:
        is_apart = error <= ROUNDING and leakage <= STATE_ERROR
    if not is_apart:
        raise PolicyError(
            f"model.path {format_value(config.path)} does not keep packed rows apart with "
            f"model.attention {format_value(config.attention)}: its states change by "
            f"{max(error, leakage):.2g} of their size; leave model.packed off"
        )
    return packed


def _load_base(
    config: cfg.ModelConfig, device: torch.device | str, *, is_shared: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the complete model, without generation settings that would change its sampling.

    If the model is sharded, its weights stay in their file, and in its dtype, until they are read.
    """
    if not sys.stderr.isatty():
        disable_progress_bar()
    tokenizer = load_tokenizer(config.path)
    with _loading(config.path):
        base, loading = AutoModelForCausalLM.from_pretrained(
            model_path(config.path),
            dtype="auto" if is_shared else getattr(torch, config.dtype),
            attn_implementation=config.attention,
            output_loading_info=True,
            **_quantization(config, device),
        )

        if Path(model_path(config.path), GENERATION_CONFIG_NAME).exists():
            # Raises if the file is invalid; the model would ignore it silently.
            GenerationConfig.from_pretrained(model_path(config.path))

    _require_complete(base, loading, config)
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
    return base, tokenizer


def _quantization(config: cfg.ModelConfig, device: torch.device | str) -> dict[str, Any]:
    """Arguments with which transformers quantizes the layers on loading, as a vLLM server does."""
    if config.quantization == "none":
        return {}
    require_bitsandbytes("model.quantization nf4")
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quantization,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": quantization, "device_map": {"": device}}


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer. Raises PolicyError unless its chat template shows the user's message."""
    with _loading(path):
        require_model(model_path(path))
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_path(path))
        has_template = bool(tokenizer.chat_template)
    if not has_template:
        raise PolicyError(
            f"model.path {format_value(path)} has no chat template; take an instruction-tuned "
            "model or add chat_template.jinja to its folder"
        )

    # Prompt lengths are checked by paint, with its own message, so silence transformers' warning.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True

    problem = "What is 1 + 1?"
    for thinking in (False, True):
        with _template(path):
            prompt = tokenizer.apply_chat_template(
                student_messages(problem),
                add_generation_prompt=True,
                tokenize=False,
                **template_arguments(tokenizer, thinking=thinking),
            )
            if problem not in prompt:
                raise ValueError(f"omits the user's message, and yields {format_short(prompt)}")
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
    """Raise PolicyError for missing or unexpected weights.

    transformers initialises missing weights, and those of another shape, at random, and a missing
    embedding from lm_head. Unexpected ones in modules of the model belong to another model.
    """
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    stored = _stored_formats(config.path)
    _require_real(base, stored, config)
    by_module = {module: f"{name}.weight" for name, module in base.named_modules()}
    embedding = by_module.get(base.get_input_embeddings(), "")
    ending = ".".join(embedding.split(".")[-2:])
    is_found = any(name.endswith(ending) for name in stored)
    if by_module.get(base.get_output_embeddings()) in stored and not is_found:
        missing.add(embedding)
    kinds = {re.sub(r"\d+", "#", name) for name in base.state_dict()}
    modules = {name for name, _ in base.named_modules()}
    unexpected = set()
    for name in loading["unexpected_keys"]:
        if re.sub(r"\d+", "#", name) in kinds or name.rpartition(".")[0] in modules:
            unexpected.add(name)
    faults = (("lacks", missing), ("has, in addition to what its config describes,", unexpected))
    for fault, names in faults:
        if names:
            some = ", ".join(sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise PolicyError(
                f"model.path {format_value(config.path)} {fault} {some}{more}; its weights and its "
                f"config.json belong to different models, or files are missing"
            )


def _require_real(
    base: PreTrainedModel, stored: Mapping[str, str], config: cfg.ModelConfig
) -> None:
    """Raise PolicyError for weights that are no real numbers, which transformers would cast."""
    if config.quantization == "none" and hasattr(base.config, "quantization_config"):
        return
    parameters = {name for name, _ in base.named_parameters()}
    for name, kind in stored.items():
        is_parameter = parameters & {name, f"{base.base_model_prefix}.{name}"}
        if is_parameter and kind.startswith(("I", "U", "BOOL", "C")):
            raise PolicyError(
                f"model.path {format_value(config.path)} stores {name} as {kind}, and weights "
                f"are floating-point numbers; save the model again in {config.dtype}"
            )


def _stored_formats(path: str) -> dict[str, str]:
    """Number formats of the weights in a model's safetensors files, by name."""
    config = local_file(model_path(path), "config.json")
    assert config is not None, "the model was loaded from it"
    folder = config.parent
    single = folder / "model.safetensors"
    formats: dict[str, str] = {}
    for file in [single] if single.exists() else folder.glob("model-*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            names = weights.keys()
            formats |= {name: weights.get_slice(name).get_dtype() for name in names}
    return formats


def _require_usable(base: Any, tokenizer: PreTrainedTokenizerBase, config: cfg.ModelConfig) -> None:
    """Raise PolicyError for a model without end tokens, or with logits other than lm_head's."""
    head = base.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise PolicyError(
            f"model.path {config.path!r}: the loss needs a plain linear lm_head, and this one is a "
            f"{type(head).__module__}.{type(head).__name__}; model.lora_targets must leave it out"
        )
    if len(tokenizer) > head.weight.shape[0]:
        raise PolicyError(
            f"vocabulary mismatch in {config.path!r}: the tokenizer has {len(tokenizer)} tokens, "
            f"lm_head has {head.weight.shape[0]} rows; the tokenizer belongs to another model"
        )

    ends = _declared_ends(base, tokenizer)
    if not ends or not all(isinstance(i, int) and 0 <= i < head.weight.shape[0] for i in ends):
        raise PolicyError(
            f"model.path {format_value(config.path)} has {ends or 'no token'} to end a completion "
            "with: each would be truncated; set eos_token_id in its generation_config.json to "
            "tokens of its vocabulary"
        )

    # Some model families scale or cap logits after the head. The loss must use the logits that the
    # model samples from. Small logits are not changed by a cap, so the config is read, too.
    text_config = base.config.get_text_config()
    for name in LOGIT_SCALES:
        value = getattr(text_config, name, None)
        if value not in (None, 1):
            raise PolicyError(
                f"model.path {config.path!r} changes its logits after lm_head ({name} {value}), "
                f"which the loss does not model"
            )
    with torch.no_grad(), _loading(config.path):
        ids = torch.arange(4, device=base.device)[None]
        logits = base(input_ids=ids, use_cache=False).logits
        hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        head_logits = head(hidden)
    if not logits.isfinite().all():
        raise PolicyError(
            f"model.path {format_value(config.path)} computes numbers that are not finite; its "
            f"weights are damaged, or model.dtype {config.dtype} is too small for them"
        )
    if not torch.allclose(logits.float(), head_logits.float(), rtol=1e-2, atol=1e-2):
        raise PolicyError(
            f"model.path {config.path!r} changes its logits after lm_head (scaling or "
            f"soft-capping), which the loss does not model"
        )


def _declared_ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """The end tokens of the model's generation settings and of the tokenizer."""
    own = model.generation_config.eos_token_id
    ids = own if isinstance(own, list) else [own]
    ends: list[Any] = []
    for i in [*ids, tokenizer.eos_token_id]:
        if i is not None:
            ends.append(i)
    return ends


def _with_adapter(base: PreTrainedModel, config: cfg.ModelConfig, seed: int) -> peft.PeftModel:
    torch.manual_seed(seed)
    place = f"model.lora_targets {config.lora_targets}, model.lora_rank {config.lora_rank}"
    with (
        wrap_errors(place, PolicyError, "change model.lora_targets or model.lora_rank"),
        warnings.catch_warnings(),
    ):
        # peft asks for the old name of a property that transformers renamed in 5.24.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        # peft sets it by the kind of each layer: a Conv1D stores its weight transposed.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to", UserWarning)
        adapter = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            lora_dropout=0.0,
            target_modules=target_modules(base, config.lora_targets),
            task_type="CAUSAL_LM",
        )
        adapter._register_custom_module({nn.Linear: MemoryEfficientLoraLinear})
        return peft.get_peft_model(base, adapter)


def _checkpoint_gradients(policy: Policy, config: cfg.ModelConfig) -> None:
    """Enable gradient checkpointing. Raises PolicyError if the states would change."""
    place = f"model.path {format_value(config.path)}"
    prompts, completions = _probe(policy)
    with _loading(config.path):
        expected = policy.hidden_states(prompts, completions).detach()
        if not checkpoint_layers(policy.base):
            raise PolicyError(
                f"{place}: {type(policy.base).__name__} has no layers that transformers can "
                f"checkpoint; set model.gradient_checkpointing to false"
            )
        states = policy.hidden_states(prompts, completions).detach()
    error = _relative_error(states, expected)
    if not error <= STATE_ERROR:
        raise PolicyError(
            f"{place}: gradient checkpointing changes its states by {error:.2g} of their size; set "
            f"model.gradient_checkpointing to false"
        )
