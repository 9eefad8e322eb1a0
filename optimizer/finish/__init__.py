"""What changes a schedule after the search: core and Gemmini at work at the same time.  Nothing is mapped
again but what goes through a pipeline.

`pipelines.py` runs neighbouring groups in a pipeline, `side_by_side.py` operators of the core beside layers
on the array.
"""
