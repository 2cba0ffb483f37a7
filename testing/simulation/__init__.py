"""The engine over a seeded event loop and a disk that fails."""
