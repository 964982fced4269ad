"""A step as C source with one block of memory: plans, tables and the runtime of an exported program."""
