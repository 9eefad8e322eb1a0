"""Loop nests on any machine: memories that keep operands, fan-outs between them (no Gemmini in it).

`machine.py` what a machine is; `workload.py` a layer as loops over three operands; `mapping.py` many
mappings of one layer in columns; `count.py` their accesses, cycles and energy by Timeloop's rules.
"""
