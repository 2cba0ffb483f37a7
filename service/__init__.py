"""What runs around an engine. Each package stands alone; ``shared`` is what several of them use."""
