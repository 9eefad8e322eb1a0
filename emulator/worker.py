"""One worker process of `emulator.verify`: a process holds one machine, and vectors are independent.

python -m fadiff.emulator.worker JOB.json
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from pathlib import Path

from fadiff.converter.errors import BadInput
from fadiff.emulator.compare import Job, run_job


def main(arguments: list[str]) -> int:
    """Read the job, write the pickled results."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    try:
        results = run_job(job)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    job.result.write_bytes(pickle.dumps(results))
    return 0


def _end_with_parent() -> None:
    """Kill -9 of the parent closes our input, and ends firmware that hangs."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
