"""One worker process of `emulator.verify`: a process holds one machine, and vectors are independent.

python -m emulator.worker JOB.json
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from emulator.compare import Job, run_job
from emulator.errors import EmulatorError


def main(arguments: list[str]) -> int:
    """Read the job, write the pickled results."""
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    try:
        results = run_job(job)
    except EmulatorError as error:
        print(error, file=sys.stderr)
        return 1
    job.result.write_bytes(pickle.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
