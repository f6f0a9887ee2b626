"""Where runs are shown besides: experiment trackers behind one protocol."""
