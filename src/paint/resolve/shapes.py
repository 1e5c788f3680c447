"""Shapes of a dense decoder's matrices, from its config.json.

Those of the Llama kind are computed from the file alone, without the biases of attention (a
ten-thousandth of the weights). The layers of other families are counted, in a model without memory.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.config.schema import ALL_LINEAR
from paint.core.demo_files import model_path
from paint.core.errors import ConfigError, format_value, wrap_errors
from paint.core.hub import fetch_file, local_file
from paint.core.nesting import parse_json

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of a number by its dtype; auto is bfloat16 on a GPU (paint.resolve.plan.dtype_on)."""

LLAMA_KIND = ("", "llama", "mistral", "qwen2", "qwen3")
"""Model types whose blocks have the seven matrices of Llama, or none in the file."""

UNLIMITED = 2**20
"""Positions of a model whose config names no limit (assumed)."""


@dataclass(frozen=True)
class Linear:
    """Linear layers of one name and size: their inputs, outputs and number in the model."""

    name: str
    inputs: int
    outputs: int
    number: int


@dataclass(frozen=True)
class Shape:
    """Shapes of the matrices of a dense decoder; the defaults are those of Qwen3."""

    layers: int
    hidden: int
    heads: int  # of queries
    intermediate: int
    tied: bool  # embedding and head are one matrix
    kv_heads: int = 8
    head_size: int = 128
    vocabulary: int = 151_936
    norms_heads: bool = True  # queries and keys are normalised head by head
    positions: int = 40_960  # tokens of the longest sequence
    counted_layers: tuple[Linear, ...] = ()  # the linear layers, if not of the Llama kind
    counted_weights: int = 0  # the number of all its weights

    @property
    def linear(self) -> tuple[Linear, ...]:
        """The linear layers of the model but its head."""
        if self.counted_layers:
            return self.counted_layers
        return tuple(Linear(name, *pair, self.layers) for name, pair in self.matrices.items())

    def targeted(self, targets: Iterable[str]) -> list[Linear]:
        """The linear layers that get an adapter, by the last parts of the targets' names."""
        names = {target.rpartition(".")[2] for target in targets}
        return [layer for layer in self.linear if layer.name in names or ALL_LINEAR in names]

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Input and output widths of each linear layer of a block of the Llama kind."""
        queries, keys = self.queries, self.keys
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def queries(self) -> int:
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def weights(self) -> int:
        """N: number of weights in all blocks' matrices, each multiplied once a token."""
        return sum(layer.number * layer.inputs * layer.outputs for layer in self.linear)

    @property
    def head(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        if self.counted_weights:
            return self.counted_weights
        # Two norms a block, those of queries and keys, and the last one.
        widths = self.hidden
        if self.norms_heads:
            widths += self.head_size
        norms = self.layers * 2 * widths + self.hidden
        ends = self.head if self.tied else 2 * self.head
        return self.weights + norms + ends

    @property
    def cache(self) -> int:
        """Numbers of one token's keys and values in all layers."""
        return 2 * self.layers * self.keys

    def adapters(self, rank: int, targets: Iterable[str]) -> int:
        """A: number of weights in the adapters, rank · (inputs + outputs) each."""
        layers = self.targeted(targets)
        return sum(layer.number * rank * (layer.inputs + layer.outputs) for layer in layers)

    def adapter_inputs(self, targets: Iterable[str]) -> float:
        """Width of all inputs of a block's adapters; where known, one that several read is once."""
        if self.counted_layers:
            inputs = 0
            for layer in self.targeted(targets):
                inputs += layer.number * layer.inputs
            return inputs / self.layers
        readers = {
            ("q_proj", "k_proj", "v_proj"): self.hidden,
            ("gate_proj", "up_proj"): self.hidden,
            ("down_proj",): self.intermediate,
        }
        names = {layer.name for layer in self.targeted(targets)}
        width = 0
        for layers, inputs in readers.items():
            if not names.isdisjoint(layers):
                width += inputs
        return width


SHAPES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(
        30, 576, 9, 1536, True, 3, 64, 49_152, norms_heads=False, positions=8192
    ),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 12_288, tied=False),
    "Qwen/Qwen3-14B": Shape(40, 5120, 40, 17_408, tied=False),
    "Qwen/Qwen3-32B": Shape(64, 5120, 64, 25_600, tied=False),
    "meta-llama/Llama-3.3-70B-Instruct": Shape(
        80, 8192, 64, 28_672, False, vocabulary=128_256, norms_heads=False, positions=131_072
    ),
}
"""Shapes of models that recipes name, used without a config.json (source: their config.json)."""


class NoModelError(ConfigError):
    """A model has no config.json that can be read, so that it cannot be loaded either."""


def shape_of(path: str) -> Shape:
    """Return the shape of a model: a folder, a hub name, or "demo".

    Models in SHAPES need no network. Raises NoModelError without a config.json, and ConfigError for
    one that is no dense decoder of transformers.
    """
    file = local_file(model_path(path), "config.json")
    if file is None:
        if path in SHAPES:
            return SHAPES[path]
        place = f"model.path {format_value(path)} has no config.json here"
        with wrap_errors(place, NoModelError, "name a folder that has one, or a model of the hub"):
            file = fetch_file(path, "config.json")

    with wrap_errors(file, NoModelError, "it must be that of a model of transformers"):
        config = parse_json(file.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
    with wrap_errors(file, ConfigError, "it must describe a dense decoder, as Qwen3's does"):
        # The names in the configs of Qwen's, Mixtral's and DeepSeek's mixtures.
        if any(config.get(f"{name}_experts") for name in ("num", "num_local", "n_routed")):
            raise ValueError("it has experts, whose memory is not estimated")
        if config.get("model_type", "") in LLAMA_KIND:
            return _shape(config)
        return _counted(file)


def _shape(config: Mapping[str, Any]) -> Shape:
    """Build the shape from the fields of config.json. Raises KeyError, TypeError, ValueError."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        intermediate=int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        # Without the field, every query head has its own keys.
        kv_heads=int(config.get("num_key_value_heads") or heads),
        # Named where it is another one: 128 of Qwen3-4B, not 2560 / 32.
        head_size=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        # Of LLAMA_KIND only these normalise queries and keys.
        norms_heads=str(config.get("model_type", "")).startswith("qwen3"),
        positions=int(config["max_position_embeddings"]),
    )


def _counted(file: Path) -> Shape:
    """Count the layers of the model that a config.json describes, without its weights."""
    # Here, so that a plan of the Llama kind does without torch.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from paint.resolve import structure

    config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    text = config.get_text_config()
    counts: Counter[tuple[str, int, int]] = Counter()
    for name, layer in structure.linear_modules(model).items():
        counts[(structure.last_part(name), *structure.widths(layer))] += 1
    linear = tuple(Linear(*layer, count) for layer, count in counts.items())
    heads, hidden = int(text.num_attention_heads), int(text.hidden_size)
    ranges = structure.context_length(config), structure.rope_range(config)
    return Shape(
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        # A block's last matrix reads the widest activation.
        intermediate=max(layer.inputs for layer in linear),
        tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_size=int(getattr(text, "head_dim", None) or hidden // heads),
        vocabulary=int(text.vocab_size),
        norms_heads=False,
        positions=min(limit or UNLIMITED for limit in ranges),
        counted_layers=linear,
        counted_weights=sum(parameter.numel() for parameter in model.parameters()),
    )
