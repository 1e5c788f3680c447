"""What happens to files: they are cut, bits flip, files take others' places."""

import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FLIPS = 3
"""Bits that flip in a file, one at a time."""


@dataclass(frozen=True)
class Damage:
    """Something that happens to one file.

    Attributes:
        name: of what happens.
        path: the file, from the world's folder.
        do: does it, given where the file is.
        is_harmless: nothing that is ours was changed, so that nothing may be refused.
    """

    name: str
    path: Path
    do: Callable[[Path], object]
    is_harmless: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def damages(world: Path, path: Path, others: Sequence[Path], rng: random.Random) -> list[Damage]:
    """All that happens to a file of a world.

    Args:
        path: from the world's folder.
        others: files of its kind, from which it is overwritten.
    """
    content = (world / path).read_bytes()
    changed = [*_cuts(content, rng), *_flips(content, rng)]
    for other in others:
        changed.append((f"overwritten with {other}", (world / other).read_bytes()))

    def copied(at: Path) -> None:
        shutil.copy(at, at.with_name(f"{path.stem} (copy){path.suffix}"))

    def litter(at: Path) -> None:
        at.with_name(".DS_Store").write_bytes(b"\0\0\0\1Bud1")

    return [
        *(
            Damage(name, path, lambda at, new=new: at.write_bytes(new))  # type: ignore[misc]
            for name, new in changed
            if new != content
        ),
        Damage("gone", path, Path.unlink),
        Damage("a copy beside it", path, copied, is_harmless=True),
        Damage(".DS_Store beside it", path, litter, is_harmless=True),
    ]


def others_of(path: Path, files: Sequence[Path], rng: random.Random, count: int) -> list[Path]:
    """Some files of the same kind: of the same name, but for the numbers in it."""

    def kind(file: Path) -> str:
        return re.sub(r"\d+", "0", file.name)

    same = [file for file in files if file != path and kind(file) == kind(path)]
    return rng.sample(same, min(count, len(same)))


def _cuts(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "cut in half", content[: len(content) // 2]
    yield "last byte gone", content[:-1]
    ends = [at + 1 for at in range(len(content) - 1) if content[at] == 10]
    if ends and content.isascii():
        yield "cut at a line end", content[: rng.choice(ends)]


def _flips(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for _ in range(FLIPS if content else 0):
        at, bit = rng.randrange(len(content)), rng.randrange(8)
        flipped = bytes([content[at] ^ (1 << bit)])
        yield f"bit {bit} of byte {at} flipped", content[:at] + flipped + content[at + 1 :]
