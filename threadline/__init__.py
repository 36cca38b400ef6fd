"""The server side's command line and the lab that runs everything on one machine."""
