"""What changes a schedule after the search: bytes, weights loaded early, and who issues layers.

`replacements.py` lists other ways to run the groups of a finished schedule; `traffic_limit.py`
and `weight_prefetch.py` choose among them.  `issue.py` decides who issues a layer, with
tiles that suit the loop units from `product_tiles.py` and `convolution_tiles.py`; `loop_ways.py` does so
for groups.  `pipelines.py` and `side_by_side.py` let core and Gemmini work at the same time, and
`whole_groups.py` takes groups of one tile apart.
"""
