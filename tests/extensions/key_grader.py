"""Graders with a key and an address of the environment outside of the package."""

import hashlib
from dataclasses import dataclass

from paint.grading.contract import Grade


@dataclass(frozen=True)
class KeyOptions:
    api_key: str = "env:PAINT_TEST_KEY"
    """Key of an endpoint."""
    url: str = "http://localhost:8001/v1"
    """Address of the endpoint."""

    def __post_init__(self) -> None:
        if not self.url.startswith("http"):
            raise ValueError(f"{self.url} is no address")


def grade(completion, row, options: KeyOptions):  # type: ignore[no-untyped-def]
    digest = hashlib.sha256(f"{options.api_key} {options.url}".encode()).hexdigest()
    return Grade(0.5, f"{digest[:8]} {options.api_key}", feedback=f"asked {options.url}")


async def fails(completion, row, options: KeyOptions):  # type: ignore[no-untyped-def]
    raise PermissionError(f"401 for {options.api_key} at {options.url}?user=me")
