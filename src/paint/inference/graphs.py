"""CUDA graphs of a step on static tensors: one launch in place of a thousand.

A graph repeats kernels on the same memory. It has the Python numbers of its capture in it, such as
the shape of a batch, so each shape has a graph. A step that waits for the device cannot be captured
and stays eager, as does one whose graph computes something else.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paint.core.errors import format_short

Step = Callable[[], object]

ATOL = 1e-3  # largest difference of a float between a graph and the eager step


class GraphedStep:
    """A step without arguments and result, repeated as CUDA graphs.

    The step may read and write static tensors only. Repeated from the same ``state``, it must do
    the same.
    """

    def __init__(
        self, state: Sequence[Tensor], warn: Callable[[str], None], *, enabled: bool
    ) -> None:
        self.state = state
        self.warn = warn
        self.enabled = enabled
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        if enabled:
            self.stream = torch.cuda.Stream()
            # Graphs run one after the other, so they share their working memory.
            self.pool = torch.cuda.graph_pool_handle()

    def clear(self) -> None:
        """Drop all graphs, since tensors that they work on have moved."""
        self.graphs.clear()

    # The step is an argument, since its owner has this object: a cycle would keep both in memory.
    def run(self, step: Step, shape: Hashable) -> None:
        if not self.enabled:
            step()
        elif shape in self.graphs:
            self.graphs[shape].replay()
        else:
            self._first(step, shape)

    def _first(self, step: Step, shape: Hashable) -> None:
        """Do the step eagerly and by a new graph, and keep the graph if both agree."""
        before = self.copy()
        try:
            # First eagerly: what libraries set up at their first call cannot be captured.
            with self._on_side_stream():
                step()
            eager = self.copy()
            self.restore(before)
            graph = torch.cuda.CUDAGraph()
            # A capture only records. It fails where the step waits.
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                step()
            graph.replay()
        # A RuntimeError, too, but no reason against graphs: the engine continues with fewer rows.
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):  # it ended the capture
                raise error.__context__ from error
            self._disable(f"a step cannot be captured ({format_short(str(error))})")
            self.restore(before)
            step()
            return

        if self.agrees(eager):
            self.graphs[shape] = graph
        else:
            self._disable("a graph's tokens or log-probs differ from those of the eager step")
            self.restore(eager)

    @contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        mode = torch.cuda.get_sync_debug_mode()
        # A wait for the device is an error here, as it is in a capture.
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            current.wait_stream(self.stream)

    def _disable(self, reason: str) -> None:
        self.enabled = False
        self.graphs.clear()
        self.warn(f"engine: no CUDA graphs, since {reason}; decoding is several times slower")

    def copy(self) -> list[Tensor]:
        return [part.clone() for part in self.state]

    def restore(self, values: Sequence[Tensor]) -> None:
        for part, value in zip(self.state, values, strict=True):
            part.copy_(value)

    def agrees(self, expected: Sequence[Tensor]) -> bool:
        """Return whether the state is the expected one: integers exactly, floats within ATOL."""
        for part, value in zip(self.state, expected, strict=True):
            if not torch.allclose(part, value, rtol=0, atol=ATOL, equal_nan=True):
                return False
        return True
