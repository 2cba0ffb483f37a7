"""The Spark data source: tables, streams and the sink."""
