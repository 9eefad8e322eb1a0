from tests.fadiff.conftest import fadiff

__all__ = ["fadiff"]
