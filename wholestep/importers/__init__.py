"""Networks of other libraries as modules of this one."""
