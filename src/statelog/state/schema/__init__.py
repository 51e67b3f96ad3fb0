"""Declared state variables (`descriptors`) and how they may change between two starts (`evolution`)."""
