"""Every figure the project claims, as ratios against a peer or a baseline measured in the same run."""
