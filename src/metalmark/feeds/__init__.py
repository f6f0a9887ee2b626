"""How batches reach a step: one Source, and a loader a framework behind one set of settings."""
