"""The process that runs firmware for `emulator.verify`: it can hang, crash, and needs a machine of its own.

python -m fadiff.emulator.worker

Each line of its input is a job, which gets a process forked from this one, with everything imported;
each line of its output is the exit code of one.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from pathlib import Path

from fadiff.converter.errors import BadInput
from fadiff.emulator.compare import Job, run_job


def main() -> int:
    """Run jobs until the input ends."""
    os.chdir("/")  # (where we were started may be deleted meanwhile)
    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            os._exit(_run(Job.model_validate_json(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def _run(job: Job) -> int:
    """Write the pickled results, or say what is wrong."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup(sys.stdout.fileno())  # open as long as we live: who stops us waits for that
    with job.errors.open("wb") as errors, Path(os.devnull).open("wb") as nothing:
        os.dup2(errors.fileno(), sys.stderr.fileno())
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    try:
        job.result.write_bytes(pickle.dumps(run_job(job)))
    except BadInput as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _end_with_parent() -> None:
    """Kill -9 of whoever started us closes our input, and ends firmware that hangs."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
