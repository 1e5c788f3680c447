"""PAINT in TRL: SDFTTrainer with masked solutions, the paper's prompts and the fused loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from trl.experimental.sdft import SDFTConfig, SDFTTrainer
from trl.trainer.utils import pad

from chatforms.chat_template import encode
from paint.config.schema import ClipMode, Config
from paint.objective.fused import fused_paint_loss
from paint.objective.masking import anchors, mask_ratio, mask_solution, overlap
from paint.objective.messages import student_messages, teacher_messages

DEFAULTS = Config()
LOGGED = ("kl", "clipped", "student_entropy", "teacher_entropy", "entropy_ratio")


@dataclass
class PaintConfig(SDFTConfig):  # type: ignore[misc]
    """SDFTConfig with the settings of PAINT and their defaults (docs/reference/config.md).

    The defaults are the paper's but for clip_mode, which is "pointwise" there. The settings
    distillation_* choose TRL's own loss and have no effect.
    """

    learning_rate: float = DEFAULTS.train.learning_rate
    lr_scheduler_type: str = "constant"
    max_grad_norm: float = DEFAULTS.train.max_grad_norm
    num_generations: int = 1
    temperature: float = DEFAULTS.rollout.temperature
    top_p: float = DEFAULTS.rollout.top_p
    top_k: int = DEFAULTS.rollout.top_k
    max_completion_length: int | None = DEFAULTS.rollout.max_new_tokens
    max_prompt_length: int | None = None  # TRL would cut the start of a longer problem
    chat_template_kwargs: dict[str, Any] | None = field(  # of the student's prompt
        default_factory=lambda: {"enable_thinking": DEFAULTS.model.student_thinking}
    )
    teacher_thinking: bool = DEFAULTS.model.teacher_thinking
    mask_ratio_wrong: float = DEFAULTS.context.mask_ratio_wrong
    mask_ratio_correct: float = DEFAULTS.context.mask_ratio_correct
    interpolation_weight: float = DEFAULTS.objective.interpolation_weight
    top_fraction: float = DEFAULTS.objective.top_fraction
    clip: float = DEFAULTS.objective.clip
    clip_mode: ClipMode = DEFAULTS.objective.clip_mode


class PaintTrainer(SDFTTrainer):  # type: ignore[misc]
    """Trains a model on a data set with the columns problem and solution."""

    _tag_names = ("trl", "paint")
    _name = "PAINT"
    _paper: Mapping[str, str] = {}  # else the model card cites SDFT's
    config_cls = PaintConfig

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.teacher_context_builder = TeacherPrompts(self)

    def _prepare_training_batch(self, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Sample completions and build both views; TRL reads the two columns added here."""
        rows = [
            {"prompt": student_messages(row["problem"]), "privileged_context": row}
            for row in inputs
        ]
        batch: dict[str, Any] = super()._prepare_training_batch(rows)
        return batch

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """PAINT's loss of a micro-batch, divided by the number of micro-batches of the step."""
        args, written = self.args, inputs["completion_mask"].bool()
        student_ids, student_mask = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1)
            for name in ("ids", "mask")
        )
        with torch.no_grad(), self._get_teacher_context_for_self_distillation():
            teacher_hidden = hidden_states(
                self.teacher_model,
                inputs["teacher_input_ids"],
                inputs["teacher_attention_mask"],
                written,
            )
        student_hidden = hidden_states(model, student_ids, student_mask, written)
        head, teacher_head = (
            self.accelerator.unwrap_model(m).get_output_embeddings()
            for m in (model, self.teacher_model)
        )

        loss = fused_paint_loss(
            student_hidden,
            teacher_hidden,
            head,
            written.sum(1),
            temperature=self.temperature,
            interpolation_weight=args.interpolation_weight,
            top_fraction=args.top_fraction,
            clip=args.clip,
            clip_mode=args.clip_mode,
            skip_tokens=self.num_loss_tokens_to_skip,
            teacher_lm_head=teacher_head,
        )
        self.record({name: loss.stats[name].mean() for name in LOGGED})
        steps = self.current_gradient_accumulation_steps if self.model.training else 1
        return loss.value / steps

    def record(self, figures: Mapping[str, Tensor]) -> None:
        """Log means over all processes with the step's other figures."""
        found = self._metrics["train" if self.model.training else "eval"]
        for name, value in figures.items():
            mean = self.accelerator.gather(value.detach().to(self.accelerator.device)).mean()
            found[name].append(mean.item())


class TeacherPrompts:
    """What SDFTTrainer asks for the teacher's view of its completions."""

    def __init__(self, trainer: PaintTrainer) -> None:
        self.trainer = trainer

    def build(
        self,
        prompts: Sequence[Any],
        rows: Sequence[Mapping[str, Any]],
        completion_ids: Int[Tensor, "b c"],
        completion_mask: Int[Tensor, "b c"],
    ) -> dict[str, Tensor]:
        """Token ids of the teacher's prompts, padded on the left, before the completions."""
        args, tokenizer = self.trainer.args, self.trainer._tokenizer
        written = zip(completion_ids, completion_mask.bool(), strict=True)
        texts = tokenizer.batch_decode([ids[m] for ids, m in written], skip_special_tokens=True)
        overlaps, ratios, encoded = [], [], []
        for row, text in zip(rows, texts, strict=True):
            problem, solution = row["problem"], row["solution"]
            overlaps.append(overlap(text, solution))
            ratio = mask_ratio(
                overlaps[-1], wrong=args.mask_ratio_wrong, correct=args.mask_ratio_correct
            )
            ratios.append(ratio if anchors(solution) else 0.0)
            shown = mask_solution(solution, ratios[-1])
            messages = teacher_messages(problem, shown, complete=shown == solution)
            encoded.append(encode(tokenizer, messages, thinking=args.teacher_thinking))

        self.trainer.record(
            {"overlap": torch.tensor(overlaps).mean(), "mask_ratio": torch.tensor(ratios).mean()}
        )
        rows_of_ids = [torch.tensor(ids) for ids in encoded]
        ids = pad(rows_of_ids, padding_value=tokenizer.pad_token_id, padding_side="left")
        mask = pad([torch.ones_like(i) for i in rows_of_ids], padding_value=0, padding_side="left")
        return {
            "teacher_input_ids": torch.cat([ids.to(completion_ids), completion_ids], dim=1),
            "teacher_attention_mask": torch.cat([mask.to(completion_mask), completion_mask], dim=1),
        }


def hidden_states(
    model: Any, ids: Int[Tensor, "b s"], mask: Int[Tensor, "b s"], written: Bool[Tensor, "b c"]
) -> Float[Tensor, "n h"]:
    """Final hidden states that predict the completions' tokens, completions concatenated."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # prompts are padded on the left
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
        output_hidden_states=True,
        logits_to_keep=1,  # the loss computes them, chunk by chunk
    )
    states: Tensor = output.hidden_states[-1][:, -written.shape[1] - 1 : -1][written]
    return states
