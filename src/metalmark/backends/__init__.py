"""HOW a workload runs: one file a framework, the same method order in each."""
