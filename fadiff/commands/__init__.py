"""One module per command; each is a thin layer over `fadiff.pipeline` and the packages."""
