"""The engine for threads beside the one that runs its loop."""
