"""What is on the hub: refused at once without a network, and fetched with one."""

import socket
from collections.abc import Callable

import pytest

from paint.core.errors import PaintError
from paint.data.readers import read_rows
from paint.models.policy import load_tokenizer
from paint.models.weights import own_dtype
from paint.resolve.shapes import shape_of


@pytest.mark.parametrize(
    "load", [lambda name: list(read_rows(name)), load_tokenizer, own_dtype, shape_of]
)
def test_hub_without_network_is_reported_before_any_retry(
    load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def unresolved(host: str, port: None) -> None:
        asked.append(host)
        raise socket.gaierror

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("paint.core.hub.getproxies", dict)
    monkeypatch.setattr("socket.getaddrinfo", unresolved)
    with pytest.raises(PaintError, match=r"nobody/nothing.* huggingface\.co is not found"):
        load("nobody/nothing")
    assert asked == ["huggingface.co"]
