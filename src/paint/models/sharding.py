"""Sharding of frozen decoder layers over the ranks of a machine.

Each rank stores a part of every decoder layer, and the parts are gathered while the layer computes
(PyTorch's ``fully_shard``). Adapters, embedding, norm and head are replicated on every rank, so
optimizer, all-reduce, loss and checkpoints do not depend on sharding.

Gathering is collective: all ranks of a machine run a forward or backward pass together, and the
functions below whose docstrings say so.

Trained parameters are not sharded, and frozen ones are not sharded between machines.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from paint.core.errors import ConfigError
from paint.core.storage import digest_of_bytes

NUMBERS_READ = 1_000
"""Minimum number of values of each parameter that enter a model's digest individually."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def ranks_here() -> int:
    """Return the number of ranks of this machine, which share layers."""
    if not torch.distributed.is_initialized():
        return 1
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def shard(base: PreTrainedModel, device: torch.device | str) -> None:
    """Keep on this rank, on ``device``, its part of the frozen weights of every decoder layer.

    Weights that are still in their file are read a layer at a time. Collective. Raises ConfigError
    for a model without layers.
    """
    decoder = base.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ConfigError(
            f"model.shard shares the layers of a decoder, and {type(decoder).__name__} has no list "
            f"of them; train this model without it"
        )

    shared = {weight for weight in layers.parameters() if not weight.requires_grad}
    # The norm is replicated, too: weights of the root module would stay gathered after a forward
    # pass, and state_dict, which rank 0 calls alone, would reshard them on that rank only.
    replicated = set(base.parameters()) - shared
    # A row for each machine: each holds all layers, divided over its own ranks.
    shape = torch.distributed.get_world_size() // ranks_here(), ranks_here()
    names = ("machine", "rank")
    mesh = init_device_mesh(torch.device(device).type, shape, mesh_dim_names=names)["rank"]
    for layer in [*layers, decoder]:
        fully_shard(layer, mesh=mesh, ignored_params=replicated)


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(module, FSDPModule) for module in model.modules())


@contextmanager
def gather_parameters(model: nn.Module) -> Iterator[None]:
    """Gather all layers on each rank within the block, which all ranks enter together."""
    layers = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for layer in layers:
        # Or the first forward pass would drop what was gathered.
        layer.set_reshard_after_forward(False, recurse=False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True, recurse=False)
            layer.reshard()


def digest_of_weights(base: nn.Module) -> str:
    """Return the digest of a model without its adapters. Collective if it is sharded."""
    return digest_of(
        # Without peft's names, so that a model has one digest with and without adapters.
        (name.replace(".base_layer", ""), v.full_tensor() if isinstance(v, DTensor) else v)
        for name, v in base.named_parameters()
        if "lora_" not in name
    )


def digest_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of a sample of every weight and of the sum of its bits."""
    parts = []
    for name, value in named:
        parts.append(name.encode())
        state = getattr(value, "quant_state", None)  # with the scales of a 4-bit weight
        scales = [] if state is None else state.as_dict(packed=True).values()
        for numbers in (value.detach(), *scales):
            flat = numbers.flatten()
            some = flat[:: max(1, len(flat) // NUMBERS_READ)].cpu().contiguous()
            parts.append(some.view(torch.uint8).numpy().tobytes())
            # Bits as integers: a sum of floats could round a change away.
            parts.append(str(int(flat.view(_INTEGERS[flat.itemsize]).sum())).encode())
    return digest_of_bytes(parts)[:16]


def passes_missing(accelerator: Accelerator, model: nn.Module, passes: int) -> int:
    """Return the number of further passes of other ranks, which need this rank's shards."""
    if not is_sharded(model):
        return 0
    of_all = accelerator.gather(torch.tensor([passes], device=accelerator.device))
    return int(of_all.max()) - passes
