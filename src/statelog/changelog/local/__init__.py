"""Local copies of changelog files (`recovery`, `registry`, `files`) and the `download_cache`."""
