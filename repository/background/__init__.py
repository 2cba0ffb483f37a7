"""Work that runs beside the calls: reaper, body GC, event publisher, leadership."""
