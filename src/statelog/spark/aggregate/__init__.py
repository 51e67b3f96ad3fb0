"""Running aggregates by key and window, on columns: the functions and their arithmetic."""
