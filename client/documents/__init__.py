"""Documents on the wire: tasks and the like, errors, and the two forms they have."""
