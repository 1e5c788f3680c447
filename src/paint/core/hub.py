"""The Hugging Face hub: whether it can be reached, and single files of a model."""

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from paint.core.errors import ConfigError
from paint.core.model_folder import ADAPTER, other_than_model


def require_network() -> None:
    """Raise ConnectionError if the hub's host is not found, for which its client waits 24 s."""
    host = urlsplit(constants.ENDPOINT).hostname
    if constants.HF_HUB_OFFLINE or getproxies():  # a proxy resolves it
        return
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        raise ConnectionError(f"{host} is not found; check the network") from None


def require_model(model: str) -> None:
    """Raise OSError for a model that is neither a folder, nor cached, nor on a hub in reach."""
    other = other_than_model(model)
    if other:
        raise ConfigError(f"{model} {other}")
    if Path(model).is_dir():
        return
    if local_file(model, "adapter_config.json"):
        raise ConfigError(f"{model} {ADAPTER}")
    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        raise FileNotFoundError("there is no such folder, and it is no hub name") from None
    if not isinstance(cached, str):
        require_network()


def local_file(model: str, name: str) -> Path | None:
    """Return a file of a model, from its folder or the hub's cache; None if it is not there."""
    cached: object = Path(model, name)
    if not Path(model).is_dir():
        try:
            cached = try_to_load_from_cache(model, name)
        except HFValidationError:  # a path that cannot be a hub name
            return None
    # The cache also returns a mark for files that the hub is known to lack.
    if isinstance(cached, str | Path) and Path(cached).is_file():
        return Path(cached)
    return None


def fetch_file(model: str, name: str) -> Path:
    """Download a file of a hub's model into the cache. Raises OSError where that fails."""
    if Path(model).is_dir():
        raise FileNotFoundError("it is a folder without one")
    require_model(model)
    return Path(hf_hub_download(model, name))
