"""The whole decision for one graph on one target: made legal, scored, written and read.

`schedule.py` is the Schedule (`legality.py` checks it when it is made), `evaluate.py` its exact cost,
`batch.py` the cost of many mappings of one layer, `reduced.py` the same schedule without what other rules
do not know.  schedule.json: `document.py` is the format (`group_records.py`: of groups,
`conversion_record.py`: of what the front end did),
`records.py`, `host_records.py` and `serialize.py` fill and read it.  `clock.py`
prices the program as it is issued, `measurement.py` reads what hardware took, `verdict.py` what int8 costs
in accuracy.
"""
