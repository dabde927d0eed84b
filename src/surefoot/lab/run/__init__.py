"""Running: one run into its folder, and pools of worker processes."""
