"""Where people already train: how each framework hands the loss over, and where what is made of it can be written."""
