"""Where people already train: how each framework passes the loss, and where the statistics can be written."""
