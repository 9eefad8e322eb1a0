"""What changes a schedule after the search: fewer bytes, faster by `rtl` among equals, weights loaded early.

`replacements.py` lists other ways to run the groups of a finished schedule; `traffic_limit.py`,
`rtl_choice.py` and `weight_prefetch.py` choose among them.
"""
