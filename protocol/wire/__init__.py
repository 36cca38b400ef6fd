"""What an agent publishes: records in columns, grouped into batches, and the answers to them.

Everything read here may come from anybody: sizes are bounded, and whatever is wrong is a `MalformedBatch`.
"""
