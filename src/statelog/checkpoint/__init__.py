"""Checkpoints: stream factory, coordinator, completed checkpoints, restore, clean-up."""
