"""What changes a schedule after the search: bytes, weights loaded early, and who issues layers.

`replacements.py` lists other ways to run the groups of a finished schedule; `traffic_limit.py`
and `weight_prefetch.py` choose among them.  `issue.py` decides who issues a layer, with
tiles that suit the loop units from `product_tiles.py` and `convolution_tiles.py`.
"""
