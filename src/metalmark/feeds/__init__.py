"""How batches reach a step: one Source, and one loader per framework behind one set of settings."""
