"""The shared log in memory: the reference of the port, with faults, for simulation and tests."""
