"""Lengths of many texts: those of one text at a time, and a bound that no tokenizer exceeds."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from chat_templates import CHATML, small_tokenizer
from chatforms.lengths import most_tokens, token_lengths

CHARACTERS = [("<unk>", 0.0), ("▁", -1.0), *((chr(c), -2.0) for c in range(33, 127))]
BYTES = [(f"<0x{i:02X}>", -10.0) for i in range(256)]


def unigram(normalizer: normalizers.Normalizer) -> Tokenizer:
    """As Llama 2's: a token for each character, and for each byte of an unknown one."""
    made = Tokenizer(models.Unigram([*CHARACTERS, *BYTES], unk_id=0, byte_fallback=True))
    made.normalizer = normalizer
    return made


def byte_level() -> Tokenizer:
    """As GPT-2's, with a blank before each piece between special tokens."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>"], initial_alphabet=letters)
    made.train_from_iterator(["the quick brown fox 12 + 3 = 15"] * 20, trainer)
    return made


def words() -> Tokenizer:
    made = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "compatible": lambda: unigram(normalizers.NFKC()),
    "llama": lambda: unigram(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "bytes": byte_level,
    "words": words,
}


def of_kind(kind: str) -> PreTrainedTokenizerBase:
    if kind == "small":
        return small_tokenizer(CHATML)
    made = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), unk_token="<unk>")
    # One of them is a single byte: then two tokens may come from one.
    made.add_special_tokens({"additional_special_tokens": ["<|a|>", "|"]})
    return made


TOKENIZERS = {kind: of_kind(kind) for kind in ("small", *KINDS)}
ODD = "\ufdfa\u3371\ufb03😀中\u0301각▁\xad\u200d |"


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.lists(st.sampled_from([*ODD, "<|a|>", "a", "b", "  ", "12", "\n"]) | st.text(max_size=5)))
def test_most_tokens_is_never_exceeded(kind: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert token_lengths(TOKENIZERS[kind], [text])[0] <= most_tokens(TOKENIZERS[kind], text)


class SlowTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """One of transformers' without the library of fast ones: a token for each word."""

    vocab_size = 1

    def get_vocab(self) -> dict[str, int]:
        return {"word": 0}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return 0

    def _convert_id_to_token(self, index: int) -> str:
        return "word"


def test_most_tokens_is_exact_where_the_normalizer_is_not_known() -> None:
    assert most_tokens(SlowTokenizer(), "two words") == 2


def test_token_lengths_of_a_batch_are_those_of_each_text() -> None:
    rng = random.Random(0)
    texts = ["", *("".join(rng.choices("ab 12|😀", k=n)) for n in range(40))]
    for tokenizer in TOKENIZERS.values():
        each = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        assert token_lengths(tokenizer, texts) == each
    assert token_lengths(TOKENIZERS["small"], []) == []
