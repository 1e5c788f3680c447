"""A fake vLLM server that responds like vLLM 0.32.0 and fails on demand.

Its responses to what goes wrong are those that the real server gave. What our engine does with a
real one is tested in inference/test_vllm.py; this one can be made to hang, to die and to come back
within milliseconds.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

END = 2


class FakeVllmServer:
    """One server. ``calls`` holds (path, body) in order of arrival.

    Attributes:
        adapters: loaded adapters, name to path.
        max_tokens: as --max-model-len.
        key: as VLLM_API_KEY; empty: none.
        runtime, sleeps: started with runtime updates of adapters; with sleep mode.
        seconds: time that a completion takes.
        failures: so many requests of completions get status 500 before all is well.
        silent: no request gets a response.
        forgetful: so many requests are served before all adapters are forgotten, as in a restart.
        changes: what completions have in place of their own values.
    """

    def __init__(self, **settings: Any) -> None:
        self.adapters: dict[str, str] = {}
        self.calls: list[tuple[str, Any]] = []
        self.max_tokens, self.key, self.seconds = 1024, "", 0.0
        self.runtime = self.sleeps = True
        self.silent = self.asleep = False
        self.failures, self.lock = 0, threading.Lock()
        self.forgetful: int | None = None
        self.changes: dict[str, Any] = {}
        self.__dict__.update(settings)
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        """Return the requested paths, without health checks."""
        return [path for path, _ in self.calls if path != "/health"]

    def start(self) -> None:
        """Listen on the same port as before, without the adapters of before."""
        self.adapters.clear()
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.port = self.server.server_address[1]
        self.alive = True
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    def stop(self) -> None:
        """Die: connections are refused, and those that are open are cut."""
        if self.alive:
            self.alive = False
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()

    def respond(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and content of the response to a request."""
        route = path.split("?")[0]
        if route == "/health":
            return 200, ""
        if route == "/v1/models":
            base = {"id": "base", "parent": None, "max_model_len": self.max_tokens}
            loras = [{"id": n, "parent": "base", "root": p} for n, p in self.adapters.items()]
            return 200, {"data": [base, *loras]}
        if self.sleeps and route in ("/sleep", "/wake_up"):
            self.asleep = route == "/sleep"
            return 200, {"status": "done"}
        if route == "/v1/completions":
            return self.complete(body)
        if self.runtime and route == "/v1/load_lora_adapter":
            return self.load(body["lora_name"], Path(body["lora_path"]))
        if self.runtime and route == "/v1/unload_lora_adapter":
            known = self.adapters.pop(body["lora_name"], None)
            return (200, "removed") if known else (404, _error("The lora adapter cannot be found."))
        return 404, {"detail": "Not Found"}

    def load(self, name: str, path: Path) -> tuple[int, Any]:
        if name in self.adapters:
            return 400, _error(f"The lora adapter '{name}' has already been loaded. If you ...")
        if not (path / "adapter_model.safetensors").exists():
            return 404, _error(f"Loading lora {name} failed: No adapter found for <path>")
        self.adapters[name] = str(path)
        return 200, "loaded"

    def complete(self, body: Any) -> tuple[int, Any]:
        if self.forgetful is not None:
            self.forgetful -= 1
            if self.forgetful < 0:
                self.adapters.clear()
                self.forgetful = None
        if body["model"] not in self.adapters:
            return 404, _error(f"The model `{body['model']}` does not exist.")
        with self.lock:
            fails = self.failures > 0
            self.failures -= fails
        if fails:
            return 500, _error("EngineCore encountered an issue. See stack trace (above) for ...")
        time.sleep(self.seconds)
        ids = [body["seed"] % 500 + 3, *body["prompt"][:2], END][: body["max_tokens"]]
        return completed(body["prompt"], ids, [-0.5] * len(ids), **self.changes)


def completed(
    prompt: list[int], ids: list[int], log_probs: list[float], **changes: Any
) -> tuple[int, Any]:
    """The response with one completion."""
    choice = {
        "token_ids": ids,
        "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": log_probs},
    }
    return 200, {"choices": [choice | changes]}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def _handler(fake_server: FakeVllmServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or the content waits 40 ms for the headers' receipt

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            fake_server.calls.append((self.path, body))
            sent, key = self.headers.get("Authorization", ""), fake_server.key
            status, content = fake_server.respond(self.path, body)
            if key and self.path != "/health" and sent != f"Bearer {key}":
                status, content = 401, _error(f"bad key {sent}")
            while fake_server.silent:
                time.sleep(0.01)
            if not fake_server.alive:
                self.close_connection = True
                self.connection.close()
                return
            text = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, json.JSONDecodeError):
                return  # the client has gone

        def log_message(self, *_: object) -> None:
            return

    return Handler
