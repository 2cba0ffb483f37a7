"""The adapter for etcd v3: a shared log in keys, transactions and leases."""
