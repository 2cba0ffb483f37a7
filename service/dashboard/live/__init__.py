"""The live part of pages: figures over time, and the streams that send them."""
