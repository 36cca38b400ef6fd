"""The commands of `threadline`, a module for each group of them. They import what they need when they run."""
