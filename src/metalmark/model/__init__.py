"""What everything is: plans, workloads, records of runs, and how they are read and written. Pure data."""
