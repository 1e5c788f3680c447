"""Random models of real shapes, for benchmarks that need no weights."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from paint.lab.files import MODEL


def random_qwen3_1_7b(
    folder: Path, *, layers: int = 28, vocabulary: int = 151_936, device: str = "cpu"
) -> str:
    """Write Qwen3-1.7B with random weights in bf16, and a tokenizer for it; return its path.

    Fewer ``layers`` and a smaller ``vocabulary`` make a model for trying a benchmark.
    """
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )

    torch.manual_seed(0)
    with torch.device(device):
        Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)

    AutoTokenizer.from_pretrained(str(MODEL)).save_pretrained(folder)
    return str(folder)
