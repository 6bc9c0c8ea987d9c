"""Construction of a benchmark: pools, boundary rules, 13-gram filter, budget, annealing, splits, verification."""
