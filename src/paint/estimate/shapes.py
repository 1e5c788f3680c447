"""Shapes of a dense decoder's matrices, from its config.json.

Not included: biases of attention (a ten-thousandth of the weights), experts, and vision.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paint.config.schema import MAX_COUNT
from paint.core.errors import ConfigError, format_value, wrap_errors
from paint.core.hub import fetch_file, local_file
from paint.demo.files import model_path

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by its dtype."""


@dataclass(frozen=True)
class Shape:
    """Shapes of the matrices of a dense decoder such as Qwen3 or Llama.

    Attributes:
        layers, hidden, intermediate, vocabulary: the number of layers, and three widths.
        heads, kv_heads, head_size: the number of query heads, of key and value heads, and the width
            of a head.
        tied: whether embedding and head are one matrix.
        norms_heads: whether queries and keys are normalised head by head, as in Qwen3.
        positions: the longest sequence of the model, in tokens.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    tied: bool
    kv_heads: int = 8
    head_size: int = 128
    vocabulary: int = 151_936
    norms_heads: bool = True
    positions: int = 40_960

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Input and output widths of each linear layer of a block."""
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
        """Width of all query heads."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_size

    @property
    def weights(self) -> int:
        """N: number of weights in all blocks' matrices, each multiplied once a token."""
        return self.layers * sum(rows * columns for rows, columns in self.matrices.values())

    @property
    def head(self) -> int:
        """Number of weights in the projection onto the vocabulary."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """Number of all weights: matrices, norms, embedding and head."""
        # Two norms a block, those of queries and keys, and the last one.
        of_heads = self.head_size if self.norms_heads else 0
        norms = self.layers * 2 * (self.hidden + of_heads) + self.hidden
        return self.weights + norms + self.head * (1 if self.tied else 2)

    @property
    def cache(self) -> int:
        """Numbers of one token's keys and values in all layers."""
        return 2 * self.layers * self.keys

    def adapters(self, rank: int, targets: Iterable[str]) -> int:
        """A: number of weights in the LoRA adapters, rank · (inputs + outputs) for each target."""
        return self.layers * rank * sum(sum(self.matrices[name]) for name in targets)


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


def shape_of(path: str) -> Shape:
    """Read the shape of a model: a folder, a hub name, or "demo".

    Models in SHAPES need no network, others of the hub send their config.json, a few kB.

    Raises:
        ConfigError: there is no config.json, or it does not describe a dense decoder.
    """
    file = local_file(model_path(path), "config.json")
    if file is None:
        if path in SHAPES:
            return SHAPES[path]
        place = f"model.path {format_value(path)} has no config.json here"
        with wrap_errors(place, ConfigError, "name a folder that has one, or a model of the hub"):
            file = fetch_file(path, "config.json")

    with wrap_errors(file, ConfigError, "it must describe a dense decoder, as Qwen3's does"):
        return _shape(json.loads(file.read_bytes()))


def _shape(config: Mapping[str, Any]) -> Shape:
    """Build the shape from the fields of config.json. Raises KeyError, ValueError."""
    if any(config.get(f"{name}_experts") for name in ("num", "num_local", "n_routed")):
        raise ValueError("it has experts, whose memory and time are not estimated")

    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    shape = Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        intermediate=int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        norms_heads=str(config.get("model_type", "")).startswith("qwen3"),
        positions=int(config["max_position_embeddings"]),
    )
    for name, value in vars(shape).items():
        if not isinstance(value, bool) and not 1 <= value <= MAX_COUNT:
            raise ValueError(f"{name} is {value:,}, which no model has")
    return shape
