"""The queries that the GeneaLog and Ananke papers were evaluated with, as app files, and generators of data for them.

Every use case has a module with its values, its generator and what the generator planted, and one app file per query.
The data is made up from a seed, and the alerts it must raise are known beforehand, down to the readings that cause
them.
"""
