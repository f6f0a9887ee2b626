"""What records mean: cells, derived figures, ceilings, published figures, leaderboards and comparisons."""
