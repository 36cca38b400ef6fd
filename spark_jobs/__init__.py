"""The pipeline from the log to the live forward-provenance graph, on Spark Structured Streaming."""
