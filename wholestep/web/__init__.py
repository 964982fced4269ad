"""Pages in one HTML file: an experiment that trains in a browser, and a report about runs.

`core/` reads and writes data and drives the program in a worker; `interface/` is the page.  `bundle.py` joins them.
"""
