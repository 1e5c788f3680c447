"""No key and no password stands in a config, a message, a log, a sample or a list of processes."""

from pathlib import Path

import pytest

from conftest import DEMO
from fake_vllm_server import FakeVllmServer
from paint.config.recipe import from_table
from paint.config.schema import ConfigError, RolloutConfig
from paint.core.display import Display
from paint.inference.engine import EngineError
from paint.inference.factory import EngineSetup
from paint.inference.vllm.client import VllmServer
from paint.inference.vllm.pool import VllmEngine
from paint.inference.vllm.process import API_KEY
from paint.models.policy import Policy

SECRET = "s3cr3t-0f-mine"


@pytest.mark.parametrize(
    "setting",
    [
        {"server_args": f"--dtype half --api_key={SECRET}"},
        {"server": f"bash -c 'HF_TOKEN={SECRET} exec vllm serve'"},
        {"engine": "vllm", "urls": (f"http://me:{SECRET}@node1:8000",)},
    ],
)
def test_rollout_secret_is_refused_without_repeating_it(setting: dict[str, object]) -> None:
    table = {k: [*v] if isinstance(v, tuple) else v for k, v in setting.items()}
    with pytest.raises(ConfigError) as error:
        from_table({"rollout": table})
    assert SECRET not in str(error.value)
    assert "environment" in str(error.value)


def test_foreign_server_gets_key_from_environment(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that wants a key, and repeats in its message which one it got."""
    fake_server = FakeVllmServer(key=SECRET)

    def connect() -> int:
        server = VllmServer(fake_server.url, timeout=5.0)
        engine = VllmEngine(policy, [server], tmp_path, Display(), RolloutConfig(engine="vllm"))
        try:
            engine.connect()
        finally:
            engine.close()
        return server.max_tokens

    try:
        monkeypatch.setenv(API_KEY, SECRET)
        assert connect() == fake_server.max_tokens
        monkeypatch.setenv(API_KEY, "another-" + SECRET)
        with pytest.raises(EngineError, match=rf"401: .*bad key Bearer \*\*\*.*{API_KEY}") as error:
            connect()
        assert SECRET not in str(error.value)
    finally:
        fake_server.stop()


def test_owned_server_gets_fresh_secret_key(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, SECRET)  # that of other servers
    rollout = RolloutConfig(engine="vllm", server_gpus=("0", "1"))
    setup = EngineSetup(policy, DEMO, rollout, tmp_path, Display(), 64, ())
    servers = VllmEngine.from_setup(setup).servers
    for server in servers:
        assert server.process is not None
        assert len(server.key) >= 32
        assert server.process.environment[API_KEY] == server.key
        assert not any(server.key in word for word in server.process.command)
    assert len({SECRET, *(server.key for server in servers)}) == 3
