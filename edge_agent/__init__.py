"""The device side of Threadline: capture, stream engine, spool and the MQTT-SN client that carries them."""
