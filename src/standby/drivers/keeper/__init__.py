"""The keeper: one small process for a host that outlives the server and holds its runs.

Standard library only: it is started as `python -I -S <this folder> <directory>` and sees no site-packages.
"""
