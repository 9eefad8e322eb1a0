"""What the tool knows about one Gemmini and the memory behind it.

`target.py` is the Target itself, read from a preset (presets/), a YAML file or, by `params_header.py`,
from the `gemmini_params.h` of real hardware.  `core.py` has the price of what the RISC-V core does, `epa.py`
fits energy per access to a user's table, `text_file.py` reads text, YAML and JSON within limits,
`validation.py` words what is wrong with a file.  Needs no other room.
"""
