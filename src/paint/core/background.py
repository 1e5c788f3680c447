"""Coroutines run by code that is not async, also where a notebook's own event loop is running."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from paint.core.display import LOGGER
from paint.core.user_code import describe_error

T = TypeVar("T")

END_SECONDS = 2.0  # within which what is cancelled must end


class Background:
    """An event loop in a separate thread, which is ended with the process."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_log)
        self._is_closing = False
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self.thread.start()

    def _run_loop(self) -> None:
        # A task of the user's that ends by SystemExit, or calls stop(), ends run_forever. What else
        # waits in the loop would then be waited for in vain.
        while not self._is_closing:
            with suppress(BaseException):
                self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result; an interrupted wait cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def cancel(self) -> None:

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=END_SECONDS)

        with suppress(TimeoutError):
            self.submit(end()).result(END_SECONDS + 1)

    def close(self) -> None:

        def stop() -> None:
            self._is_closing = True
            self.loop.stop()

        # stop() alone would not wake the loop, which sleeps in the other thread.
        self.loop.call_soon_threadsafe(stop)
        self.thread.join(END_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    LOGGER.debug("%s: %s", context["message"], describe_error(error) if error else "")
