"""The network: where groups begin and end.

`settings.py` is what the user asked for, `problem.py` one search with its clock and solvers,
`partition.py` the exact dynamic program over cuts, `exact.py` the search that certifies, `decode.py`
free choices made schedules, `result.py` what comes back.  Needs `group`.
"""
