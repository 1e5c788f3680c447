"""The model that is trained: its prompts, its hidden states, its trained parameters.

It takes token ids and gives hidden states of completion positions. The projection onto the
vocabulary belongs to the loss, which need not hold all of it. How the same model is its own teacher
is said in paint.models.teacher, how it is stored in paint.models.weights.

Left out: padding between prompt and completion. A row is prompt, completion, padding. So positions
count from the row's own start, and neither padding nor the other rows of a batch change a row.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import peft
import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
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
from paint.core.device import require_dtype
from paint.core.errors import PaintError, format_short, format_value, wrap_errors
from paint.demo.files import model_path
from paint.models.cpu_float32 import widen
from paint.models.lora import MemoryEfficientLoraLinear
from paint.models.sharding import digest_of_weights, is_sharded, ranks_here, shard
from paint.models.special_tokens import drop_special_text, special_text
from paint.objective.prompts import rationale_messages, student_messages, teacher_messages

PACKING_ERROR = 0.05
"""What rounding may change of packed states, as a share of their norm; rows that see each other
change more."""


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
        packed: rows are computed end to end, not padded.
        digest: of the base weights, where ranks share them, so that one can name them by itself.
    """

    model: peft.PeftModel | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    lm_head: nn.Linear
    student_thinking: bool
    teacher_thinking: bool
    packed: bool = False
    digest: str | None = None

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
        return sorted(set(_end_ids(self.model, self.tokenizer)))

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
            rationale = drop_special_text(self.tokenizer, rationale)
        messages = teacher_messages(problem, context, complete=complete, rationale=rationale)
        return encode(self.tokenizer, messages, thinking=self.teacher_thinking)

    def template_difference(self) -> tuple[str, str]:
        """What the chat template writes in one view alone: in the student's, in the teacher's.

        It is what their thinking modes make of the same message. Both are empty where the views
        differ in the privileged context alone, as in the paper (section 'Background').
        """
        student, teacher = (
            self.student_prompt("What is 1 + 1?", thinking=thinking)
            for thinking in (self.student_thinking, self.teacher_thinking)
        )
        start = _shared(student, teacher)
        student, teacher = student[start:], teacher[start:]
        end = _shared(student[::-1], teacher[::-1])
        parts = student[: len(student) - end], teacher[: len(teacher) - end]
        return self.decode(parts[0], special=True), self.decode(parts[1], special=True)

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
        end = self.tokenizer.eos_token_id
        return [*ids, self.end_ids[0] if end is None else end]

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

        The sum is rounded to the weights' dtype, which may lose a small adapter (docs/fidelity.md,
        D4). So this is for export and for comparison, not for training.
        """
        if self.tuning == "full":
            yield
            return
        if getattr(self.base, "is_loaded_in_4bit", False):
            raise PolicyError(
                "an adapter cannot be added to weights of 4 bits: it would be rounded away; load "
                "the model with model.quantization none"
            )

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
        if self.packed:
            return self._packed_states(rows, [len(prompt) for prompt in prompts])

        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        starts = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        positions = torch.arange(width, device=self.device)

        # No mask: padding comes last, so no token sees it, and a mask is tokens x tokens a row.
        states = self.base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        predicts = (positions >= starts[:, None] - 1) & (positions < lengths[:, None] - 1)
        selected: Tensor = states[predicts]
        return selected

    def _packed_states(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """The same of one long row, in which positions alone tell where the next one begins."""
        ids = torch.tensor([[i for row in rows for i in row]], device=self.device)
        positions = torch.cat([torch.arange(len(row)) for row in rows]).to(self.device)
        states = self.base.get_decoder()(
            input_ids=ids, position_ids=positions[None], use_cache=False
        ).last_hidden_state[0]

        parts = states.split([len(row) for row in rows])
        return torch.cat([part[n - 1 : -1] for part, n in zip(parts, starts, strict=True)])


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, thinking: bool
) -> list[int]:
    """Token ids of a chat prompt, up to where the assistant begins to write.

    Raises:
        PolicyError: a message holds text that the chat format takes for control, or the chat
            template refuses the messages.
    """
    for message in messages:
        _require_no_control(tokenizer, message["content"])
    with _template(tokenizer.name_or_path):
        ids = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            enable_thinking=thinking,
            tokenize=True,
            return_dict=False,
        )
    assert isinstance(ids, list)
    return [int(i) for i in ids]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many token ids two texts begin with in common."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _require_no_control(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    if piece := special_text(tokenizer, text):
        raise PolicyError(
            f"a text holds {piece!r}, which the model's chat format takes for control, so that it "
            f"would be another conversation; spell it otherwise ({text[:60]!r} ...)"
        )


def load_policy(
    config: cfg.ModelConfig, *, seed: int, device: torch.device | str = "cpu"
) -> Policy:
    """Load a model and its tokenizer, and put a fresh adapter on it, or none.

    A fresh adapter has B = 0, so that the student starts as the base.

    Args:
        config: path, dtype, tuning, LoRA rank and targets, thinking of the two views (paper:
            section 'Experimental Details'). With tuning "full" there is no adapter, and every
            weight is trained.
        seed: of the adapter's initial A.

    Raises:
        ConfigError: the device has no numbers of that format.
        PolicyError: nothing loadable at the path, weights that are missing or left over, no
            lm_head, no chat template, no end token, a vocabulary that the head does not cover,
            logits that are not finite or not lm_head(hidden state), no module with a target's name,
            or an adapter on lm_head.
    """
    require_dtype(device, getattr(torch, config.dtype))
    is_shared = config.shard and ranks_here() > 1
    base, tokenizer = _load_base(config, device, is_shared=is_shared)
    model = _with_adapter(base, config, seed) if config.train_mode == "lora" else base
    if is_shared:  # not before: adapters take their shapes from whole weights
        shard(base, device)
    with _loading(config.path):
        base.to(device)
    widen(base)
    _require_usable(base, tokenizer, config)

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
    digest = digest_of_weights(base) if is_sharded(base) else None
    thinking = config.student_thinking, config.teacher_thinking
    policy = Policy(model, tokenizer, lm_head, *thinking, digest=digest)
    return _packing(policy, config) if config.packed else policy


def _packing(policy: Policy, config: cfg.ModelConfig) -> Policy:
    """The same, with rows end to end. Raises PolicyError where a row would see those before it."""
    packed, prompts, completions = replace(policy, packed=True), [[0, 1], [2, 3]], [[4, 5], [6, 7]]
    with torch.no_grad(), _loading(config.path):
        padded = policy.hidden_states(prompts, completions).float()
        error = (packed.hidden_states(prompts, completions).float() - padded).norm()
    if not error <= PACKING_ERROR * padded.norm():
        raise PolicyError(
            f"model.path {format_value(config.path)} does not keep packed rows apart with "
            "model.attention "
            f"{format_value(config.attention)}: its states change by "
            f"{float(error / padded.norm()):.2g} of "
            f"their size; leave model.packed off"
        )
    return packed


def _load_base(
    config: cfg.ModelConfig, device: torch.device | str, *, is_shared: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model as it comes, whole, without settings that would bend its sampling.

    Where ranks will share it, its weights stay in their file until they are read.
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
            GenerationConfig.from_pretrained(model_path(config.path))  # else it would be left out

    _require_whole(base, loading, config)
    if is_shared:
        _require_own_dtype(base, config)
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # bitsandbytes would repack weights of 4 bits into a format that has no gradient.
            module.support_avx512bf16_for_cpu = False
    # A repetition penalty or a temperature that came with the model would bend the policy.
    base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
    return base, tokenizer


def _quantization(config: cfg.ModelConfig, device: torch.device | str) -> dict[str, Any]:
    """What lets transformers round the layers while it loads them, as a vLLM server does."""
    if config.quantization == "none":
        return {}
    if find_spec("bitsandbytes") is None:
        raise ImportError("model.quantization nf4 needs bitsandbytes: pip install 'paint[nf4]'")
    rounded = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quantization,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.dtype),
    )
    return {"quantization_config": rounded, "device_map": {"": device}}


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder or hub name, or of "demo", with a chat template that works.

    Raises:
        PolicyError: there is none, or its chat template is missing, fails, or leaves out what
            the user says.
    """
    with _loading(path):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_path(path))
        has_template = bool(tokenizer.chat_template)
    if not has_template:
        raise PolicyError(
            f"model.path {format_value(path)} has no chat template; take an instruction-tuned "
            "model or add "
            f"chat_template.jinja to its folder"
        )

    # What is too long is measured on purpose, and refused in our words; the model never reads it.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True

    problem = "What is 1 + 1?"
    for thinking in (False, True):
        with _template(path):
            prompt = tokenizer.apply_chat_template(
                student_messages(problem),
                add_generation_prompt=True,
                enable_thinking=thinking,
                tokenize=False,
            )
            if problem not in prompt:
                raise ValueError(
                    f"leaves out what the user says, and yields {format_short(prompt)}"
                )
    return tokenizer


def _template(path: str) -> AbstractContextManager[None]:
    return wrap_errors(
        f"the chat template of {path}",
        PolicyError,
        "mend chat_template.jinja in the model's folder, or take an instruction-tuned model",
    )


def _loading(path: str) -> AbstractContextManager[None]:
    return wrap_errors(
        f"model.path {format_value(path)} cannot be loaded as a causal language model",
        PolicyError,
        "name the folder or hub name of one, with all its files and the libraries that it needs",
    )


def _require_whole(
    base: PreTrainedModel, loading: Mapping[str, Any], config: cfg.ModelConfig
) -> None:
    """Raise PolicyError for weights that the files lack, which transformers makes up at random.

    So are those of another shape. Weights that the model has no place for, in layers or modules
    that it has, are those of another model, too.
    """
    made_up = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    kinds = {re.sub(r"\d+", "#", name) for name in base.state_dict()}
    modules = {name for name, _ in base.named_modules()}
    left_over = {
        name
        for name in loading["unexpected_keys"]
        if re.sub(r"\d+", "#", name) in kinds or name.rpartition(".")[0] in modules
    }
    for wrong, names in (("lacks", made_up), ("has, beside what its config describes,", left_over)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise PolicyError(
                f"model.path {format_value(config.path)} {wrong} "
                f"{', '.join(sorted(names)[:3])}{more}; "
                f"its weights and its config.json belong to different models, or files are missing"
            )


def _require_own_dtype(base: PreTrainedModel, config: cfg.ModelConfig) -> None:
    """Raise PolicyError where weights would be converted: each rank would hold all of them."""
    own = str(base.dtype).removeprefix("torch.")
    if own != config.dtype:
        raise PolicyError(
            f"model.path {format_value(config.path)} is stored in {own}, and model.shard reads "
            "each layer "
            f"from its file as it is: set model.dtype to {own}, or store it in {config.dtype}"
        )


def _require_usable(base: Any, tokenizer: PreTrainedTokenizerBase, config: cfg.ModelConfig) -> None:
    """Raise PolicyError for a model without ends, or whose logits the loss cannot see."""
    head = base.get_output_embeddings()
    if head is None:
        raise PolicyError(
            f"model.path {config.path!r} has no lm_head; a causal language model is needed"
        )
    if len(tokenizer) > head.weight.shape[0]:
        raise PolicyError(
            f"vocabulary mismatch in {config.path!r}: the tokenizer has {len(tokenizer)} tokens, "
            f"lm_head has {head.weight.shape[0]} rows; the tokenizer belongs to another model"
        )

    ends = _end_ids(base, tokenizer)
    if not ends or not all(isinstance(i, int) and 0 <= i < head.weight.shape[0] for i in ends):
        raise PolicyError(
            f"model.path {format_value(config.path)} has {ends or 'no token'} to end a "
            "completion with: "
            f"every one would be cut; set eos_token_id in its generation_config.json to tokens of "
            f"its vocabulary"
        )

    # Some families scale or cap their logits after the head. The loss must see the logits that
    # the model samples from.
    with torch.no_grad(), _loading(config.path):
        ids = torch.arange(4, device=base.device)[None]
        logits = base(input_ids=ids, use_cache=False).logits
        hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        head_logits = head(hidden)
    if not logits.isfinite().all():
        raise PolicyError(
            f"model.path {format_value(config.path)} computes numbers that are not finite; its "
            "weights are "
            f"damaged, or model.dtype {config.dtype} is too small for them"
        )
    if not torch.allclose(logits.float(), head_logits.float(), rtol=1e-2, atol=1e-2):
        raise PolicyError(
            f"model.path {config.path!r} changes its logits after lm_head (scaling or "
            f"soft-capping), which the loss does not model"
        )


def _end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    own = model.generation_config.eos_token_id
    ids = own if isinstance(own, list) else [own]
    return [i for i in [*ids, tokenizer.eos_token_id] if i is not None]


def _with_adapter(base: PreTrainedModel, config: cfg.ModelConfig, seed: int) -> peft.PeftModel:
    torch.manual_seed(seed)
    adapter = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=0.0,
        target_modules=list(config.lora_targets),
        task_type="CAUSAL_LM",
    )
    adapter._register_custom_module({nn.Linear: MemoryEfficientLoraLinear})
    place = f"model.lora_targets {config.lora_targets}, model.lora_rank {config.lora_rank}"
    with wrap_errors(place, PolicyError, "name linear layers of the model, and a smaller rank"):
        return peft.get_peft_model(base, adapter)


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
