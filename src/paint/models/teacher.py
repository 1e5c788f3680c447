"""Teacher: the student's model with frozen, averaged or current weights.

    frozen   the model before training: its adapter off, or a copy if every weight is trained
    ema      a moving average of the student that starts at the student
    live     the current student

One model serves both roles. Within ``Teacher.view`` it is the teacher, for hidden states and for
generation; afterwards it is the student again, bit by bit. So a teacher needs no second model, only
memory for its separate weights:

    tuning   frozen             ema                                                   live
    lora     nothing            4 bytes a targeted weight, and 2 in a view at bf16    nothing
    full     4 bytes a weight   4 bytes a weight                                      nothing

With adapters, the average is over the update ΔW = (alpha / r) B A of each layer, since the product
of the averages of A and B is another matrix. The average has no low rank, so it is stored as a full
matrix in float32. It is applied separately from the base weights: added to bfloat16 weights it
would be rounded away (docs/fidelity.md, D4).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from paint.config import schema as cfg
from paint.core.errors import wrap_errors
from paint.models.adapters import NAME
from paint.models.caches import Beginning, read_beginning
from paint.models.policy import Policy, PolicyError

FILE = "teacher.safetensors"


@dataclass(frozen=True)
class Teacher:
    """The teacher role of a policy, with its separate weights if it has any."""

    policy: Policy  # the model that both roles share
    config: cfg.TeacherConfig
    # By name, every parameter (tuning full), or the update of every adapted layer (lora, ema).
    own: Mapping[str, Tensor]
    lm_head: nn.Linear  # hidden states (n h) to the teacher's logits (n v); the student's if shared
    # By its tokens, the beginning of prompts that was read last, with the weights as they are.
    beginnings: dict[tuple[int, ...], Beginning | None] = field(default_factory=dict)

    @contextmanager
    def view(self) -> Iterator[None]:
        """Turn the policy's model into the teacher within the block, without gradients."""
        weights: AbstractContextManager[None] = nullcontext()
        if self.policy.tuning == "full" and self.own:
            weights = _swapped(dict(self.policy.model.named_parameters()), self.own)
        elif self.config.weights != "live":
            weights = _replacing_adapters(self.policy, self.own)
        with torch.no_grad(), weights:
            yield

    @property
    def base(self) -> "Teacher":
        """The model before training. Raises PolicyError where it is not kept."""
        if self.config.weights == "frozen":
            return self
        if self.policy.tuning == "full":
            raise PolicyError(
                "the base model is not kept with model.train_mode full and teacher.weights "
                f"{self.config.weights}; set teacher.weights frozen, or model.train_mode lora"
            )
        return replace(self, config=cfg.TeacherConfig(), own={}, beginnings={})

    def hidden_states(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        shared: int = 0,
    ) -> Float[Tensor, "n h"]:
        """Return hidden states of the completions' tokens after these prompts, without gradients.

        The first ``shared`` tokens, which all prompts have, are read once until the weights change.
        """
        with self.view():
            beginning = self._beginning(tuple(prompts[0][:shared])) if shared else None
            return self.policy.hidden_states(prompts, completions, beginning)

    def _beginning(self, ids: tuple[int, ...]) -> Beginning | None:
        if ids not in self.beginnings:
            self.beginnings.clear()  # one alone takes memory
            self.beginnings[ids] = read_beginning(self.policy.base.get_decoder(), ids)
        return self.beginnings[ids]

    def follow(self, steps: int) -> None:
        """Update the average after ``steps`` optimizer steps, if it is due.

        w ← decay · w + (1 − decay) · w_student, every ``teacher.every`` steps.
        """
        if self.config.weights != "frozen":
            self.beginnings.clear()
        if self.config.weights == "ema" and steps % self.config.every == 0:
            with torch.no_grad():
                for name, value in student_weights(self.policy):
                    # With adapters an average of ΔW, not of A and B (docs/fidelity.md, C22).
                    self.own[name].lerp_(value, 1 - self.config.decay)

    def save(self, checkpoint: Path) -> None:
        """Save the average, which cannot be recomputed. Raises SafetensorError."""
        if self.config.weights == "ema":
            save_file(dict(self.own), checkpoint / FILE)

    def load(self, checkpoint: Path) -> None:
        """Load the average from a checkpoint. Raises PolicyError for none, or another model's."""
        if self.config.weights != "ema":
            return
        path = checkpoint / FILE
        with wrap_errors(path, PolicyError, "it must hold the average of teacher.weights ema"):
            stored = load_file(path)
        shapes = {name: value.shape for name, value in self.own.items()}
        if shapes != {name: value.shape for name, value in stored.items()}:
            raise PolicyError(
                f"{path} holds the average of another model, or of other model.lora_targets"
            )
        for name, value in self.own.items():
            # In place, since the teacher's head shares these tensors.
            value.copy_(stored[name])
        self.beginnings.clear()


def open_teacher(policy: Policy, config: cfg.TeacherConfig) -> Teacher:
    """Create the teacher of a policy from its current weights.

    Call it before training starts, and before a checkpoint is restored. An average starts at the
    current student: at no update for a new adapter, and at the update of an adapter that was loaded
    before.
    """
    if config.weights == "live" or (config.weights == "frozen" and policy.tuning == "lora"):
        return Teacher(policy, config, {}, policy.lm_head)

    with torch.no_grad():
        own = {name: value.clone() for name, value in student_weights(policy)}
    lm_head = _head(policy, own) if policy.tuning == "full" else policy.lm_head
    return Teacher(policy, config, own, lm_head)


def student_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter, or every adapted layer's ΔW in float32."""
    if policy.tuning == "full":
        yield from policy.model.named_parameters()
    for name, layer in policy.adapted.items():
        yield name, layer.get_delta_weight(NAME)


def _head(policy: Policy, own: Mapping[str, Tensor]) -> nn.Linear:
    """Build a head with the teacher's weights, which it shares with ``own``."""
    names = {id(value): name for name, value in policy.model.named_parameters()}
    # On "meta", as its weight is replaced below.
    head = nn.Linear(
        policy.lm_head.in_features, policy.lm_head.out_features, bias=False, device="meta"
    )
    for part, value in policy.lm_head.named_parameters():
        setattr(head, part, nn.Parameter(own[names[id(value)]], requires_grad=False))
    return head


@contextmanager
def _swapped(
    parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]
) -> Iterator[None]:
    """Give the parameters these values within the block; tied parameters stay tied."""
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            # The parameters point to other memory, and nothing is copied.
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


@contextmanager
def _replacing_adapters(policy: Policy, updates: Mapping[str, Tensor]) -> Iterator[None]:
    """Turn adapters off and apply the updates instead within the block: W x + ΔW x."""
    adapted = policy.adapted
    # peft's disable_adapter asks every module for its status: 29 ms for 196 layers; this is 0.5 ms.
    before = [layer._disable_adapters for layer in adapted.values()]
    with ExitStack() as stack:
        for layer, was_off in zip(adapted.values(), before, strict=True):
            stack.callback(setattr, layer, "_disable_adapters", was_off)
            layer._disable_adapters = True
        for name, update in updates.items():
            layer = adapted[name].get_base_layer()
            add = partial(_add, update.to(layer.weight.dtype))
            # Beside the base weights: in bfloat16, their sum would lose the update (D4).
            stack.callback(layer.register_forward_hook(add).remove)
        yield


def _add(update: Tensor, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    if isinstance(layer, Conv1D):  # its weight is transposed, and so is the update
        return output + inputs[0] @ update
    return output + nn.functional.linear(inputs[0], update)
