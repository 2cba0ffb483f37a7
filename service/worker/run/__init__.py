"""Running tasks: claims, runs, how they end, and the keepalive of their leases."""
