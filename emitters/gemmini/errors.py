"""What the emitter refuses to print."""


class EmitError(ValueError):
    """A schedule that this backend cannot express; the message names layer and remedy."""
