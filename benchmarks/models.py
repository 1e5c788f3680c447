"""Random models of real shapes, for benchmarks that need no weights."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from paint.core.demo_files import MODEL

VOCABULARY = 151_936


def random_qwen3(
    folder: Path,
    *,
    layers: int = 28,
    hidden: int = 2048,
    intermediate: int | None = None,
    heads: int = 16,
    kv_heads: int = 8,
    head_size: int = 128,
    tied: bool = True,
    vocabulary: int = VOCABULARY,
    device: str = "cpu",
) -> str:
    """Write a Qwen3 with random weights in bf16, and a tokenizer for it; return its path.

    The defaults are the shape of Qwen3-1.7B. ``intermediate`` is 3 · hidden where it is None, as in
    the three models of the paper but one (4B: 3.8).
    """
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate or 3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_size,
        tie_word_embeddings=tied,
    )

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)  # not float32 first: twice the memory
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)

    AutoTokenizer.from_pretrained(str(MODEL), trust_remote_code=False).save_pretrained(folder)
    return str(folder)
