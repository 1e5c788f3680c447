"""An engine that is remote by contract and generates in this process: no server is started."""

from paint.inference.engine import RemoteEngine
from paint.inference.local import LocalEngine


class OwnServer(LocalEngine, RemoteEngine):
    """This process in the place of servers."""

    def connect(self) -> None: ...

    def close(self) -> None: ...
