"""``lodeq serve --processes``: one store, whose shards several processes of a machine have open."""
