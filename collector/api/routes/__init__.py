"""The endpoints of `/v1`, a module for each kind of question."""
