"""Other layers that do the work of host operators: `choice` which; `sums`, `average_pools`,
`channel_products` and `max_pools` with the same bits, `norms` and `softmax` as near to the float function."""
