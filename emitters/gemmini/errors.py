"""What the emitter refuses to print."""

from fadiff.converter.errors import BadInput


class EmitError(BadInput, ValueError):
    """A schedule that this backend cannot express; the message names layer and remedy."""
