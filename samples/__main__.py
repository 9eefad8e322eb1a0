"""`python -m samples`: `fadiff sample` in a checkout."""

from fadiff.commands.sample import sample

if __name__ == "__main__":
    sample(prog_name="python -m samples")
