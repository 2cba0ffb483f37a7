"""The frame of the jobs: configuration, progress, report, resume state, and shared inputs."""
