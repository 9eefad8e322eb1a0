"""For every test: one thread per worker, and no verdict that depends on how busy the machine is."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and onnxruntime start

settings.register_profile("fadiff", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fadiff")
