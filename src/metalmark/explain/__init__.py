"""What a step is waiting for: experiments on a workload, a verdict on what they show, and what would help."""
