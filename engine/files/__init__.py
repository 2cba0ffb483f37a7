"""The files around a store: paths, lock file, durable files, ballast, and what disk errors mean."""
