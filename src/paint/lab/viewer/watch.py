"""`paint show --watch`: the page of runs for this machine alone, with new steps as they come.

One page and a stream of server-sent events, by the standard library. The server listens on
127.0.0.1, and answers only requests by that name or "localhost": a page of another site whose name
is made to lead here (DNS rebinding) has its own name in the header Host.
"""

import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from paint.config.run_folder import read_metrics
from paint.core.display import Display
from paint.core.errors import PaintError
from paint.lab.viewer.page import PAGE, as_json, render
from paint.lab.viewer.runs import runs_data, runs_in, version_of

ADDRESS = "127.0.0.1"
POLL_SECONDS = 0.5
SILENT_POLLS = 20
"""After so many polls without news a comment is sent, by which a closed page is noticed."""


class PageServer(ThreadingHTTPServer):
    """Serves the page of some runs on a free port of this machine."""

    daemon_threads = True  # a stream never ends by itself
    block_on_close = False

    def __init__(self, targets: Sequence[Path], display: Display) -> None:
        super().__init__((ADDRESS, 0), PageHandler)
        self.targets = targets
        self.display = display
        self.port: int = self.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def watch(self) -> None:
        """Serve until Ctrl-C."""
        self.display.note(f"{self.url} has the page, with new steps as they come; Ctrl-C ends it")
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            self.display.note("the server has ended")
        finally:
            self.server_close()

    def page(self) -> str:
        """Return the page as it is now. Raises RunError without a run that can be read."""
        data = runs_data(self.targets, self.targets[0] / PAGE, self.display, live=True)
        # Links of files lead nowhere from a server.
        for run in data["runs"]:
            for evaluation in run["evaluations"]:
                evaluation["link"] = None
        return render("runs", f"{data['name']} · paint show", data)

    def events(self, counts: list[int], version: str) -> Iterator[str]:
        """Yield news since a page with ``counts`` steps of each run and this version, without end.

        A message has new rows of one run; its id has the counts after it, which a browser sends
        when it connects again. The event "reload" says that the page must be made anew.
        """
        runs = runs_in(self.targets)
        counts += [0] * (len(runs) - len(counts))
        sizes = [-1] * len(runs)
        for poll in range(1, 2**62):
            if version_of(self.targets) != version:
                yield "event: reload\ndata: 1\n\n"
                return
            for i, run in enumerate(runs):
                history = run / "metrics.jsonl"
                size = history.stat().st_size if history.exists() else 0
                if size == sizes[i]:
                    continue
                sizes[i], rows = size, read_metrics(run)
                if len(rows) < counts[i]:  # a resumed run repeats steps
                    yield "event: reload\ndata: 1\n\n"
                    return
                new, counts[i] = rows[counts[i] :], len(rows)
                if new:
                    name = ",".join(map(str, counts))
                    yield f"id: {name}\ndata: {as_json({'run': i, 'rows': new})}\n\n"
            if poll % SILENT_POLLS == 0:
                yield ": still here\n\n"
            time.sleep(POLL_SECONDS)


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET / with the page, and GET /events with the stream."""

    server: PageServer

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(403, "only for this machine")
            return
        try:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            counts = self.headers.get("Last-Event-ID") or query.get("from", [""])[0]
            steps = [int(count) for count in counts.split(",") if count.isdecimal()]
        except ValueError:  # no address, or a number of thousands of digits
            self.send_error(400)
            return
        try:
            if address.path == "/":
                self._send("text/html; charset=utf-8", [self.server.page()])
            elif address.path == "/events":
                events = self.server.events(steps, query.get("version", [""])[0])
                self._send("text/event-stream", events)
            else:
                self.send_error(404)
        except ConnectionError:
            pass  # the page was closed
        except PaintError as error:
            self.server.display.warn(str(error))

    def _send(self, kind: str, parts: Any) -> None:
        parts = iter(parts)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        for part in parts:
            self.wfile.write(part.encode("utf-8", "replace"))
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""
