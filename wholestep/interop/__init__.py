"""Networks, names and files of other libraries."""
