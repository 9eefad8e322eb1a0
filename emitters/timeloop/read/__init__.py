"""Timeloop files as schedules: `schedule.py` is the entry; every complaint names file and line."""
