"""`threadline load`: a fleet of real agents against a chain, and what both of them cost and lose.

    worker processes          broker, gateway, translator, Spark, API       the process of the command
    many real agents each --> as processes of their own, or running   -->   watches all of them, every second

Devices are the agents that boards run: their own threads, spools and sockets. What they say is decided by a profile and
paced by their process; whatever they said is looked for in the log and in the store when they have ended.
"""
