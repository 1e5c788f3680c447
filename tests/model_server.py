"""A fake vLLM server that samples from the demo model: `python model_server.py VLLM_FLAGS`.

It holds base and adapter, as vLLM does, so that it passes the adapter sync check; one row at a
time, so that a completion depends on its prompt, its seed and the adapter to the last bit. It
starts in seconds.
"""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_vllm_server import FakeVllmServer, completed
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.models.weights import load_trained, read_adapter_shape


class ModelServer(FakeVllmServer):
    """One server; its adapters answer."""

    def __init__(self, port: int, **settings: Any) -> None:
        self.wanted, self.answering, self.served = port, threading.Lock(), ""
        self.policy: Any = None
        super().__init__(**settings)

    def start(self) -> None:
        self.port = self.wanted
        super().start()

    def complete(self, body: Any) -> tuple[int, Any]:
        name = body["model"]
        with self.answering:
            if name not in self.adapters:
                return super().complete(body)
            if name != self.served:
                folder = Path(self.adapters[name])
                model = replace(read_adapter_shape(folder), path="demo", dtype="float32")
                self.policy = self.policy or load_policy(model, seed=0)
                load_trained(self.policy, folder)
                self.served = name
            sampling = Sampling(
                temperature=body["temperature"],
                top_p=body["top_p"],
                top_k=body["top_k"] or -1,
                max_new_tokens=body["max_tokens"],
            )
            engine = LocalEngine(self.policy, batch_size=1)
            [completion] = engine.generate([body["prompt"]], sampling, [body["seed"]])
        log_probs = [min(x, 0.0) for x in completion.log_probs]
        return completed(body["prompt"], list(completion.ids), log_probs)


if __name__ == "__main__":
    flags = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    server = ModelServer(int(flags["--port"]), max_tokens=int(flags["--max-model-len"]))
    server.thread.join()
