"""What both ends share: wire formats and names. No I/O, no threads, standard library only."""
