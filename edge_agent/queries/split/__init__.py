"""GeneaLog's queries Q1 to Q4 over two devices each, as the paper's figures 7 and 9 to 11 deploy them.

The device near the sensors does what leaves little to send; the other one finds the alerts. The second filters again
what the first has filtered: that changes nothing, and the operators stay the ones of the query on one device. An agent
must be run under the name of its file (with dashes): the other one of the pair knows it by that.
"""
