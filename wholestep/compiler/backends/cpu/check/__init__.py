"""Is a plan sound on the CPU?"""
