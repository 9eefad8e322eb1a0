"""Search methods to compare with: same space, same exact evaluator, same budget."""
