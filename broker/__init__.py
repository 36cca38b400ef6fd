"""The MQTT-SN gateway: devices on UDP on one side, a real MQTT broker on the other."""
