"""One codec a file, all with the interface of ``item.Format``."""
