"""What this computer is, and what differs between Linux and macOS."""
