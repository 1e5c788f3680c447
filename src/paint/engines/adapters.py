"""The adapter swap: every version of a run's adapter is a folder of its own, under a new name.

vLLM keeps the cached prefixes of (name, path): a name or path that is used twice answers with what
it remembers of the first (vLLM issue 42125). So no version ever gets the name of another one, of
this run or of any other. A server loads a version under its folder's name (``Server.load``), and
requests ask for that name, so no server can answer with an older version.
"""

import shutil
import uuid
from pathlib import Path

from paint.engines.protocol import EngineError
from paint.files import digest, new_folder
from paint.model.policy import Policy
from paint.model.weights import save_adapter


class Adapters:
    """Writes the versions of one run's adapter, and gives each a name of its own.

    Args:
        folder: of this run alone; servers must see it under the same path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        # Servers outlive runs, and remember names: no other run may have used ours.
        self.run = uuid.uuid4().hex[:12]
        self.version = 0

    def write(self, policy: Policy) -> Path:
        """Write the policy's adapter as the next version, whole or not at all.

        Raises:
            EngineError: the disk cannot take it; the message says what to change.
        """
        self.version += 1
        folder = self.folder / f"paint-{self.run}-{self.version:06d}"
        try:
            with new_folder(folder) as partial:
                save_adapter(policy, partial)
        except OSError as error:
            raise EngineError(
                f"the adapter could not be written to {folder}: {error}; free some space, or "
                f"choose another folder with --rollout.adapter-folder"
            ) from error
        return folder


def open_folder(run_folder: Path, adapter_folder: str | None) -> Path:
    """Make the folder for a run's adapters: in the run's own folder, or in ``adapter_folder``.

    What the same run left there before it was killed is deleted.

    Raises:
        EngineError: it cannot be made.
    """
    if adapter_folder:
        # Many runs are called seed-0, and each deletes what it finds in its folder.
        name = f"{run_folder.name}-{digest(str(run_folder.resolve()))[:8]}"
        folder = Path(adapter_folder) / name
    else:
        folder = run_folder / "engine"

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"{folder} cannot be made: {error}; choose another with --rollout.adapter-folder"
        ) from error
    delete_all(folder)
    return folder


def delete_all(folder: Path) -> None:
    """Delete every version in a run's folder, also one that was never finished."""
    for path in folder.glob("*paint-*"):
        delete(path)


def delete(adapter: Path) -> None:
    """Delete one version, if it is there."""
    shutil.rmtree(adapter, ignore_errors=True)
