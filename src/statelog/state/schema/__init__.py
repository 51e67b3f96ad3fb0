"""State variables: their declarations (`descriptors`), and changes of them (`evolution`)."""
