"""The formats of LedgerQ: log, index, state file, folder."""
