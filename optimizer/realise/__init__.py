"""Other layers that do the work of host operators: `choice` which, `norms` and `softmax` what."""
