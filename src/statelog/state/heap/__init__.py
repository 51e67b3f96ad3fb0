"""State as dictionaries: `tables` with overlays, `expiry` by time to live, the `memory` budget."""
