"""Who is the teacher? The same model as the student, with weights of its own, or without.

    frozen   the model before training: its adapter off, or a copy where every weight is trained
    ema      a moving average of the student that starts at the student
    live     the student as it is

One model serves both roles. Within ``Teacher.view`` it acts as the teacher, for hidden states and
for generation, and afterwards it is the student again, bit by bit. So a teacher costs no second
model, only the weights that are its own:

    tuning   frozen             ema                                                   live
    lora     nothing            4 bytes a targeted weight, and 2 in a view at bf16    nothing
    full     4 bytes a weight   4 bytes a weight                                      nothing

With adapters, what is averaged is the update ΔW = (alpha / r) B A of each layer, since the product
of the averages of A and B is another matrix. The average has no low rank, so it is kept as a whole,
in float32. It is applied beside the base weights: added to bfloat16 weights it would be rounded
away (docs/fidelity.md, D4).

Left out on purpose: teachers that are another model, and averages over anything but optimizer
    steps.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paint.config import schema as cfg
from paint.core.errors import reason, wrap_errors
from paint.models.policy import Policy, PolicyError

FILE = "teacher.safetensors"


@dataclass(frozen=True)
class Teacher:
    """The teacher's weights, where they are not the student's.

    Attributes:
        policy: the model that both roles share.
        config: which weights are the teacher's, and the decay of an average.
        own: by name, every parameter (tuning full) or the update of every adapted layer (lora,
            ema); otherwise empty.
        lm_head: hidden states (n h) of the teacher to its logits (n v); the student's where they
            share it.
    """

    policy: Policy
    config: cfg.TeacherConfig
    own: Mapping[str, Tensor]
    lm_head: nn.Linear

    @contextmanager
    def view(self) -> Iterator[None]:
        """Within this block the policy's model is the teacher, and nothing gets a gradient."""
        with torch.no_grad(), self._weights():
            yield

    def follow(self) -> None:
        """After each optimizer step, let the average w follow the student.

        w ← decay · w + (1 − decay) · w_student
        """
        if self.config.weights == "ema":
            with torch.no_grad():
                for name, value in student_weights(self.policy):
                    self.own[name].lerp_(value, 1 - self.config.decay)

    def save(self, checkpoint: Path) -> None:
        """Write what cannot be made again: the average.

        Raises:
            OSError: the disk is full or not writable.
        """
        if self.config.weights == "ema":
            try:
                save_file(dict(self.own), checkpoint / FILE)
            except SafetensorError as error:  # how a full disk is reported
                message = f"{checkpoint / FILE} could not be written: {reason(error)}"
                raise OSError(message) from error

    def load(self, checkpoint: Path) -> None:
        """Take the average from a checkpoint, exactly.

        Raises:
            PolicyError: the checkpoint has none, or that of another model.
        """
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
            value.copy_(stored[name])

    def _weights(self) -> AbstractContextManager[Any]:
        if self.config.weights == "live":
            return nullcontext()
        if self.policy.tuning == "full":
            return _swapped(dict(self.policy.model.named_parameters()), self.own)
        return _instead_of_adapters(self.policy, self.own)


def open_teacher(policy: Policy, config: cfg.TeacherConfig) -> Teacher:
    """The teacher of a policy as it stands.

    Open it before training starts, and before a checkpoint is restored. An average starts at the
    student of this moment: at no update for a fresh adapter, and at the adapter's update where one
    was loaded before.

    Raises:
        PolicyError: an average of adapters on layers that are not linear.
    """
    if config.weights == "live" or (config.weights == "frozen" and policy.tuning == "lora"):
        return Teacher(policy, config, {}, policy.lm_head)

    with torch.no_grad():
        own = {name: value.clone() for name, value in student_weights(policy)}
    lm_head = _head(policy, own) if policy.tuning == "full" else policy.lm_head
    return Teacher(policy, config, own, lm_head)


def student_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What training moves, by name: every parameter, or the update of every adapted layer.

    The update is ΔW = (alpha / r) B A.

    Raises:
        PolicyError: an adapter on a layer that is not linear.
    """
    if policy.tuning == "full":
        yield from policy.model.named_parameters()

    for name, layer in policy.adapted.items():
        base_layer = layer.get_base_layer()
        if not isinstance(base_layer, nn.Linear):
            raise PolicyError(
                f"teacher.weights ema averages adapters of linear layers, and {name} is a "
                f"{type(base_layer).__name__}; leave it out of model.lora_targets, or take another "
                f"teacher"
            )
        yield name, layer.get_delta_weight("default")


def _head(policy: Policy, own: Mapping[str, Tensor]) -> nn.Linear:
    """The policy's head with the teacher's weights, which it shares with ``own``."""
    names = {id(value): name for name, value in policy.model.named_parameters()}
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
    """Within this block the parameters have these values; tied ones stay tied."""
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


@contextmanager
def _instead_of_adapters(policy: Policy, updates: Mapping[str, Tensor]) -> Iterator[None]:
    """Within this block the adapters are off, and the updates take their place: W x + ΔW x."""
    adapted = policy.adapted
    with policy.model.disable_adapter(), ExitStack() as stack:
        for name, update in updates.items():
            layer = adapted[name].get_base_layer()
            hook = layer.register_forward_hook(_adding(update.to(layer.weight.dtype)))
            stack.callback(hook.remove)
        yield


def _adding(update: Tensor) -> Any:
    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + nn.functional.linear(inputs[0], update)

    return add
