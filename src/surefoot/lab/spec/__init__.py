"""What is to be run: tasks, data sets, contestants, and the configuration of a run."""
