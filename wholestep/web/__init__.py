"""An experiment as one HTML file that trains in a browser: WebAssembly, weights, readers of data, an interface.

`core/` reads and writes data and drives the program in a worker; `interface/` is the page.  `bundle.py` joins them.
"""
