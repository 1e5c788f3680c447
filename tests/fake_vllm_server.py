"""A fake vLLM server that responds like vLLM 0.32.0 and fails on demand.

Its responses to what goes wrong are those that the real server gave. What our engine does with a
real one is tested in engines/test_vllm.py; this one can be made to hang, to die and to come back
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
        max_rank, max_loras, max_tokens: as the flags of the same names.
        lora, runtime, sleeps: started with --enable-lora; with runtime updates; with sleep mode.
        seconds: time that a completion takes.
        broken: a request for a completion gets status 500.
        hiccups: so many requests get status 500 before all is well.
        silent: no request gets a response.
        forgetful: so many requests are served before all adapters are forgotten, as in a restart.
        spoil: changes a completion before it is sent.
        send: sends what a well-behaved server would, or something else: called with the request's
            handler, its path, and the good status and content; it returns whether it has.
    """

    def __init__(self, **settings: Any) -> None:
        self.adapters: dict[str, str] = {}
        self.calls: list[tuple[str, Any]] = []
        self.max_rank, self.max_loras, self.max_tokens = 16, 1, 1024
        self.lora = self.runtime = self.sleeps = True
        self.seconds = 0.0
        self.broken = self.silent = self.asleep = False
        self.hiccups, self.lock = 0, threading.Lock()
        self.forgetful: int | None = None
        self.spoil: Any = None
        self.send: Any = None
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
        if route == "/metrics":
            return 200, f'vllm:lora_requests_info{{max_lora="{self.max_loras}"}} 1.0\n'
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
        worker = "Call to add_lora method failed: Worker failed with error '{}', please check ..."
        if not self.lora:
            disabled = "LoRA is not enabled. Use --enable-lora to enable LoRA."
            return 500, _error(worker.format(disabled))
        if name in self.adapters:
            return 400, _error(f"The lora adapter '{name}' has already been loaded. If you ...")
        if not (path / "adapter_model.safetensors").exists():
            return 404, _error(f"Loading lora {name} failed: No adapter found for <path>")
        rank = json.loads((path / "adapter_config.json").read_text())["r"]
        if rank > self.max_rank:
            above = f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}."
            return 500, _error(worker.format(above))
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
            has_hiccup = self.hiccups > 0
            self.hiccups -= has_hiccup
        if self.broken or has_hiccup:
            return 500, _error("EngineCore encountered an issue. See stack trace (above) for ...")
        time.sleep(self.seconds)
        ids = [body["seed"] % 500 + 3, *body["prompt"][:2], END][: body["max_tokens"]]
        choice = {
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop" if ids[-1] == END else "length",
            "stop_reason": None,
        }
        if self.spoil is not None:
            self.spoil(choice)
        return 200, {"choices": [choice]}


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
            status, content = fake_server.respond(self.path, body)
            while fake_server.silent:
                time.sleep(0.01)
            if not fake_server.alive:
                self.close_connection = True
                self.connection.close()
                return
            if fake_server.send is not None and fake_server.send(self, self.path, status, content):
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
