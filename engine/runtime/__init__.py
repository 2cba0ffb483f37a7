"""Clock, ids and the event loop: everything that ties the engine to its surroundings."""
