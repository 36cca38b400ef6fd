"""The cloud side: batches from MQTT into a durable log, and what is built from that log."""
