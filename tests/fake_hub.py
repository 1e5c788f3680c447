"""The hub's HTTP API, as far as creating a repository and committing small files goes."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeHub:
    """What a hub was asked to create, and the files of its commits."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.url = ""

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the JSON of a POST."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            if asked.get("organization") == "another":
                return 403, {"error": "You don't have the rights to create a model there"}
            self.created.append(asked)
            name = f"{asked.get('organization', 'me')}/{asked['name']}"
            return 200, {"url": f"{self.url}/{name}", "id": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            inline = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return 200, {"files": [inline | {"path": path} for path in paths]}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.files[line["value"]["path"]] = content
            repository = path.removeprefix("/api/models/").removesuffix("/commit/main")
            return 200, {"commitUrl": f"{self.url}/{repository}/commit/1", "commitOid": "1"}
        return 404, {"error": f"no {path}"}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub on a free port of this machine."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hub.tokens.add(self.headers["Authorization"])
            status, value = hub.answer(self.path.partition("?")[0], body)
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
