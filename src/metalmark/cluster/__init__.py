"""Many machines, one sweep: which cell runs on which node, and how a node is talked to."""
