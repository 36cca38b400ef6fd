"""The whole chain in one process, on a simulated clock, network and disk: a run is decided by one number.

Agents with their plans, spools and MQTT-SN clients, the gateway's session machine, the translator's core with the log,
MU and ANK are the real ones. Only what lies between them is simulated, and everything that can go wrong there does.
"""
