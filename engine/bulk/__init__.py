"""Work on a store by the million, without the engine's hands: files of rows in, snapshots out."""
