"""Refusal of folders that are named as a model and are none, by their files.

transformers loads an adapter's base for its folder, and makes a tokenizer of no files.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from paint.core.nesting import parse_json

# Files of which one is in every folder with a tokenizer.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model*", "vocab.*", "merges.txt", "*.tiktoken", "*.spm"),
    *("tekken.json", "spiece.model", "sentencepiece*.model", "*.bpe.model", "tokenization_*.py"),
)
# Endings of architectures in config.json whose head predicts no next token.
OTHER_HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *("ForMaskedLM", "ForMultipleChoice", "RewardModel"),
)


def other_than_model(path: str | Path) -> str:
    """Say what a folder or file is if it is no model, after its name; "" for a model.

    Also "" for what is not there, such as a hub name.
    """
    folder = Path(path)
    if folder.is_file():
        return "is a file; name the folder that it is in"
    if not folder.is_dir():
        return ""
    if (folder / "run.json").is_file() or (folder / "state.json").is_file():
        return (
            f"is a run or a checkpoint; `paint export {folder} FOLDER --merged` makes a model of it"
        )
    if (folder / "adapter_config.json").is_file():
        base = _read(folder / "adapter_config.json").get("base_model_name_or_path")
        return f"{ADAPTER}; its base is {base}"
    if not (folder / "config.json").is_file():
        return "has no config.json; name the folder of a model in transformers' format"
    names = _read(folder / "config.json").get("architectures")
    for name in names if isinstance(names, list) else []:
        if str(name).endswith(OTHER_HEADS):
            return f"is a {name}, which predicts no next token; name a causal language model"
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        return (
            "has no tokenizer (tokenizer.json); copy the tokenizer's files of the model there, "
            "tokenizer.json and tokenizer_config.json"
        )
    return ""


ADAPTER = (
    "is an adapter (adapter_config.json) and no model: a training would begin from its base alone; "
    "name the base, or merge the adapter into it first, by `paint export CHECKPOINT FOLDER "
    "--merged`, or merge_and_unload of peft"
)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        table = parse_json(path.read_bytes())
        if isinstance(table, dict):
            return table
    return {}
