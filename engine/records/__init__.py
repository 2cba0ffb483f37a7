"""The records of the store, one encoding and one decoding each."""
