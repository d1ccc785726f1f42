"""`python -m recor_dist.core.ray_remains FOLDER`: waits until the process that started Ray is gone, then ends what Ray
has left running, and removes its folder.

After a kill of that process, most of Ray ends by itself. Its agents notice it within seconds, too, but then try for a
minute to report it to a server which is gone as well.
"""

import os
import shutil
import sys
import time
from contextlib import suppress

import psutil

NAMES = ("ray", "gcs_server", "python")
PATIENCE = 3.0  # seconds for Ray to end by itself


def main() -> None:
    folder = sys.argv[1]
    sys.stdin.read()  # which ends with that process
    time.sleep(PATIENCE)
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended, or belongs to someone else
            if process.pid != os.getpid() and process.name().startswith(NAMES) and _uses(process, folder):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _uses(process: psutil.Process, folder: str) -> bool:
    """True if it has a file of the folder open, as all processes of Ray have their logs."""
    return any(file.path.startswith(f"{folder}/") for file in process.open_files())


if __name__ == "__main__":
    main()
