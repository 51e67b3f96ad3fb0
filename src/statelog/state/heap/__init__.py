"""State as dicts: `tables` and overlays, `expiry` by time to live, the `memory` budget."""
